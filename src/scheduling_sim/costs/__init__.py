"""What a step takes: tables, costs composed from measured operators, recorded runs, noise."""
