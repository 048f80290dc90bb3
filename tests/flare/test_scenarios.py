"""The design's HTTP scenarios on a real server with `openai` client code.

Every answer must be the one that the same prompt gets on an idle server: neighbours, padding and
the way a prompt was cut into chunks change nothing (docs/design/programs.md 1.4).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.flare.flare_process import running
from tests.flare.test_run import HAS_COMPILER
from tests.flare.tiny_directory import write_tiny_directory
from tests.flare.tried_first import prepare_tried_first, proposes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_COMPILER, reason="native programs need a C compiler"),
]
SLOTS = 4
SHORT, LONG = 20, 300


class Asker:
    """Asks the served model; remembers what each prompt gets alone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self._alone: dict[tuple[str, int], str] = {}

    def ask(self, prompt: str, tokens: int) -> str:
        stream = self.stream(prompt, tokens)
        return "".join(chunk.choices[0].text for chunk in stream if chunk.choices)

    def stream(self, prompt: str, tokens: int) -> openai.Stream[openai.types.Completion]:
        return self.client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=tokens,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )

    def alone(self, prompt: str, tokens: int) -> str:
        key = (prompt, tokens)
        if key not in self._alone:
            self._alone[key] = self.ask(prompt, tokens)
            assert self._alone[key], "an empty answer would compare equal to anything lost"
        return self._alone[key]

    def together(self, jobs: Sequence[tuple[str, int]]) -> None:
        """Ask all at once, and compare every answer with the one on an idle server."""
        expected = [self.alone(*job) for job in jobs]
        with ThreadPoolExecutor(len(jobs)) as pool:
            assert list(pool.map(lambda job: self.ask(*job), jobs)) == expected
        self.assert_idle()

    def gauge(self, name: str) -> float:
        text = httpx.get(f"{self.url}/metrics").text
        found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
        assert found, f"no metric {name}"
        return float(found[1])

    def assert_idle(self) -> None:
        """Every page and row comes back, soon after the last answer."""
        deadline = time.monotonic() + 20
        while self.gauge("flare_pages_used") or self.gauge("flare_rows_used"):
            assert time.monotonic() < deadline, "pages or rows were not given back"
            time.sleep(0.05)


def prompt(number: int, length: int) -> str:
    """Return a prompt of exactly that many tokens (the tiny model's tokens are bytes)."""
    return (f"{number}: " + "the quick brown fox " * 40)[:length]


MODES = {
    "ordinary": ["--speculation", "off"],
    "adaptive": ["--speculation", "copy"],
    "fixed": ["--speculation", "copy", "--speculation-mode", "fixed", "--draft-tokens", "3"],
}


@pytest.fixture(scope="module", params=MODES)
def asker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Asker]:
    base = tmp_path_factory.mktemp("scenarios")
    model = write_tiny_directory(base / "tiny")
    options = ["--concurrency", str(SLOTS), "--prefill-capacities", "16,64", "--threads", "1"]
    package = prepare_tried_first(
        model, [*options, "--speculation", "copy"], base / "package", proposes
    )
    with running([str(package), *MODES[request.param]], base / "log") as (url, _):
        asker = Asker(url)
        yield asker
        asker.client.close()


def test_each_mode_runs_programs_of_its_own(asker: Asker, request) -> None:
    """Text that must come is proposed, and rounds are tried first: an adaptive server has some."""
    form = {"guided_regex": "(abcdabcd){20}"}
    for _ in range(2):
        asker.client.completions.create(
            model="tiny", prompt="ab", max_tokens=200, temperature=0, extra_body=form
        )
    text = httpx.get(f"{asker.url}/metrics").text
    ran = set(re.findall(r'^flare_frames_total{graph="(.+)"}', text, re.MULTILINE))
    ran = {name for name in ran if name.startswith(("decode", "speculative"))}
    mode = request.node.callspec.params["asker"]
    if mode == "ordinary":
        assert {name.partition("-")[0] for name in ran} == {"decode"}
    elif mode == "fixed":
        assert all("-d3-w4-copy" in name for name in ran), ran
    else:
        assert any(name.endswith("-copy") for name in ran), ran


def test_four_slots_serve_more_requests_than_slots(asker: Asker) -> None:
    asker.together([(prompt(number, SHORT), 24) for number in range(3 * SLOTS)])


def test_concurrent_long_prompts(asker: Asker) -> None:
    asker.together([(prompt(number, LONG + number), 8) for number in range(SLOTS)])


@pytest.mark.parametrize("streams", [2, 4])
def test_decode_streams(asker: Asker, streams: int) -> None:
    asker.together([(prompt(number, SHORT), 100) for number in range(streams)])


def test_short_against_long_prompts(asker: Asker) -> None:
    asker.together([(prompt(n, LONG if n % 2 else SHORT), 16) for n in range(2 * SLOTS)])


def test_a_long_prompt_arriving_during_decode(asker: Asker) -> None:
    running_jobs = [(prompt(number, SHORT), 150) for number in range(3)]
    late = (prompt(9, LONG), 8)
    expected = [asker.alone(*job) for job in (*running_jobs, late)]
    streams = [asker.stream(*job) for job in running_jobs]
    texts = [next(iter(stream)).choices[0].text for stream in streams]
    late_text = asker.ask(*late)
    for index, stream in enumerate(streams):
        texts[index] += "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    assert [*texts, late_text] == expected
    asker.assert_idle()


def test_cancellation_followed_by_slot_reuse(asker: Asker) -> None:
    """Field reports 14 and 16: a client that left frees its slot, and harms nobody else."""
    survivor = (prompt(50, SHORT), 120)
    expected = asker.alone(*survivor)
    with ThreadPoolExecutor(1) as pool:
        kept = pool.submit(asker.ask, *survivor)
        for number in range(6):
            abandoned = asker.stream(prompt(60 + number, LONG if number % 2 else SHORT), 400)
            if number % 3:
                next(iter(abandoned))
            abandoned.close()
        assert kept.result() == expected
    asker.assert_idle()
    asker.together([(prompt(number, SHORT), 24) for number in range(SLOTS)])
