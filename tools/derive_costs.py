"""Derive the cost tables that the simulator ships from the public originals.

python tools/derive_costs.py ../shared/data            # writes src/scheduling_sim/costs/data
python tools/derive_costs.py ../shared/data --check    # tells whether they are up to date
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

from scheduling_sim.costs.h200 import read_h200
from scheduling_sim.costs.llmservingsim import read_table
from scheduling_sim.costs.models import H200_SHAPES, PROFILES
from scheduling_sim.costs.shipped import encode, file_name

DATA = Path(__file__).parent.parent / "src" / "scheduling_sim" / "costs" / "data"
LLMSERVINGSIM = {
    "source": "casys-kaist/LLMServingSim profiler/perf",
    "commit": "5daddb21",
    "licence": "MIT, Copyright (c) 2024, CASYS Lab at KAIST",
}


AICONFIGURATOR = {
    "source": "aiconfigurator-core systems/data/h200_sxm, vLLM 0.24.0 tables",
    "commit": "0.12.0",
    "licence": "Apache-2.0, Copyright (c) 2025-2026 NVIDIA CORPORATION & AFFILIATES",
}


def derive_profiles(originals: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every document from LLMServingSim."""
    for name, profile in PROFILES.items():
        folder = originals / "llmservingsim" / "profiler" / "perf" / profile.folder
        table = read_table(folder, profile.facts, link=profile.link, uneven=profile.uneven)
        yield file_name(name), encode(table, LLMSERVINGSIM | {"folder": profile.folder})


def derive_h200(originals: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and bytes of every document from aiconfigurator; needs pyarrow."""
    for name, shape in H200_SHAPES.items():
        yield file_name(name), encode(read_h200(originals, shape), AICONFIGURATOR)


def main() -> int:
    """Write or check the documents; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("originals", type=Path, help="holds llmservingsim/ and aiconfigurator/")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    stale = 0
    for name, data in itertools.chain(
        derive_profiles(arguments.originals), derive_h200(arguments.originals)
    ):
        path = DATA / name
        # Compressors differ from version to version; the document counts.
        same = path.exists() and gzip.decompress(path.read_bytes()) == gzip.decompress(data)
        stale += not same
        if not arguments.check and not same:
            DATA.mkdir(exist_ok=True)
            path.write_bytes(data)
        print(f"{name}: {len(data)} bytes, {'unchanged' if same else 'differs'}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
