"""A load generator for any OpenAI-compatible server: counts tokens, times deliveries."""

from flare.load.http_stream import LoadError, StreamRecord, Target, stream_completion
from flare.load.measures import Measurement
from flare.load.scenarios import SCENARIOS, run_scenarios

__all__ = [
    "SCENARIOS",
    "LoadError",
    "Measurement",
    "StreamRecord",
    "Target",
    "run_scenarios",
    "stream_completion",
]
