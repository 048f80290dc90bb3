"""The step loop and its ports; no torch, no thread, no clock of its own."""
