"""Scheduling policy on the command line: a preset, and one option for every field of it."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from flare.options import Preset
from helios.scheduler import PolicyConfig

_PANEL = "Scheduling policy (fields override the preset)"


def _field(option: str, meaning: str) -> object:
    return typer.Option(option, rich_help_panel=_PANEL, help=meaning)


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
    _field("--scheduler-output-token-value", "Value of an output token, in prompt tokens."),
]
TokenFairness = Annotated[
    float | None, _field("--scheduler-token-fairness", "Weight of equal token rates.")
]
DeliveryFairness = Annotated[
    float | None, _field("--scheduler-delivery-fairness", "Weight of equal delivery rates.")
]
DecodeAgePrice = Annotated[
    float | None,
    _field("--scheduler-decode-age-price", "Price of waiting for output, value/ms^2."),
]
TerminalValue = Annotated[
    float | None,
    _field("--scheduler-terminal-value", "Value of retiring a finished request, in prompt tokens."),
]
TerminalAgePrice = Annotated[
    float | None,
    _field("--scheduler-terminal-age-price", "Price of a finished request's wait, value/ms^2."),
]
AdaptationMs = Annotated[
    float | None, _field("--scheduler-adaptation-ms", "How fast prices follow service, in ms.")
]
EstimateTtlMs = Annotated[
    float | None,
    _field("--scheduler-estimate-ttl-ms", "How long a measured duration stays fresh, in ms."),
]
ArrivalShares = Annotated[
    float | None,
    _field(
        "--scheduler-arrival-shares", "A newcomer's first price, in fair shares of the machine."
    ),
]

PrefillBalance = Annotated[
    float | None,
    _field(
        "--scheduler-prefill-balance",
        "Weight of all prompts together, in multiples of all running streams.",
    ),
]

AdaptiveVerificationAlpha = Annotated[
    float | None,
    _field(
        "--mtp-adaptive-verification-alpha",
        "Exponent on the survival of proposals in the scores of speculative programs (1: as it is "
        "expected; above: wide rounds only for proposals that are nearly certain).",
    ),
]
CheckpointExtraWorkFraction = Annotated[
    float | None,
    _field(
        "--scheduler-checkpoint-extra-work-fraction",
        "Extra work for checkpoints of a prompt, as a share of its prefill (0 to 1).",
    ),
]
GapObjectiveMs = Annotated[
    float | None,
    _field(
        "--scheduler-gap-objective-ms",
        "Gap that running streams should stay below, in ms (0: none).",
    ),
]
AloneServiceShare = Annotated[
    float | None,
    _field(
        "--scheduler-alone-service-share",
        "Streams alone: the shortest round with this share of the best rate (0: by score; "
        "balanced: 0.99).",
    ),
]
PopulationWeight = Annotated[
    float | None,
    _field(
        "--mtp-population-weight",
        "Observations as which a new request counts the acceptance of earlier ones (0: none; "
        "balanced: 8).",
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
        is_balanced = said.pop("preset") is Preset.BALANCED
        ttl_ms = said.pop("estimate_ttl_ms", None)
        if ttl_ms is not None:
            said["estimate_ttl_ns"] = int(ttl_ms * 1_000_000)
        base = PolicyConfig.balanced() if is_balanced else PolicyConfig.throughput()
        return dataclasses.replace(base, **said)
