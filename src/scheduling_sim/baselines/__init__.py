"""Policies of the field that stand in the scheduler's place, one readable file each."""
