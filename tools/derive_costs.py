"""Derive the cost tables that the simulator ships from the public originals.

python tools/derive_costs.py ../shared/data            # writes src/scheduling_sim/costs/data
python tools/derive_costs.py ../shared/data --check    # tells whether they are up to date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from scheduling_sim.costs.llmservingsim import read_table
from scheduling_sim.costs.models import PROFILES
from scheduling_sim.costs.shipped import encode, file_name

DATA = Path(__file__).parent.parent / "src" / "scheduling_sim" / "costs" / "data"
LLMSERVINGSIM = {
    "source": "casys-kaist/LLMServingSim profiler/perf",
    "commit": "5daddb21",
    "licence": "MIT, Copyright (c) 2024, CASYS Lab at KAIST",
}


def derive(originals: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every document."""
    for name, profile in PROFILES.items():
        folder = originals / "llmservingsim" / "profiler" / "perf" / profile.folder
        table = read_table(folder, profile.facts, link=profile.link, uneven=profile.uneven)
        yield file_name(name), encode(table, LLMSERVINGSIM | {"folder": profile.folder})


def main() -> int:
    """Write or check the documents; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("originals", type=Path, help="the folder that holds llmservingsim/")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    stale = 0
    for name, data in derive(arguments.originals):
        path = DATA / name
        same = path.exists() and path.read_bytes() == data
        stale += not same
        if not arguments.check:
            DATA.mkdir(exist_ok=True)
            path.write_bytes(data)
        print(f"{name}: {len(data)} bytes, {'unchanged' if same else 'differs'}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
