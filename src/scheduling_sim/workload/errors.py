"""What is wrong with the description of a workload or with the file of a trace."""


class WorkloadError(ValueError):
    """An option or a trace as a whole cannot be used; the message says what would be right."""


def require(condition: bool, message: str) -> None:
    """Raise WorkloadError with `message` unless `condition` holds."""
    if not condition:
        raise WorkloadError(message)
