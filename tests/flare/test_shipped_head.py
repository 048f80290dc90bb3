"""The default model with the head that comes with flare, over HTTP: single steps' answers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.test_speculation import Server
from tests.flare.tried_first import prepare_tried_first

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
QUESTIONS = (
    "Why is the sky blue?",
    "List five uses of a paper clip.",
    "Write a short story about a lighthouse keeper.",
    "Repeat this twice: the quick brown fox jumps over the lazy dog.",
    "What is the capital of Norway, and what is it known for?",
)
SIZES = ("--concurrency", "2", "--request-buckets", "2", "--prefill-capacities", "64")
MODES = {
    "off": (),
    "learned": ("--speculation-mode", "fixed", "--draft-tokens", "2"),
    "both": (),
}
OFFERED = "flare_speculative_depth_offered_total"
ACCEPTED = "flare_speculative_accepted_tokens_total"


def body_of(question: str) -> dict[str, Any]:
    prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return {"prompt": prompt, "max_tokens": 40, "temperature": 0}


def test_greedy_answers_do_not_depend_on_the_shipped_head(
    default_gguf: Path, tmp_path: Path
) -> None:
    options = ["--speculation", "both", "--draft-tokens", "2", "--threads", "1", *SIZES]
    directory = str(prepare_tried_first(default_gguf, options, tmp_path / "package"))
    bodies = [body_of(question) for question in QUESTIONS]
    with ExitStack() as stack:
        answers = {}
        for mode, more in MODES.items():
            arguments = [directory, "--speculation", mode, "--served-model-name", "tiny", *more]
            url, _ = stack.enter_context(running(arguments, tmp_path / f"{mode}.log"))
            server = Server(url)
            stack.callback(server.client.close)
            answers[mode] = server.ask_all(bodies, 2)
            found = server.metrics()
            if mode != "off":
                # A server that may choose may find rounds too slow once it has tried them.
                least = 10 if "fixed" in more else 0
                assert found[f'{OFFERED}{{source="learned",depth="1"}}'] > least
                assert found[ACCEPTED] > least
    assert len({text for text, *_ in answers["off"]}) == len(QUESTIONS)
    assert answers["learned"] == answers["off"]
    assert answers["both"] == answers["off"]
