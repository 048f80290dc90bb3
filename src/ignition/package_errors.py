"""Why a package cannot be written or opened; importing these errors imports no PyTorch."""

from __future__ import annotations


class PackageError(Exception):
    """The message starts with the manifest field, file or option that is wrong."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class CudaUnavailableError(Exception):
    """There is no GPU that CUDA programs could be captured on."""
