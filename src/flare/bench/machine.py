"""What a result says about where it was measured: the machine and its load; never a path."""

from __future__ import annotations

import datetime
import os
import platform
import time
from pathlib import Path


def machine() -> dict[str, object]:
    """Return the processor, its usable features, cores, memory and Python."""
    info: dict[str, str] = {}
    cpuinfo = Path("/proc/cpuinfo")
    for line in cpuinfo.read_text().splitlines() if cpuinfo.is_file() else ():
        name, _, value = line.partition(":")
        info.setdefault(name.strip(), value.strip())
    flags = info.get("flags", "").split()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": info.get("model name", platform.processor()),
        "features": [
            name for name in ("avx2", "avx512f", "avx512_vnni", "amx_int8") if name in flags
        ],
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "python": platform.python_version(),
    }


def busy_share(seconds: float = 1.0) -> float:
    """Return the share of processor time that others use now; a figure above 0.1 spoils results."""

    def reading() -> tuple[int, int]:
        fields = [
            int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        ]
        return sum(fields), fields[3] + fields[4]

    if not Path("/proc/stat").is_file():
        return 0.0
    before = reading()
    time.sleep(seconds)
    total, idle = (after - earlier for after, earlier in zip(reading(), before, strict=True))
    return round(1 - idle / total, 3) if total else 0.0


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
