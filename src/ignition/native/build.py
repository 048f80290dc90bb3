"""Compile the C kernels of this package into a shared library for one geometry and this machine."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Literal

from ignition.geometry import ModelGeometry, PoolGeometry

Precision = Literal["int8", "fp32"]
Variant = Literal["vnni", "avx2", "plain"]

FEATURES: Final[dict[Variant, tuple[str, ...]]] = {
    "vnni": ("avx2", "avx512_vnni", "avx512f", "avx512vl", "f16c", "fma"),
    "avx2": ("avx2", "f16c", "fma"),
    "plain": (),
}
"""Instruction-set features that each variant uses, as the kernel names them, the fastest first."""

_COMPILERS: Final = ("cc", "gcc", "clang")
_TIMEOUT_S: Final = 300
_SOURCE_DIRECTORY: Final = Path(__file__).parent


class NativeBuildError(Exception):
    """The native library cannot be built."""


class NoCompilerError(NativeBuildError):
    """This machine has no C compiler."""


class CompilerFailedError(NativeBuildError):
    """The compiler refused the sources; the message carries the end of what it said."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NativeLibrary:
    """A compiled library and what it was compiled with."""

    path: Path
    variant: Variant
    features: tuple[str, ...]
    """Sorted instruction-set features that a machine must have to load it."""
    compiler: str
    """First line of the compiler's version."""


def find_compiler() -> str:
    """Return the path of a C compiler ($CC first). Raises NoCompilerError."""
    named = os.environ.get("CC")
    for name in (named, *_COMPILERS) if named else _COMPILERS:
        path = shutil.which(name)
        if path:
            return path
    raise NoCompilerError(
        "no C compiler found (looked for $CC, " + ", ".join(_COMPILERS) + "): "
        "install gcc or clang, or choose the eager backend"
    )


def machine_features() -> frozenset[str]:
    """Return the instruction-set features of this machine; empty where they cannot be read."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def choose_variant(features: frozenset[str]) -> Variant:
    """Return the fastest variant that a machine with these features can run."""
    return next(variant for variant, needed in FEATURES.items() if features.issuperset(needed))


def compile_options(
    geometry: ModelGeometry, pool: PoolGeometry, precision: Precision, variant: Variant
) -> list[str]:
    """Return the compiler's options except files. Contraction of a*b+c stays off: whether it
    happens may depend on the tile, and results must not.
    """
    constants = {
        "LAYERS": geometry.layer_count,
        "HIDDEN": geometry.hidden_size,
        "QUERY_HEADS": geometry.query_heads,
        "KV_HEADS": geometry.kv_heads,
        "HEAD": geometry.head_size,
        "FFN": geometry.ffn_size,
        "VOCABULARY": geometry.vocabulary_size,
        "PAGE": pool.page_size_tokens,
    }
    options = ["-std=gnu11", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wno-psabi"]
    options += ["-Wfatal-errors"]  # The first error says enough; the rest takes seconds.
    options += ["-pthread", "-shared", "-fPIC"]
    options += [f"-DIGN_{name}={value}" for name, value in constants.items()]
    if precision == "fp32":
        options.append("-DIGN_FLOAT32")
    if variant != "plain":
        options.append("-DIGN_AVX2")
    if variant == "vnni":
        options.append("-DIGN_VNNI")
    options += [f"-m{feature.replace('_', '')}" for feature in FEATURES[variant]]
    return options


def _version_of(compiler: str) -> str:
    run = subprocess.run(
        [compiler, "--version"], capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
    )
    return (run.stdout.splitlines() or [Path(compiler).name])[0]


def build_library(
    geometry: ModelGeometry,
    pool: PoolGeometry,
    precision: Precision,
    output: Path,
    *,
    variant: Variant | None = None,
    compiler: str | None = None,
) -> NativeLibrary:
    """Compile the kernels into `output` (replaced atomically).

    The variant is chosen for this machine unless given. Raises NoCompilerError or
    CompilerFailedError; `output` is untouched then.
    """
    compiler = compiler or find_compiler()
    variant = variant or choose_variant(machine_features())
    sources = sorted(str(path) for path in _SOURCE_DIRECTORY.glob("*.c"))
    options = compile_options(geometry, pool, precision, variant)

    with tempfile.TemporaryDirectory(dir=output.parent) as scratch:
        built = Path(scratch) / output.name
        command = [compiler, *options, *sources, "-o", str(built), "-lm"]
        try:
            run = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
            )
        except OSError as error:
            raise NoCompilerError(f"cannot run the C compiler {compiler}: {error}") from error
        except subprocess.TimeoutExpired as error:
            raise CompilerFailedError(f"{compiler} took more than {_TIMEOUT_S} s") from error
        if run.returncode != 0:
            raise CompilerFailedError(
                f"{compiler} failed with status {run.returncode}: {run.stderr[-2000:].strip()}"
            )
        built.replace(output)

    return NativeLibrary(
        path=output,
        variant=variant,
        features=FEATURES[variant],
        compiler=_version_of(compiler),
    )
