"""The study behind docs/evaluation.md: groups of experiments, each a pure function of its seed."""
