"""Reads and renders trace files (docs/design/trace.md): decisions, what they cost, who waited."""

from flare.trace.reader import Trace, TraceError, read_trace
from flare.trace.summary import Summary, summarise

__all__ = ["Summary", "Trace", "TraceError", "read_trace", "summarise"]
