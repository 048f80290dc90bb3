"""Replays of real runs: what they measured against what the simulator says of the same requests."""
