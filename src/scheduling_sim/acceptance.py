"""What becomes of proposals, drawn from profiles: the acceptance models of simulated runs.

Luck belongs to output positions: whether a target and a draft agree on the token at a position does
not depend on the round that proposes it. Rounds of two policies therefore meet the same luck where
they propose for the same position, and every draw is a function of seed, request and position.

For a learned proposal at depth d the chain of chances is
    request   r = sigmoid(centre_d + quality + drift * position)     mean over requests: the profile
    token     f uniform around r                                     what the draft can know
    ratio     a = min(1, p/q): 0 or 1 for a share of tokens, else f  mean given f: f
    outcome   accepted with probability a
so the products of `a` (survival) and of `f` (confidence, where it is calibrated) are both unbiased
forecasts of acceptance, survival the sharper one.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Final, NamedTuple

from helios.scheduler import ProposalSource
from scheduling_sim.acceptance_model import RoundDraw
from scheduling_sim.acceptance_profiles import (
    PROFILES,
    Profile,
    centres,
    log_odds,
    probability_of,
    quality,
)
from scheduling_sim.registry import unknown_name
from scheduling_sim.workload.content import content_identity, generator
from scheduling_sim.workload.errors import WorkloadError, require
from scheduling_sim.workload.records import WorkloadRequest

_BEYOND: Final = 64
"""Positions behind an answer's end that a round may still propose for; more reuse the first."""
_DRIFT_BLOCK: Final = 64
"""Output tokens over which drift is held; the curve is a staircase of such steps."""
_LIVE: Final = 1024
"""Requests whose luck is kept at hand; it is made again, equal, when it is asked for later."""


class _Luck(NamedTuple):
    """What chance holds for one request, by output position."""

    token: Sequence[float]
    """Uniform: where the token's chance lies around the request's."""
    ratio: Sequence[float]
    """Uniform: whether target and draft agree or disagree outright."""
    outcome: Sequence[float]
    """Uniform: accepted when below the ratio."""
    noise: Sequence[float]
    """Normal: error of the confidence; empty where the profile has none."""
    copyable: list[int]
    """Tokens from here on that stand in a piece of earlier text; empty until it is asked for."""
    chances: dict[int, tuple[float, ...]]
    """By block of output positions: chance of each next acceptance."""


class ProfiledAcceptance:
    """Implements AcceptanceModel for one seed and a profile that requests may replace by name."""

    __slots__ = ("_centres", "_luck", "_profiles", "_seed")

    def __init__(self, profile: Profile, *, seed: int) -> None:
        require(seed >= 0, f"seed is {seed}; a whole number of at least 0 is right")
        self._seed = seed
        self._profiles: dict[str, Profile] = {"": profile}
        self._centres: dict[str, tuple[float, ...]] = {"": centres(profile)}
        self._luck: dict[tuple[str, int, str], _Luck] = {}

    def draw(
        self, request: WorkloadRequest, output_index: int, depth: int, source: ProposalSource
    ) -> RoundDraw:
        """Return the fate of `depth` proposals behind `output_index` committed output tokens.

        Raises ValueError for a profile that does not exist.
        """
        assert depth >= 1
        assert output_index >= 0
        profile = self._profile_of(request.acceptance)
        luck = self._luck_of(request, profile)
        if source is ProposalSource.COPY:
            if not luck.copyable:
                own_seed = content_identity(self._seed, request.request_id) >> 1
                luck.copyable.extend(_copyable(profile, len(luck.token), own_seed))
            return _copied(profile, luck, output_index, depth)
        assert source is ProposalSource.LEARNED
        chances = self._chances(request.acceptance, profile, luck, output_index, request.request_id)
        return _learned(profile, luck, chances, output_index, depth)

    def _profile_of(self, name: str) -> Profile:
        found = self._profiles.get(name)
        if found is None:
            found = self._profiles[name] = profile_named(name)
            self._centres[name] = centres(found)
        return found

    def _luck_of(self, request: WorkloadRequest, profile: Profile) -> _Luck:
        key = (request.request_id, request.output.tokens, request.acceptance)
        found = self._luck.get(key)
        if found is None:
            if len(self._luck) >= _LIVE:
                del self._luck[next(iter(self._luck))]
            found = self._luck[key] = _luck_for(self._seed, request, profile)
        return found

    def _chances(
        self, name: str, profile: Profile, luck: _Luck, output_index: int, request_id: str
    ) -> tuple[float, ...]:
        block = output_index // _DRIFT_BLOCK if profile.drift else 0
        found = luck.chances.get(block)
        if found is None:
            shift = quality(profile, self._seed, request_id)
            shift += profile.drift * block * _DRIFT_BLOCK / 1000.0
            found = tuple(
                probability_of(centre if abs(centre) >= 40.0 else centre + shift)
                for centre in self._centres[name]
            )
            luck.chances[block] = found
        return found


def _luck_for(seed: int, request: WorkloadRequest, profile: Profile) -> _Luck:
    positions = request.output.tokens + _BEYOND
    random = generator(seed, "luck", request.request_id)
    # Uniforms first and always, so that luck at a position is the same under every profile.
    token, ratio, outcome = random.random((3, positions)).tolist()
    noise = random.standard_normal(positions).tolist() if profile.noise else []
    return _Luck(token, ratio, outcome, noise, [], {})


