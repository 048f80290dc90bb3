"""prepare: from a checkpoint to an opened, measured package, whatever the backend."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from ignition.capacity import CapacityOptions, plan_capacity
from ignition.checkpoint import Checkpoint
from ignition.measure import calibrated_seeds
from ignition.native.build import NoCompilerError
from ignition.package import OpenedPackage, open_package
from ignition.package_errors import PackageError
from ignition.package_manifest import read_manifest
from ignition.prepare import STAGES, choose_backend, prepare, prepare_package
from ignition.sources import resolve
from tests.ignition.driver import Driver
from tests.ignition.tiny import build


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    return build("qwen3").checkpoint


@pytest.fixture(scope="module")
def native_package(tmp_path_factory: pytest.TempPathFactory, checkpoint: Checkpoint) -> Path:
    """One int8 package for the tests that only look at it; compiling takes seconds."""
    destination = tmp_path_factory.mktemp("native") / "tiny"
    prepared(checkpoint, destination, "native", "int8")
    return destination


class Stages:
    """Remembers what preparing reported."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def __call__(self, stage: str, done: int, total: int) -> None:
        self.calls.append((stage, done, total))


def prepared(
    checkpoint: Checkpoint,
    destination: Path,
    backend: str,
    precision: str,
    drafts: int = 0,
    *,
    mixed: bool = False,
) -> tuple[OpenedPackage, Stages]:
    options = CapacityOptions(
        backend=backend,
        precision=precision,
        concurrency=3,
        prefill_capacities=(16, 64),
        scored_capacities=(32,),
        draft_tokens=drafts,
        mixed_prefill=mixed,
    )
    plan = plan_capacity(checkpoint.geometry, options, machine_memory_bytes=16 << 30)
    stages = Stages()
    manifest = prepare_package(checkpoint, plan, destination, progress=stages, threads=1)
    assert manifest == read_manifest(destination)
    return open_package(destination, verify=True), stages


@pytest.mark.parametrize(
    ("backend", "precision", "drafts", "mixed"),
    [
        ("eager", "fp32", 0, False),
        ("eager", "fp32", 3, True),
        pytest.param("native", "fp32", 0, True, marks=pytest.mark.slow),
        pytest.param("native", "int8", 7, True, marks=pytest.mark.slow),
    ],
)
def test_a_prepared_package_serves_and_knows_its_costs(
    tmp_path: Path, checkpoint: Checkpoint, backend: str, precision: str, drafts: int, mixed: bool
) -> None:
    directory = tmp_path / "tiny"
    package, stages = prepared(checkpoint, directory, backend, precision, drafts, mixed=mixed)
    names = {graph.name for graph in package.catalog.graphs}
    assert set(package.cost_seeds_ns) == names
    assert all(cost > 0 for cost in package.cost_seeds_ns.values())

    seen = list(dict.fromkeys(stage for stage, _, _ in stages.calls))
    assert seen == [stage for stage in STAGES if stage in seen]
    assert ("compile" in seen) == (backend == "native")
    assert stages.calls[-1] == ("measure", len(names), len(names))

    state = package.model.state
    assert (state.page_table == -1).all(), "measuring leaves every row clear"
    assert not state.cached_tokens.any()
    seeds = calibrated_seeds(package)
    assert set(seeds) == names
    assert all(cost > 0 for cost in seeds.values())
    assert (state.page_table == -1).all(), "calibrating leaves every row clear"
    assert not state.cached_tokens.any()
    driver = Driver(package)
    driver.initialize([2], [range(10)])
    tokens = list(driver.prefill(2, list(range(40)), [("prefill-c64", 40)]).tokens)
    for _ in range(3):
        (output,) = driver.decode([2])
        tokens += output.tokens
    assert len(tokens) == 4
    package.close()


