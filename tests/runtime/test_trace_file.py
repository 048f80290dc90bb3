"""TraceFile: whole lines, and a failing disk ends the trace and nothing else."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from helios.runtime.trace_file import TraceFile


def test_records_are_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    trace = TraceFile.create(path)
    trace.write({"type": "header", "version": 1, "model": "é\n"})
    trace.write({"type": "plan", "score": 1.5, "none": None, "lanes": [1, 2]})
    assert path.read_bytes() == b"", "buffered until a flush"
    trace.flush()
    lines = path.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"type": "header", "version": 1, "model": "é\n"},
        {"type": "plan", "score": 1.5, "none": None, "lanes": [1, 2]},
    ]
    trace.close()
    trace.close()
    trace.write({"after": "close"})
    assert len(path.read_text().splitlines()) == 2


def test_a_restarted_engine_keeps_the_trace_of_its_predecessor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.jsonl"
    for life in ("first", "second", "third"):
        trace = TraceFile.create(path)
        trace.write({"life": life})
        trace.close()
    names = ["trace.jsonl", "trace.jsonl.2", "trace.jsonl.3"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
    assert [json.loads((tmp_path / name).read_text())["life"] for name in names] == [
        "first",
        "second",
        "third",
    ]
    assert "goes on in trace.jsonl.3" in capsys.readouterr().err


class FullDisk(io.BytesIO):
    def write(self, data: object) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk_ends_the_trace_once(capsys: pytest.CaptureFixture[str]) -> None:
    trace = TraceFile(Path("somewhere") / "trace.jsonl", FullDisk())
    for _ in range(3):
        trace.write({"type": "plan"})
        trace.flush()
    complaint = capsys.readouterr().err
    assert complaint.count("No space left") == 1
    assert "trace.jsonl" in complaint


def test_a_place_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        TraceFile.create(tmp_path / "missing" / "trace.jsonl")
