"""The baselines by name."""

from __future__ import annotations
