"""Texts of prompts, made up from word lists of this file: prose, questions, code to copy.

Nothing is downloaded and nobody's text is repeated. The same seed gives the same text; texts of
different seeds differ from the first words on, so that no prefix cache answers for the model.
"""

from __future__ import annotations

import random
from typing import Final

_OPENERS: Final = (
    *("Yesterday", "Every morning", "In the valley", "After the rain", "Near the harbour"),
    *("Before the market opened", "Late in autumn", "Behind the mill", "On the third day"),
)
_PEOPLE: Final = (
    *("a baker", "the pilot", "our neighbour", "an old sailor", "the teacher", "two children"),
    *("the gardener", "a young clerk", "the night watch", "someone from the north"),
)
_DEEDS: Final = (
    *("carried", "painted", "repaired", "counted", "followed", "described", "remembered"),
    *("sold", "measured", "borrowed", "hid", "returned"),
)
_THINGS: Final = (
    *("the red boat", "seven letters", "a broken clock", "the garden wall", "some warm bread"),
    *("a map of the coast", "the heavy door", "nine lamps", "an empty ledger", "the old bell"),
)
_ENDINGS: Final = (
    *("before noon", "without a word", "with great care", "for the third time", "at last"),
    *("as the river rose", "to everyone's surprise", "and went home", "until it was dark"),
)
_TOPICS: Final = (
    *("a page table", "sourdough bread", "the tides", "public libraries", "a violin's sound"),
    *("compound interest", "vaccines", "the water cycle", "railway signals", "honey bees"),
    *("glass", "the seasons", "a lock and its key", "chess openings", "coral reefs", "volcanoes"),
    *("photosynthesis", "steel bridges", "the printing press", "hash tables", "salt", "sleep"),
    *("earthquakes", "maps", "bicycles", "the Moon", "paper", "wind turbines", "whales", "ink"),
)
_ASKED: Final = (
    "What is the most important thing to know about {}?",
    "Explain {} to a curious child.",
    "Write a short story in which {} matters.",
    "Which three mistakes do people make when they think about {}?",
    "How would you teach a lesson about {}?",
    "Compare what was known about {} a century ago with what is known today.",
    "Give five surprising facts about {}.",
    "Why should anybody care about {}?",
)
_NOUNS: Final = (
    *("order", "ledger", "lamp", "route", "signal", "crate", "ticket", "valve", "sample", "pump"),
    *("shelf", "badge", "meter", "queue", "parcel", "sensor", "branch", "tariff"),
)
_VERBS: Final = ("count", "merge", "split", "check", "move", "price", "sort", "trim", "scale")
_FIELDS: Final = ("width", "weight", "total", "limit", "offset", "rate", "share", "level", "score")


def passage(words: int, seed: int) -> str:
    """Return English-looking text of at least that many words."""
    choose = random.Random(seed).choice
    count, sentences = 2, [f"Note {seed}:"]
    while count < words:
        parts = (choose(_OPENERS), choose(_PEOPLE), choose(_DEEDS), choose(_THINGS))
        sentences.append(f"{parts[0]} {parts[1]} {parts[2]} {parts[3]} {choose(_ENDINGS)}.")
        count += len(sentences[-1].split())
    return " ".join(sentences)


def question(seed: int) -> str:
    """Return an open question; there are a few hundred, each with a number of its own."""
    draw = random.Random(seed)
    return f"Question {seed}: {draw.choice(_ASKED).format(draw.choice(_TOPICS))}"


def program(words: int, seed: int) -> str:
    """Return Python-looking functions of at least that many words."""
    draw = random.Random(seed)
    count, functions = 0, [f"# Module {seed}"]
    while count < words:
        functions.append(_function(draw, len(functions)))
        count += len(functions[-1].split())
    return "\n\n".join(functions)


def _function(draw: random.Random, number: int) -> str:
    noun, verb = draw.choice(_NOUNS), draw.choice(_VERBS)
    first, second = draw.sample(_FIELDS, 2)
    bound, step = draw.randrange(10, 1000), draw.randrange(2, 10)
    return (
        f"def {verb}_{noun}_{number}({noun}s, {first}={bound}):\n"
        f"    result = []\n"
        f"    for {noun} in {noun}s:\n"
        f"        if {noun}.{second} > {first}:\n"
        f"            {noun}.{second} = {noun}.{second} // {step}\n"
        f"        result.append({noun}.{second} + {draw.randrange(100)})\n"
        f"    return result"
    )