def _copyable(profile: Profile, positions: int, seed: int) -> list[int]:
    """Return, by position, how many tokens from there on repeat earlier text.

    Pieces and the gaps between them alternate, both geometric. Their means give the share.
    """
    random = generator(seed, "copied")
    share = profile.copy_share
    if 0.0 < share < 1.0 and math.isfinite(profile.copy_spread):
        share = float(random.beta(share * profile.copy_spread, (1 - share) * profile.copy_spread))
    if share <= 0.0 or share >= 1.0:
        return list(range(positions, 0, -1)) if share >= 1.0 else [0] * positions
    gap = profile.copy_run * (1.0 - share) / share
    # A geometric length is at least 1: a shorter mean gap is one that is often left out.
    found: list[int] = []
    is_piece = bool(random.random() < share)
    while len(found) < positions:
        if is_piece:
            length = int(random.geometric(1.0 / profile.copy_run))
            found.extend(range(length, 0, -1))
        elif gap >= 1.0:
            found.extend([0] * min(positions, int(random.geometric(1.0 / gap))))
        elif random.random() < gap:
            found.append(0)
        is_piece = not is_piece
    return found[:positions]


def _learned(
    profile: Profile, luck: _Luck, chances: Sequence[float], output_index: int, depth: int
) -> RoundDraw:
    confidence: list[float] = []
    survival: list[float] = []
    accepted, is_taken = 0, True
    joint = product = 1.0
    deepest, positions = len(chances) - 1, len(luck.token)
    spread, certainty = profile.token_spread, profile.certainty
    is_calibrated = profile.is_calibrated
    for index in range(depth):
        at = (output_index + index) % positions
        mean = chances[index] if index < deepest else chances[deepest]
        chance = mean + spread * min(mean, 1.0 - mean) * (2.0 * luck.token[at] - 1.0)
        drawn = luck.ratio[at]
        ratio = chance
        if drawn < certainty:
            ratio = 1.0 if drawn < certainty * chance else 0.0
        product *= ratio
        survival.append(product)
        is_taken = is_taken and luck.outcome[at] < ratio
        accepted += is_taken
        joint *= chance if is_calibrated else _believed(profile, chance, luck.noise, at)
        confidence.append(joint)
    return RoundDraw(accepted, confidence, survival)


def _copied(profile: Profile, luck: _Luck, output_index: int, depth: int) -> RoundDraw:
    positions = len(luck.copyable)
    at = output_index % positions
    accepted = min(depth, luck.copyable[at])
    survival = [1.0] * accepted + [0.0] * (depth - accepted)
    joint, confidence = 1.0, []
    for index in range(depth):
        chance = 1.0 - 1.0 / profile.copy_run if index else profile.copy_share
        if profile.copy_share >= 1.0:
            chance = 1.0
        if not profile.is_calibrated:
            chance = _believed(profile, chance, luck.noise, (at + index) % positions)
        joint *= chance
        confidence.append(joint)
    return RoundDraw(accepted, confidence, survival)


def _believed(profile: Profile, chance: float, noise: Sequence[float], at: int) -> float:
    """Return the confidence in a token of that chance at an output position."""
    error = profile.noise * noise[at] if noise else 0.0
    return probability_of(profile.offset + profile.slope * log_odds(chance) + error)


# By name ------------------------------------------------------------------------------------------


def acceptance_names() -> dict[str, str]:
    """Return every profile's name with one line about it."""
    return {name: summary for name, (summary, _) in PROFILES.items()}


def profile_named(name: str) -> Profile:
    """Return the profile of that name. Raises ValueError for one that does not exist."""
    if name not in PROFILES:
        raise unknown_name("acceptance profile", name, PROFILES)
    return PROFILES[name][1]


def acceptance(name: str, *, seed: int = 0, **options: str | float) -> ProfiledAcceptance:
    """Return the model of a profile, some of its figures replaced.

    `options` are fields of Profile; `survival` is text such as `0.7,0.4,0.2`. They change the
    profile of the run, not those that requests name themselves. Raises ValueError.
    """
    profile = profile_named(name)
    known = [field.name for field in dataclasses.fields(Profile)]
    changes: dict[str, object] = {}
    for option, value in options.items():
        if option not in known:
            raise WorkloadError(
                f"acceptance {name!r} has no option {option!r}; it has {', '.join(known)}"
            )
        changes[option] = (
            _numbers(option, value) if option == "survival" else _number(option, value)
        )
    return ProfiledAcceptance(dataclasses.replace(profile, **changes), seed=seed)  # type: ignore[arg-type]


def _numbers(option: str, value: str | float) -> tuple[float, ...]:
    return tuple(_number(option, part) for part in str(value).split(","))


def _number(option: str, value: str | float) -> float:
    try:
        return float(value)
    except ValueError:
        raise WorkloadError(f"acceptance: {option} is {value!r}; a number is right") from None