@pytest.mark.slow
def test_native_fp32_and_eager_packages_choose_the_same_tokens(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    texts = []
    for backend in ("eager", "native"):
        package, _ = prepared(checkpoint, tmp_path / backend, backend, "fp32")
        driver = Driver(package)
        driver.initialize([0], [range(30)])
        prompt = np.random.default_rng(1).integers(0, 97, 50).tolist()
        tokens = list(driver.prefill(0, prompt, [("prefill-c64", 50)]).tokens)
        for _ in range(20):
            tokens += driver.decode([0])[0].tokens
        texts.append(tokens)
    assert texts[0] == texts[1]


def test_opening_a_native_package_imports_no_torch(native_package: Path) -> None:
    code = (
        "import sys, pathlib; from ignition.package import open_package;"
        "package = open_package(pathlib.Path(sys.argv[1])); assert package.programs;"
        "sys.exit('torch' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code, str(native_package)], check=False)
    assert run.returncode == 0


@pytest.mark.slow
def test_preparing_again_replaces_the_package_and_its_loaded_library(
    tmp_path: Path, checkpoint: Checkpoint
) -> None:
    """A process keeps a loaded library by its path, so another one needs another name."""
    first, _ = prepared(checkpoint, tmp_path / "tiny", "native", "int8")
    second, _ = prepared(checkpoint, tmp_path / "tiny", "native", "fp32")
    assert first.model.state.keys.dtype == np.float16
    assert second.model.state.keys.dtype == np.float32
    assert [p.name for p in tmp_path.iterdir()] == ["tiny"]


def test_a_native_package_with_another_library_is_refused(
    tmp_path: Path, native_package: Path
) -> None:
    copy = shutil.copytree(native_package, tmp_path / "tiny")
    (library,) = copy.glob("*.so")
    library.write_bytes(library.read_bytes()[:-1] + b"x")
    with pytest.raises(PackageError, match=rf"^files\.{library.name}: .*sha256"):
        open_package(copy)


def test_a_native_package_without_its_library_is_refused(
    tmp_path: Path, native_package: Path
) -> None:
    copy = shutil.copytree(native_package, tmp_path / "tiny")
    document = json.loads((copy / "manifest.json").read_text())
    document["files"] = {k: v for k, v in document["files"].items() if not k.endswith(".so")}
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(PackageError, match=r"^files: a native package has one \.so file"):
        open_package(copy)


def test_a_native_package_for_another_geometry_is_refused(
    tmp_path: Path, native_package: Path
) -> None:
    copy = shutil.copytree(native_package, tmp_path / "tiny")
    document = json.loads((copy / "manifest.json").read_text())
    document["model"]["geometry"]["ffn_size"] = 128
    (copy / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(PackageError, match=r"compiled for ffn_size 96, the package has 128"):
        open_package(copy)


def test_without_a_compiler_eager_is_chosen_and_said_aloud(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    choice = choose_backend()
    assert (choice.backend, choice.precision) == ("eager", "fp32")
    assert choice.notice is not None
    assert "eager" in choice.notice
    asked = choose_backend("auto", "int8")
    assert asked.precision == "fp32"
    assert "fp32, not int8" in (asked.notice or "")
    with pytest.raises(NoCompilerError):
        choose_backend("native")


def test_with_a_compiler_native_int8_is_the_quiet_default() -> None:
    choice = choose_backend()
    assert (choice.backend, choice.precision, choice.notice) == ("native", "int8", None)
    assert choose_backend("auto", "fp32").precision == "fp32"
    assert choose_backend("eager").precision == "fp32"


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_is_prepared_from_its_name_and_answers(
    tmp_path: Path, default_gguf: Path
) -> None:
    """The whole way of `flare prepare`, from a name to an answer."""
    options = CapacityOptions(
        backend="native",
        precision="int8",
        concurrency=2,
        context_length_tokens=512,
        prefill_capacities=(64,),
        scored_capacities=(64,),
    )
    stages, said = Stages(), []
    manifest = prepare(
        resolve(str(default_gguf)),
        tmp_path / "smol",
        options,
        progress=stages,
        notice=said.append,
        threads=2,
    )
    assert said == []
    assert {stage for stage, _, _ in stages.calls} >= set(STAGES) - {
        "download",
        "extract",
        "verify",
    }
    package = open_package(tmp_path / "smol", verify=True)
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "smol" / manifest.tokenizer.file))
    prompt = tokenizer.encode("The capital of France is", add_special_tokens=False).ids
    driver = Driver(package)
    driver.initialize([1], [range(8)])
    tokens = list(driver.prefill(1, prompt, [("prefill-c64", len(prompt))]).tokens)
    for _ in range(3):
        tokens += driver.decode([1])[0].tokens
    assert "Paris" in tokenizer.decode(tokens)
    package.close()
