"""A learned draft head: its file, its model, and its training on the target's own text."""
