"""One file per subcommand: its options, and what it does with the parts that it composes."""
