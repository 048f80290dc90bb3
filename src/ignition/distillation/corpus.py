"""The texts that a head is trained on: written by the target, kept as shards in a directory.

Shard i depends on the seed and on i alone, so an interrupted run goes on where it stopped and gets
the same texts.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from helios.engine.ports import SamplingParams
from ignition.distillation.target import Target, Text
from ignition.draft.errors import DraftError

Prompts = Sequence[Sequence[int]]


class Progress(Protocol):
    """Hears how far a training is."""

    def __call__(self, stage: str, done: int, total: int, detail: str = "") -> None:
        """`done` of `total` steps of a stage are done."""
        ...


TEMPERATURES: Final = (0.0, 0.7, 1.0, 0.0)
"""Of the texts in turn: half are greedy, because most requests with a draft are."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CorpusPlan:
    """What is to be written."""

    shards: int
    output_tokens: int
    """Of each text, at most."""
    seed: int
    stop_token_ids: tuple[int, ...]


def shard_path(directory: Path, index: int) -> Path:
    """Return where a shard lies."""
    return directory / f"texts-{index:05d}.safetensors"


def write_corpus(
    target: Target, prompts: Prompts, plan: CorpusPlan, directory: Path, progress: Progress
) -> None:
    """Write the shards that are missing. Raises DraftError when no prompt is short enough."""
    room = target.context_tokens - plan.output_tokens
    fitting = [prompt for prompt in prompts if 0 < len(prompt) <= room]
    if not fitting:
        raise DraftError(f"none of {len(prompts)} prompts has 1 to {room} tokens")
    order = list(range(len(fitting)))
    random.Random(plan.seed).shuffle(order)
    directory.mkdir(parents=True, exist_ok=True)
    progress("generate", 0, plan.shards)
    for index in range(plan.shards):
        path = shard_path(directory, index)
        if not path.is_file():
            first = index * target.lanes
            chosen = [fitting[order[(first + lane) % len(order)]] for lane in range(target.lanes)]
            samplings = [_sampling(plan, first + lane) for lane in range(target.lanes)]
            save_texts(path, target.write(chosen, samplings, plan.output_tokens))
        progress("generate", index + 1, plan.shards)


def _sampling(plan: CorpusPlan, number: int) -> SamplingParams:
    return SamplingParams(
        temperature=TEMPERATURES[number % len(TEMPERATURES)],
        seed=plan.seed * 1_000_003 + number,
        stop_token_ids=plan.stop_token_ids,
    )


def save_texts(path: Path, texts: Sequence[Text]) -> None:
    """Write texts as one file, which appears whole or not at all."""
    ends = np.cumsum([len(text.token_ids) for text in texts])
    partial = path.with_suffix(".partial")
    save_file(
        {
            "token_ids": np.concatenate([text.token_ids for text in texts]),
            "hidden": np.concatenate([text.hidden for text in texts]),
            "ends": ends.astype(np.int32),
            "prompt_tokens": np.asarray([text.prompt_tokens for text in texts], np.int32),
            "temperatures": np.asarray([text.temperature for text in texts], np.float32),
        },
        partial,
    )
    partial.replace(path)


def load_texts(path: Path) -> list[Text]:
    """Read the texts of a shard. Raises DraftError when it is not one."""
    try:
        stored = load_file(path)
        ends = stored["ends"].tolist()
        starts = [0, *ends[:-1]]
        prompts, temperatures = stored["prompt_tokens"], stored["temperatures"]
        each = zip(starts, ends, prompts.tolist(), temperatures.tolist(), strict=True)
        return [
            Text(stored["token_ids"][start:end], stored["hidden"][start:end], prompt, temperature)
            for start, end, prompt, temperature in each
        ]
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise DraftError(
            f"{path.name}: not a shard of texts ({error}); delete it to write it again"
        ) from error
