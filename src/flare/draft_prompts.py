"""Questions that a draft head's training texts answer, made up from the word lists of this file.

No subject and no wording is one of `flare bench`, whose scenarios measure what the head is worth.
"""

from __future__ import annotations

from typing import Final

_SUBJECTS: Final = (
    *("tea", "gravity", "a garden pond", "penguins", "friendship", "the Roman roads", "yoga"),
    *("a lighthouse", "cheese", "jazz music", "solar panels", "the heart", "dinosaurs", "dreams"),
    *("castles", "running", "the stock market", "robots", "kites", "oceans", "rice", "poetry"),
    *("the Silk Road", "cats", "memory", "a good night", "deserts", "democracy", "trains", "bread"),
    *("fractions", "the immune system", "birds", "kindness", "cooking pasta", "electric cars"),
    *("mountains", "a family dinner", "computers", "the alphabet", "forests", "recycling"),
    *("swimming", "magnets", "the Eiffel Tower", "an apple tree", "lightning", "teamwork", "chess"),
    *("planets", "the French Revolution", "clouds", "coffee", "dogs", "DNA", "time management"),
    *("a rainy day", "the brain", "soccer", "ancient Egypt", "spiders", "public speaking", "gold"),
    *("the internet", "painting", "rivers", "honesty", "a school trip", "email", "budgeting"),
    *("glaciers", "the violin", "black holes", "gardens", "theatre", "stress", "a small village"),
    *("bees and flowers", "algorithms", "marathons", "soap", "elephants", "courage", "steam"),
    *("a long letter", "wolves", "climate", "sculpture", "nutrition", "the desert wind", "atoms"),
    *("museums", "job interviews", "a lost key", "turtles", "photography", "probability", "snow"),
)
_WORDINGS: Final = (
    "What is {}?",
    "Tell me about {}.",
    "Write a short story about {}.",
    "Explain how {} works or came about.",
    "Give me ten tips about {}.",
    "Write a poem about {}.",
    "What are the advantages and disadvantages of {}?",
    "Summarise the history of {} in two paragraphs.",
    "Write an email to a friend about {}.",
    "How does {} change the way people live?",
    "List the main facts about {} and explain each of them.",
    "Describe {} in detail.",
    "Imagine a conversation between two people about {}.",
    "Write a Python function that has something to do with {}, and explain it.",
    "What should a beginner learn first about {}?",
    "Plan a day around {}.",
    "Why do people like {}?",
    "Write an essay about {}.",
)


def training_questions() -> list[str]:
    """Return every question, each wording of every subject."""
    return [wording.format(subject) for wording in _WORDINGS for subject in _SUBJECTS]
