"""Scheduling policy on the command line: a preset, and one option for every field of it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from flare.options import Preset
from helios.scheduler import InvalidPolicyError, PolicyConfig

NS_PER_MS = 1_000_000
_PRESETS = {
    Preset.BALANCED: PolicyConfig.balanced(),
    Preset.THROUGHPUT: PolicyConfig.throughput(),
}
_PANEL = "Scheduling policy (fields override the preset)"


_TTL_MS_LEAST, _TTL_MS_MOST = 0.000_001, 4.6e12
"""A nanosecond, and the largest count of them that a time can be."""


def _field(option: str, name: str, meaning: str) -> object:
    """Return the option of a field; its help ends with the field's range and its presets."""
    values = PolicyConfig.range_of(name)
    presets = [getattr(preset, name) for preset in _PRESETS.values()]
    if name == "estimate_ttl_ns":
        values = f"{_TTL_MS_LEAST:f} to {_TTL_MS_MOST:g}"
        presets = [ttl_ns / NS_PER_MS for ttl_ns in presets]
    said = [f"{preset} {value:g}" for preset, value in zip(_PRESETS, presets, strict=True)]
    default = f"default {presets[0]:g}" if len({*presets}) == 1 else ", ".join(said)
    help_text = f"{meaning} ({values}; {default})."
    return typer.Option(option, rich_help_panel=_PANEL, help=help_text)


PresetOption = Annotated[
    Preset,
    typer.Option(
        "--scheduler-policy",
        rich_help_panel=_PANEL,
        help="balanced: throughput, cadence and fairness; throughput: no price on cadence.",
    ),
]
OutputTokenValue = Annotated[
    float | None,
    _field(
        "--scheduler-output-token-value",
        "output_token_value",
        "Value of an output token, in prompt tokens",
    ),
]
TokenFairness = Annotated[
    float | None,
    _field("--scheduler-token-fairness", "token_fairness", "Weight of equal token rates"),
]
DeliveryFairness = Annotated[
    float | None,
    _field("--scheduler-delivery-fairness", "delivery_fairness", "Weight of equal delivery rates"),
]
DecodeAgePrice = Annotated[
    float | None,
    _field(
        "--scheduler-decode-age-price",
        "decode_age_price",
        "Price of waiting for output, value/ms^2",
    ),
]
TerminalValue = Annotated[
    float | None,
    _field(
        "--scheduler-terminal-value",
        "terminal_value",
        "Value of retiring a finished request, in prompt tokens",
    ),
]
TerminalAgePrice = Annotated[
    float | None,
    _field(
        "--scheduler-terminal-age-price",
        "terminal_age_price",
        "Price of a finished request's wait, value/ms^2",
    ),
]
AdaptationMs = Annotated[
    float | None,
    _field("--scheduler-adaptation-ms", "adaptation_ms", "How fast prices follow service, in ms"),
]
EstimateTtlMs = Annotated[
    float | None,
    _field(
        "--scheduler-estimate-ttl-ms",
        "estimate_ttl_ns",
        "How long a measured duration stays fresh, in ms",
    ),
]
ArrivalShares = Annotated[
    float | None,
    _field(
        "--scheduler-arrival-shares",
        "arrival_shares",
        "A newcomer's first price, in fair shares of the machine",
    ),
]

PrefillBalance = Annotated[
    float | None,
    _field(
        "--scheduler-prefill-balance",
        "prefill_balance",
        "Weight of all prompts together, in multiples of all running streams",
    ),
]

AdaptiveVerificationAlpha = Annotated[
    float | None,
    _field(
        "--mtp-adaptive-verification-alpha",
        "adaptive_verification_alpha",
        "Exponent on the survival of proposals in the scores of speculative programs; above 1: "
        "wide rounds only for proposals that are nearly certain",
    ),
]
CheckpointExtraWorkFraction = Annotated[
    float | None,
    _field(
        "--scheduler-checkpoint-extra-work-fraction",
        "checkpoint_extra_work_fraction",
        "Extra work for checkpoints of a prompt, as a share of its prefill",
    ),
]
GapObjectiveMs = Annotated[
    float | None,
    _field(
        "--scheduler-gap-objective-ms",
        "gap_objective_ms",
        "Gap that running streams should stay below, in ms; 0: none",
    ),
]
AloneServiceShare = Annotated[
    float | None,
    _field(
        "--scheduler-alone-service-share",
        "alone_service_share",
        "Streams alone: the shortest round with this share of the best rate; 0: by score",
    ),
]
PopulationWeight = Annotated[
    float | None,
    _field(
        "--mtp-population-weight",
        "population_weight",
        "Observations as which a new request counts the acceptance of earlier ones; 0: none",
    ),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    """What a command line says of the scheduling policy."""

    preset: PresetOption = Preset.BALANCED
    output_token_value: OutputTokenValue = None
    token_fairness: TokenFairness = None
    delivery_fairness: DeliveryFairness = None
    decode_age_price: DecodeAgePrice = None
    gap_objective_ms: GapObjectiveMs = None
    terminal_value: TerminalValue = None
    terminal_age_price: TerminalAgePrice = None
    adaptation_ms: AdaptationMs = None
    estimate_ttl_ms: EstimateTtlMs = None
    arrival_shares: ArrivalShares = None
    prefill_balance: PrefillBalance = None
    adaptive_verification_alpha: AdaptiveVerificationAlpha = None
    checkpoint_extra_work_fraction: CheckpointExtraWorkFraction = None
    alone_service_share: AloneServiceShare = None
    population_weight: PopulationWeight = None

    def config(self) -> PolicyConfig:
        """Return the preset with every field that was said. Raises InvalidPolicyError."""
        said = {
            name: value for name, value in dataclasses.asdict(self).items() if value is not None
        }
        preset = said.pop("preset")
        ttl_ms = said.pop("estimate_ttl_ms", None)
        if ttl_ms is not None:
            if not _TTL_MS_LEAST <= ttl_ms <= _TTL_MS_MOST:
                limits = f"from {_TTL_MS_LEAST:f} to {_TTL_MS_MOST:g}"
                raise InvalidPolicyError(f"policy.estimate_ttl_ms must be {limits}, not {ttl_ms!r}")
            said["estimate_ttl_ns"] = round(ttl_ms * NS_PER_MS)
        return dataclasses.replace(_PRESETS[preset], **said)
