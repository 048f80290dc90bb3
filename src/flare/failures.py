"""Which exceptions are answers to the person at the terminal, and which are faults of flare."""

from __future__ import annotations

from flare.errors import FlareError
from flare.trace import TraceError
from helios.engine.backend import EngineUnavailableError
from helios.runtime.text import TextError
from helios.scheduler import SchedulerError
from helios.server.serve import AddressError
from ignition.capacity_errors import CapacityError
from ignition.checkpoint_errors import CheckpointError
from ignition.draft.errors import DraftError
from ignition.fetch import FetchError
from ignition.native.build import NativeBuildError
from ignition.native.pack import PackError
from ignition.package_errors import CudaUnavailableError, PackageError
from ignition.sources import SourceError

_EXPECTED = (
    FlareError,
    TraceError,
    SchedulerError,
    EngineUnavailableError,
    AddressError,
    CapacityError,
    CheckpointError,
    CudaUnavailableError,
    DraftError,
    NativeBuildError,
    PackError,
    PackageError,
    TextError,
    FetchError,
    SourceError,
    OSError,
)


def is_expected(error: Exception) -> bool:
    """Whether the error's own message says what the person can do about it."""
    return isinstance(error, _EXPECTED)
