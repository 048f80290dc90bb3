"""Acceptance profiles: how many of a round's proposals a target takes, as figures with names.

A profile fixes means over many requests; `acceptance.py` draws from it. The vector of the strong
draft and the ends of the MTP head's are published figures (issue 4); the other numbers are settings
of this project, chosen to span what is published.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Final

import numpy as np
import numpy.typing as npt

from scheduling_sim.workload.content import generator
from scheduling_sim.workload.errors import require

_POPULATION: Final = 4096
_FAR: Final = 40.0
"""Log-odds that a double cannot tell from certainty when its complement is multiplied."""

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of request, for both sources of proposals."""

    survival: tuple[float, ...]
    """Mean probability that the target takes the first 1, 2, ... learned proposals. Longer prefixes
    go on with the last ratio."""
    spread: float = 12.0
    """Concentration of the beta distribution of a request's first acceptance around the profile's;
    infinite: all requests are alike."""
    drift: float = 0.0
    """Change of the log-odds of every acceptance per 1,000 output tokens."""
    token_spread: float = 0.8
    """How far tokens differ: a token's chance is uniform within this share of what is possible
    around the request's own; 0 to 1."""
    certainty: float = 0.5
    """Share of tokens whose min(1, p/q) is 0 or 1, where target and draft agree or disagree
    outright; for the others it is the token's chance."""
    slope: float = 1.0
    """Confidence is sigmoid(offset + slope * logit(chance) + noise * normal) per token: 1, 0, 0 is
    calibrated, a slope above 1 is overconfident."""
    offset: float = 0.0
    noise: float = 0.0
    copy_share: float = 0.05
    """Share of the answer's tokens that stand in pieces that the text had before."""
    copy_run: float = 8.0
    """Mean tokens of such a piece, geometric; copied proposals are right to its end, then wrong."""
    copy_spread: float = 4.0
    """Concentration of a request's share around `copy_share`; infinite: all alike."""

    def __post_init__(self) -> None:
        falls = all(above >= below for above, below in itertools.pairwise((1.0, *self.survival, 0)))
        require(
            bool(self.survival) and falls,
            f"survival is {self.survival}; probabilities that fall from at most 1 are right",
        )
        for name in ("spread", "copy_spread"):
            value = getattr(self, name)
            require(value > 0.0, f"{name} is {value}; a positive concentration is right")
        for name in ("token_spread", "certainty", "copy_share"):
            value = getattr(self, name)
            require(0.0 <= value <= 1.0, f"{name} is {value}; from 0 to 1 is right")
        for name in ("drift", "slope", "offset", "noise"):
            value = getattr(self, name)
            require(math.isfinite(value), f"{name} is {value}; a finite number is right")
        require(self.noise >= 0.0, f"noise is {self.noise}; at least 0 is right")
        require(
            1.0 <= self.copy_run < math.inf, f"copy_run is {self.copy_run}; at least 1 is right"
        )

    @property
    def is_calibrated(self) -> bool:
        """Tell whether confidence is the chance itself."""
        return (self.slope, self.offset, self.noise) == (1.0, 0.0, 0.0)


STRONG: Final = (0.71, 0.52, 0.39, 0.30, 0.24, 0.20, 0.17, 0.14)
MTP: Final = (0.72, 0.51, 0.36, 0.26, 0.18, 0.13, 0.09)
WEAK: Final = (0.42, 0.16, 0.06, 0.022, 0.008)

