"""A learned draft head: its tensors and its file."""
