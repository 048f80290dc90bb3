"""Against whom Helios wins, ties and loses, and in what: every statement is counted from rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from scheduling_sim.study.cells import Row, Verdict, number


class Measure(NamedTuple):
    """What is compared, and from which difference on it counts."""

    key: str
    counts_from: float
    more_is_better: bool = False

    @property
    def word(self) -> str:
        """The measure without its unit."""
        return self.key.removesuffix(" %").removesuffix(" ms")


MEASURES: Final = (
    Measure("within objectives %", 0.02, more_is_better=True),
    Measure("TTFT P50 ms", 0.05),
    Measure("TTFT P99 ms", 0.05),
    Measure("gap P99 ms", 0.05),
    Measure("worst gap ms", 0.05),
    Measure("whole answer mean ms", 0.05),
    Measure("tok/s", 0.02, more_is_better=True),
    Measure("service gap", 0.05),
)
"""The last only where tenants share the machine."""
_ORDER: Final = ("wins", "ties", "loses")


class Duel(NamedTuple):
    """One figure of ours against one rival's."""

    workload: str
    rival: str
    word: str
    """Of the measure."""
    result: str
    """`wins`, `ties` or `loses`."""


def standing(ours: float, theirs: float, measure: Measure) -> str:
    """Return `wins`, `ties` or `loses` for our figure against theirs."""
    better, worse = (ours, theirs) if measure.more_is_better else (theirs, ours)
    if better > worse * (1 + measure.counts_from):
        return "wins"
    return "loses" if worse > better * (1 + measure.counts_from) else "ties"


def duels(rows: Mapping[str, Row], ours: str) -> list[Duel]:
    """Return every comparison that both rows have a figure for, workload by workload."""
    found = []
    for mine in rows.values():
        if mine["policy"] != ours:
            continue
        for row in rows.values():
            if row is mine or row["workload"] != mine["workload"]:
                continue
            found += [
                Duel(
                    str(row["workload"]),
                    str(row["policy"]),
                    measure.word,
                    standing(number(mine, measure.key), number(row, measure.key), measure),
                )
                for measure in MEASURES
                if None not in (mine.get(measure.key), row.get(measure.key))
            ]
    return found


def tables(found: Sequence[Duel]) -> str:
    """Return wins, ties and losses by rival and measure, and by workload whom we lose to."""
    if not found:
        return ""
    words = _distinct(duel.word for duel in found)
    by_rival = [
        [
            rival,
            *(_counts([d for d in found if (d.rival, d.word) == (rival, word)]) for word in words),
        ]
        for rival in _distinct(duel.rival for duel in found)
    ]
    by_load = [
        [
            load,
            *(
                _losses([d for d in found if (d.workload, d.word) == (load, word)])
                for word in words
            ),
        ]
        for load in _distinct(duel.workload for duel in found)
    ]
    return "\n\n".join(
        [
            "Workloads won / tied / lost against each policy:",
            _table(["against", *words], by_rival),
            "Whom Helios loses to (`-` nobody, `all` everybody):",
            _table(["workload", *words], by_load),
        ]
    )


def verdicts(found: Sequence[Duel]) -> list[Verdict]:
    """Count each measure over everything, and say against whom nothing or everything is lost."""
    return [
        Verdict(
            word,
            _totals([duel for duel in found if duel.word == word]),
            "",
            is_met=True,
            why=_told([duel for duel in found if duel.word == word]),
        )
        for word in _distinct(duel.word for duel in found)
    ]


def _told(found: Sequence[Duel]) -> str:
    """Return a sentence that names every rival once, by what it is never, always or at times."""
    kinds: dict[str, list[str]] = {}
    for rival in _distinct(duel.rival for duel in found):
        results = [duel.result for duel in found if duel.rival == rival]
        lost = results.count("loses")
        if lost == len(results):
            kinds.setdefault("loses everywhere to", []).append(rival)
        elif lost:
            kinds.setdefault("loses at times to", []).append(f"{rival} ({lost} of {len(results)})")
        elif results.count("wins") == len(results):
            kinds.setdefault("wins everywhere against", []).append(rival)
        else:
            kinds.setdefault("never loses to", []).append(rival)
    order = (
        "wins everywhere against",
        "never loses to",
        "loses at times to",
        "loses everywhere to",
    )
    parts = [f"{kind} {', '.join(kinds[kind])}" for kind in order if kind in kinds]
    return f"Helios {'; '.join(parts)}."


def _totals(found: Sequence[Duel]) -> str:
    wins, ties, losses = (sum(duel.result == word for duel in found) for word in _ORDER)
    return f"{wins} won, {ties} tied, {losses} lost"


def _counts(found: Sequence[Duel]) -> str:
    return " / ".join(str(sum(d.result == word for d in found)) for word in _ORDER) if found else ""


def _losses(found: Sequence[Duel]) -> str:
    if not found:
        return ""
    lost = [duel.rival for duel in found if duel.result == "loses"]
    if len(lost) == len(found):
        return "all"
    return ", ".join(lost) or "-"


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
