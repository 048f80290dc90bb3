"""A recorded vLLM run in the layout of LLMServingSim's bench: requests, settings, machine.

RUN/vllm/requests.jsonl   one request per line: lengths and the engine's times in seconds
RUN/vllm/meta.json        the engine's settings, from vLLM 0.19 on its block count too
RUN/config.json           the machine and its memory
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

NS_PER_S: Final = 1_000_000_000
VLLM_BLOCK_TOKENS: Final = 16
"""vLLM's block where the record does not say."""


class RealRunError(ValueError):
    """A file of a recorded run is not what it should be; names the file and, if any, the line."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealRequest:
    """One request as the engine saw it; times are ns from the first request's arrival there."""

    request_id: str
    prompt_tokens: int
    output_tokens: int
    queued_ns: int
    """The engine took it from its inbox, which it reads between two steps."""
    first_token_ns: int
    last_token_ns: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RealRun:
    """A run and the settings that its replay needs."""

    name: str
    hardware: str
    model: str
    devices: int
    memory_bytes: int
    """What vLLM may use on all devices together: weights and cache."""
    max_sequences: int
    max_batched_tokens: int
    block_tokens: int
    blocks: int | None
    """Blocks of the cache; None where the run did not record them."""
    requests: tuple[RealRequest, ...]
    """In order of arrival at the engine."""


def read_run(folder: Path) -> RealRun:
    """Read a recorded run. Raises RealRunError for a missing or malformed file."""
    meta_path, config_path = folder / "vllm" / "meta.json", folder / "config.json"
    meta, config = _mapping(meta_path), _mapping(config_path)
    try:
        instance = config["nodes"][0]["instances"][0]
        memory = instance["npu_mem"]
        settings = meta["engine_kwargs"]
        cache = meta.get("kv_cache") or {}
        gib = float(memory["mem_size"]) * float(memory["mem_util"]) * int(instance["num_npus"])
        return RealRun(
            name=f"{instance['hardware']}/{str(instance['model_name']).rsplit('/', 1)[-1]}",
            hardware=str(instance["hardware"]),
            model=str(instance["model_name"]),
            devices=int(instance["num_npus"]),
            memory_bytes=round(gib * (1 << 30)),
            max_sequences=int(settings["max_num_seqs"]),
            max_batched_tokens=int(settings["max_num_batched_tokens"]),
            block_tokens=int(cache.get("block_size") or VLLM_BLOCK_TOKENS),
            blocks=cache.get("num_gpu_blocks"),
            requests=_requests(folder / "vllm" / "requests.jsonl"),
        )
    except (KeyError, IndexError, TypeError) as error:
        raise RealRunError(
            f"{meta_path} and {config_path}: {error!r} is missing or of a wrong type"
        ) from error


def _mapping(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RealRunError(f"{path}: {error}; a JSON object is needed") from error
    if not isinstance(document, dict):
        raise RealRunError(f"{path}: a JSON object is needed, not {type(document).__name__}")
    return document


def _requests(path: Path) -> tuple[RealRequest, ...]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise RealRunError(f"{path}: {error}") from error
    entries = []
    for number, line in enumerate(lines, 1):
        try:
            entries.append(_entry(json.loads(line)))
        except (KeyError, TypeError, ValueError) as error:
            raise RealRunError(
                f"{path}:{number}: {error!r}; see {__name__} for what is right"
            ) from error
    if not entries:
        raise RealRunError(f"{path}: no requests")
    origin = min(queued for _, _, _, (queued, _, _) in entries)
    ordered = sorted(entries, key=lambda entry: entry[3][0])
    return tuple(
        RealRequest(
            request_id=request_id,
            prompt_tokens=prompt,
            output_tokens=output,
            queued_ns=round((queued - origin) * NS_PER_S),
            first_token_ns=round((first - origin) * NS_PER_S),
            last_token_ns=round((last - origin) * NS_PER_S),
        )
        for request_id, prompt, output, (queued, first, last) in ordered
    )


def _entry(document: Mapping[str, Any]) -> tuple[str, int, int, tuple[float, float, float]]:
    prompt, output = int(document["input_toks"]), int(document["output_toks"])
    if prompt < 1 or output < 1:
        raise ValueError(f"{prompt} prompt and {output} output tokens; both must be at least 1")
    queued, first, last = (
        float(document[name]) for name in ("queued_ts", "first_token_ts", "last_token_ts")
    )
    if not queued <= first <= last:
        raise ValueError(f"queued at {queued}, tokens from {first} to {last}; times must not fall")
    return str(document["request_id"]), prompt, output, (queued, first, last)
