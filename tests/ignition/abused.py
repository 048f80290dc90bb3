"""An engine on a virtual clock that serves what a test throws at it and remembers what it lent."""

from __future__ import annotations

import functools
import gc
import weakref
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from helios.engine.admission import AdmissionRules
from helios.engine.grammar import OutputGrammar
from helios.engine.messages import Finished, GrammarMessage, Rejected, Submit
from helios.runtime.grammars import GrammarCompiler
from helios.runtime.vocabulary import Vocabulary
from helios.scheduler import PolicyConfig
from tests.engine.test_constrained import _Bytes
from tests.engine.world import World, request
from tests.ignition.kinds import Kind, Served, model_of_kind, plain_model
from tests.ignition.test_ragged import Letters, asked
from tests.ignition.tiny import VOCABULARY

PROMPTS = asked()
EVERYTHING = 1000
"""Output tokens that the context cuts."""


class Answer(NamedTuple):
    text: str
    tokens: tuple[int, ...]
    reason: str
    stop_matched: str | int | None
    usage: tuple[int, int]
    """Prompt and output tokens."""
    is_faulty: bool


class Copies:
    """Proposes what a request will say, every sixth token spoilt, or one token again and again."""

    def __init__(self, rest: Sequence[int], only: int | None) -> None:
        self._rest, self._only, self._said = rest, only, 0

    def extend(self, tokens: Sequence[int]) -> None:
        self._said += len(tokens)

    def propose(self) -> Sequence[int]:
        if self._only is not None:
            return [self._only] * 7
        places = range(self._said, min(self._said + 7, len(self._rest)))
        return [(self._rest[place] + (place % 6 == 5)) % VOCABULARY for place in places]


class Watched:
    """A grammar that can be seen to be gone."""

    def __init__(self, inner: OutputGrammar) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@functools.cache
def compiler(end: int) -> GrammarCompiler:
    """Token t is byte t, so that no text has a byte above them; one token ends texts."""
    table = [bytes([byte]) for byte in range(VOCABULARY)]
    table[end] = b"<end>"
    vocabulary = Vocabulary(
        bytes_of=tuple(table), control_ids={"<end>": end}, strips_first_space=False
    )
    return GrammarCompiler.of(vocabulary, _Bytes([]), (end,))  # type: ignore[arg-type]


class Abused:
    """A world of one model; `only` is the one token that its drafts propose."""

    def __init__(
        self,
        model: Served,
        end: int,
        *,
        kind: Kind | None = None,
        free: Sequence[Sequence[int]] = (),
        only: int | None = None,
    ) -> None:
        self.lent: weakref.WeakSet[Any] = weakref.WeakSet()
        self._free, self._only, self._end = free, only, end
        self.world = World(
            model=model,  # type: ignore[arg-type]
            policy=PolicyConfig.balanced(),
            detokenizers=lambda prompt: Letters(),
            traced=True,
            speculation=None if kind is None else kind.speculation,
            copies=self._copies if kind is not None and kind.copies else None,
            grammars=self._grammar,
            rules=AdmissionRules(
                resources=model.resources,
                vocabulary_size=VOCABULARY,
                eos_token_ids=(end,),
                grammar_learned_limit=1,
            ),
        )

    def _copies(self, request_id: str, prompt: np.ndarray) -> Copies:
        source = Copies(self._free[PROMPTS.index(prompt.tolist())], self._only)
        self.lent.add(source)
        return source

    def _grammar(self, grammar: GrammarMessage, *, ignores_end: bool) -> OutputGrammar:
        found = Watched(compiler(self._end)(grammar, ignores_end=ignores_end))
        self.lent.add(found)
        return found  # type: ignore[return-value]

    def serve(self, requests: Iterable[Submit]) -> dict[str, Answer | Rejected]:
        """Serve requests that come one after another, while the first ones are answered."""
        names = []
        for submit in requests:
            names.append(submit.request_id)
            self.world.core.handle(submit)
            self.world.turn()
            self.world.turn()
        self.world.run()
        return {name: self.answer(name) for name in names}

    def answer(self, name: str) -> Answer | Rejected:
        last = self.world.of(name)[-1]
        if isinstance(last, Rejected):
            return last
        assert isinstance(last, Finished)
        return Answer(
            self.world.text(name),
            self.world.tokens(name),
            last.reason,
            last.stop_matched,
            (last.prompt_tokens, last.output_tokens),
            last.error is not None,
        )

    def programs(self) -> set[str]:
        """Return the names of the programs that ran."""
        graphs = self.world.model.catalog.graphs
        return {graphs[frame.graph_index].name for frame in self.world.executor.submitted}

    def bursts(self) -> dict[str, list[int]]:
        """Return how many tokens each request's lanes committed, in turn."""
        found: dict[str, list[int]] = {}
        for record in self._records("frame"):
            for lane in record["lanes"]:
                if lane["tokens"]:
                    found.setdefault(lane["request"], []).append(lane["tokens"])
        return found

    def shortened(self) -> set[str]:
        """Return the requests that had a lane with fewer rows than the program of its round."""
        widths = {graph.name: graph.token_capacity for graph in self.world.model.catalog.graphs}
        return {
            lane["request"]
            for record in self._records("plan")
            for lane in record["lanes"]
            if 0 < lane["output_ceiling"] < widths[record["graph"]] and not lane["prompt_tokens"]
        }

    def _records(self, kind: str) -> list[dict[str, Any]]:
        return [dict(record) for record in self.world.records if record["type"] == kind]

    def assert_nothing_is_kept(self) -> None:
        """No request, page, row, frame, grammar or index of copies, and rows that answer as new."""
        world = self.world
        world.assert_everything_is_back()
        usage = world.scheduler.usage()
        assert (usage.in_flight, usage.pages_kept) == ((), 0)
        assert not world.core._roster.all()
        # What the simulated executor remembers for the test.
        world.executor.submitted.clear()
        world.executor._front = (None, ())
        gc.collect()
        assert not list(self.lent)


def ask(name: object, place: int, limit: int = EVERYTHING, **fields: Any) -> Submit:
    """Ask for the answer to one of the prompts, whatever ends it but the end token."""
    fields = {"ignore_eos": True, **fields}
    return request(str(name), PROMPTS[place % len(PROMPTS)], limit, **fields)


@functools.cache
def free_answers(backend: str) -> tuple[tuple[int, ...], ...]:
    """Return what single steps answer to each prompt, up to the end of the context."""
    answers = Abused(plain_model(backend), end=0).serve(map(ask, range(7), range(7)))
    return tuple(answer.tokens for answer in answers.values())  # type: ignore[union-attr]


@functools.cache
def end_token(backend: str) -> int:
    """Return the token that most answers say, none of them first: it shall end a text."""
    answers = free_answers(backend)
    said = Counter(token for tokens in answers for token in sorted(set(tokens)))
    (token, count), *_ = said.most_common()
    assert count > 2
    assert all(tokens[0] != token for tokens in answers)
    return token


def plain(backend: str) -> Abused:
    return Abused(plain_model(backend), end_token(backend))


def abused(kind: Kind, backend: str, *, only: int | None = None) -> Abused:
    model = model_of_kind(kind, backend, only=only)
    free = free_answers(backend)
    return Abused(model, end_token(backend), kind=kind, free=free, only=only)