PROFILES: Final[dict[str, tuple[str, Profile]]] = {
    "strong-draft": (
        "A learned draft of published strength: 71, 52, 39, 30, 24, 20, 17, 14 %.",
        Profile(survival=STRONG),
    ),
    "mtp": (
        "A multi-token-prediction head: 72 % at the first position, 9 % at the seventh.",
        Profile(survival=MTP),
    ),
    "weak-draft": ("A weak draft: 42, 16, 6, 2, 1 %.", Profile(survival=WEAK)),
    "copy-heavy": (
        "Most of the answer repeats earlier text in long pieces; the draft is a strong one.",
        Profile(survival=STRONG, copy_share=0.7, copy_run=40.0),
    ),
    "drifting": (
        "A strong draft that loses its grip: log-odds fall by 1.5 per 1,000 tokens.",
        Profile(survival=STRONG, drift=-1.5),
    ),
    "overconfident": (
        "A strong draft whose confidence is too high by 1 in log-odds, too steep and noisy.",
        Profile(survival=STRONG, slope=1.5, offset=1.0, noise=0.5),
    ),
    "underconfident": (
        "A strong draft whose confidence is too low by 1 in log-odds, too flat and noisy.",
        Profile(survival=STRONG, slope=0.6, offset=-1.0, noise=0.5),
    ),
    "all": (
        "Every proposal is accepted.",
        Profile(survival=(1.0,), spread=math.inf, copy_share=1.0, copy_spread=math.inf),
    ),
    "nothing": (
        "No proposal is accepted.",
        Profile(survival=(0.0,), spread=math.inf, copy_share=0.0, copy_spread=math.inf),
    ),
}


def log_odds(probability: float) -> float:
    """Return ln(p / (1 - p)), at most 40 in size."""
    if probability <= 0.0:
        return -_FAR
    if probability >= 1.0:
        return _FAR
    return max(-_FAR, min(_FAR, math.log(probability / (1.0 - probability))))


def probability_of(odds: float) -> float:
    """Return 1 / (1 + exp(-odds)); exactly 0 or 1 from 40 on, so that certainty stays certain."""
    if odds >= _FAR:
        return 1.0
    if odds <= -_FAR:
        return 0.0
    return 1.0 / (1.0 + math.exp(-odds))


@functools.lru_cache(maxsize=64)
def centres(profile: Profile) -> tuple[float, ...]:
    """Return the log-odds of each next acceptance for a request of quality zero.

    A request's quality shifts all of them alike, so a good request is good at every depth. Then the
    mean over requests of a product is not the product of means; the centres are therefore solved,
    depth by depth, so that the mean joint survival over a population is the profile's.
    """
    qualities = np.asarray([quality(profile, index) for index in range(_population(profile))])
    joint = np.ones_like(qualities)
    found: list[float] = []
    for wanted in profile.survival:
        odds = _solve(joint, qualities, wanted)
        found.append(odds)
        joint = joint * _sigmoid(odds + qualities)
    return tuple(found)


def _population(profile: Profile) -> int:
    return 1 if math.isinf(profile.spread) else _POPULATION


def quality(profile: Profile, *request: int | str) -> float:
    """Return a request's quality: its shift of the log-odds, drawn from the beta around the first.

    Depends on the profile's figures and the request's name alone.
    """
    first = profile.survival[0]
    if math.isinf(profile.spread) or not 0.0 < first < 1.0:
        return 0.0
    random = generator(0, "quality", *request)
    drawn = random.beta(first * profile.spread, (1.0 - first) * profile.spread)
    # Beyond 8 the rest of the beta's tail holds less than 0.1 % of the mean.
    return max(-8.0, min(8.0, log_odds(float(drawn)) - log_odds(first)))


def _solve(joint: Floats, qualities: Floats, wanted: float) -> float:
    """Return the log-odds at which the mean of joint * sigmoid is `wanted`, by bisection."""
    if wanted >= float(joint.mean()):
        return _FAR
    if wanted <= 0.0:
        return -_FAR
    low, high = -_FAR, _FAR
    for _ in range(60):
        middle = (low + high) / 2.0
        if float((joint * _sigmoid(middle + qualities)).mean()) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2.0


def _sigmoid(odds: Floats) -> Floats:
    found: Floats = 1.0 / (1.0 + np.exp(-np.clip(odds, -_FAR, _FAR)))
    return found
