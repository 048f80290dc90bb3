"""What cannot be built or opened is refused with an error that names the reason."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ignition.checkpoint import BlockQuantized
from ignition.native import build
from ignition.native.pack import PackError, pack, quantize_q8_0
from ignition.programs.frames import FrameError
from ignition.programs.native import NativeModel, ReplayError
from ignition.programs.native_library import NativeLibraryError
from ignition.state import ServingState
from tests.ignition.driver import Driver, catalog_of, lane
from tests.ignition.native.models import (
    POOL,
    checkpoint_for,
    library_for,
    native_driver,
    quantize_q4,
)
from tests.ignition.native.test_fp32 import pages_for, prompt_of


def open_with(**changes: object) -> NativeModel:
    checkpoint = checkpoint_for("llama")
    arguments: dict[str, object] = {
        "geometry": checkpoint.geometry,
        "pool": POOL,
        "catalog": catalog_of(),
        "arrays": pack(checkpoint, "int8"),
        "library": library_for(checkpoint.geometry, "int8"),
        "state": ServingState.allocate(checkpoint.geometry, POOL, np.float16),
        "threads": 1,
    }
    return NativeModel(**{**arguments, **changes})  # type: ignore[arg-type]


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(build.NoCompilerError, match="install gcc or clang"):
        build.build_library(checkpoint_for("llama").geometry, POOL, "int8", tmp_path / "x.so")
    assert list(tmp_path.iterdir()) == []


def test_a_failing_compiler_is_quoted_and_leaves_no_file(tmp_path) -> None:
    odd = dataclasses.replace(checkpoint_for("llama").geometry, head_size=12)
    with pytest.raises(build.CompilerFailedError, match="head size must be a multiple of 8"):
        build.build_library(odd, POOL, "int8", tmp_path / "x.so")
    assert list(tmp_path.iterdir()) == []


def test_the_variant_follows_the_features_of_the_machine() -> None:
    assert build.choose_variant(frozenset({"avx2", "fma", "f16c", "sse2"})) == "avx2"
    wide = {"avx2", "fma", "f16c", "avx512f", "avx512vl", "avx512_vnni"}
    assert build.choose_variant(frozenset(wide)) == "vnni"
    assert build.choose_variant(frozenset(wide - {"avx512_vnni"})) == "avx2"
    assert build.choose_variant(frozenset({"avx2", "sse2"})) == "plain"
    assert build.choose_variant(frozenset()) == "plain"


@pytest.mark.parametrize(
    ("field", "value"),
    [("layer_count", 3), ("ffn_size", 128), ("vocabulary_size", 98), ("kv_heads", 4)],
)
def test_a_library_of_another_geometry_is_refused_by_name(field: str, value: int) -> None:
    geometry = dataclasses.replace(checkpoint_for("llama").geometry, **{field: value})
    with pytest.raises(NativeLibraryError, match=field):
        open_with(geometry=geometry)


def test_what_does_not_fit_the_library_is_refused_by_name(tmp_path) -> None:
    checkpoint = checkpoint_for("llama")
    arrays = pack(checkpoint, "int8")
    with pytest.raises(NativeLibraryError, match="keys and values are float32"):
        open_with(state=ServingState.allocate(checkpoint.geometry, POOL, np.float32))
    with pytest.raises(NativeLibraryError, match=r"no weights layers.1.up"):
        open_with(arrays={k: v for k, v in arrays.items() if not k.startswith("layers.1.up")})
    with pytest.raises(NativeLibraryError, match=r"layers.0.k.q8 is uint8 \(3, 544\)"):
        open_with(arrays={**arrays, "layers.0.k.q8": arrays["layers.0.k.q8"][:3]})
    with pytest.raises(NativeLibraryError, match="norm is float32"):
        open_with(arrays={**arrays, "norm": arrays["norm"][:-1]})
    with pytest.raises(NativeLibraryError, match="another precision"):
        open_with(arrays=pack(checkpoint, "fp32"))
    with pytest.raises(NativeLibraryError, match="threads must be"):
        open_with(threads=0)
    (tmp_path / "broken.so").write_bytes(b"not a library")
    with pytest.raises(NativeLibraryError, match=r"broken\.so"):
        open_with(library=tmp_path / "broken.so")


def test_packing_refuses_what_it_would_change() -> None:
    checkpoint = checkpoint_for("llama:q4_1")
    name = "layers.0.down"
    tensor = checkpoint.tensors[name]
    assert isinstance(tensor, BlockQuantized)
    spoiled = {
        "half-precision": dataclasses.replace(tensor, scales=tensor.scales * np.float32(1.0001)),
        "above 15": dataclasses.replace(tensor, codes=tensor.codes + np.uint8(1)),
        "minimum are not": dataclasses.replace(tensor, codes=tensor.codes.astype(np.int8)),
    }
    for message, bad in spoiled.items():
        broken = dataclasses.replace(checkpoint, tensors={**checkpoint.tensors, name: bad})
        with pytest.raises(PackError, match=rf"{name}.*{message}"):
            pack(broken, "int8")
    missing = {k: v for k, v in checkpoint.tensors.items() if k != "layers.1.q"}
    with pytest.raises(PackError, match=r"no tensor layers\.1\.q"):
        pack(dataclasses.replace(checkpoint, tensors=missing), "int8")


def test_blocks_are_packed_without_loss() -> None:
    """Every code, scale and minimum is found again in the bytes of its panel."""
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((16, 96)).astype(np.float32)
    checkpoint = checkpoint_for("llama")
    for kind, tensor in (
        ("q4", quantize_q4(weights, has_minimum=True)),
        ("q8", quantize_q8_0(weights)),
    ):
        tensors = {**checkpoint.tensors, "layers.0.q": tensor}
        packed = pack(dataclasses.replace(checkpoint, tensors=tensors), "int8")
        panel = packed[f"layers.0.q.{kind}"][1]
        row, block = 5, 2
        codes = tensor.codes[8 + row, 32 * block : 32 * block + 32]
        if kind == "q4":
            stored = panel[128 * block : 128 * block + 128].reshape(4, 8, 4)[:, row]
            assert np.array_equal(np.stack([stored & 15, stored >> 4], 1).reshape(32), codes)
            scales = panel[3 * 128 :].view(np.float16).reshape(3, 2, 8)[block, :, row]
            assert scales[1] == tensor.minimums[8 + row, block]
        else:
            stored = panel[256 * block : 256 * block + 256].view(np.int8).reshape(8, 8, 4)[:, row]
            assert np.array_equal(stored.reshape(32), codes)
            scales = panel[3 * 256 :].view(np.float16).reshape(3, 1, 8)[block, :, row]
        assert scales[0] == tensor.scales[8 + row, block]


def test_a_chunk_past_its_pages_is_refused_and_a_decode_row_without_a_page_changes_nothing() -> (
    None
):
    driver = native_driver()
    driver.initialize([2], [[4]])
    with pytest.raises(FrameError, match="fewer than the 2 pages"):
        driver.prefill(2, prompt_of(17), [("prefill-c64", 17)])
    driver.prefill(2, prompt_of(16), [("prefill-c16", 16)])
    state = driver.model.state
    with pytest.raises(ReplayError, match="row 2 has no page"):
        driver.decode([2])
    assert (state.cached_tokens[2], state.output_count[2]) == (16, 1)


def test_opening_and_running_needs_no_torch() -> None:
    code = (
        "import sys, ignition.programs.native, ignition.native.pack, ignition.native.build;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_closed_model_gives_its_threads_back() -> None:
    def threads() -> int:
        return len(list(Path("/proc/self/task").iterdir()))

    before = threads()
    driver: Driver = native_driver(threads=4)
    driver.initialize([0], [pages_for(0)])
    driver.prefill(0, prompt_of(9), [("prefill-c16", 9)])
    assert threads() == before + 3
    driver.model.close()
    assert threads() == before


def test_threads_sleep_between_frames() -> None:
    """Three workers that kept spinning would use far more processor time than one pause allows."""
    driver = native_driver(threads=4)
    driver.initialize([0], [pages_for(0)])
    driver.prefill(0, prompt_of(9), [("prefill-c16", 9)])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    driver.model.close()


def test_an_inactive_lane_is_not_executed() -> None:
    driver = native_driver()
    program = driver.program("decode-b4")
    program.buffers["rows"][:] = -1
    program.replay()
    assert not program.buffers["produced"].any()
    assert lane(0).row == 0
