"""Trains draft heads on text that their targets write."""
