"""Distribution: mean, percentiles and worst of a sample, with the way percentiles are taken.

Percentiles interpolate linearly between the closest ranks (Hyndman and Fan 1996, type 7), which is
NumPy's default and what vLLM's and SGLang's benchmarks print, so that figures compare.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

PERCENTILE_METHOD = "linear interpolation between the closest ranks (Hyndman-Fan type 7)"

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Distribution:
    """A sample in few numbers; all are None when it is empty. The unit is the caller's."""

    count: int
    mean: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    worst: float | None

    def figures(self, name: str) -> dict[str, float | None]:
        """Return `name.count`, `name.mean` and so on."""
        return {f"{name}.{field}": value for field, value in dataclasses.asdict(self).items()}


def distribution_of(sample: npt.NDArray[np.generic], unit: float = 1.0) -> Distribution:
    """Return the distribution of a sample, each value divided by `unit`; the worst is the largest.

    Raises ValueError for a value that is not finite.
    """
    values = np.asarray(sample, dtype=np.float64) / unit
    if not values.size:
        return Distribution(0, None, None, None, None, None, None)
    if not np.isfinite(values).all():
        raise ValueError("a sample has a value that is not finite")
    p50, p90, p95, p99 = np.percentile(values, (50, 90, 95, 99)).tolist()
    mean, worst = float(values.mean()), float(values.max())
    return Distribution(values.size, mean, p50, p90, p95, p99, worst)
