"""Compiling grammars beside the engine loop, which never waits for one.

A request whose grammar is not compiled yet is held back here, off the loop, and handed to it when
the grammar is there; all others pass at once. A grammar that cannot be compiled is remembered like
one that can, so its request is refused by the loop with the reason.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from helios.engine.grammar import GrammarError, OutputGrammar
from helios.engine.messages import Cancel, EngineCommand, GrammarMessage, Submit
from helios.runtime.grammars import KEPT_GRAMMARS, CompiledGrammar, GrammarCompiler

_CLOSE: Final = None


class _Compiled(NamedTuple):
    """What the thread made of a held request's grammar."""

    submit: Submit
    grammar: CompiledGrammar | GrammarError


class GrammarThread:
    """Holds requests back until their grammars are compiled; implements GrammarFactory.

    `on_finished` is called on the thread after each grammar; it must be quick and thread-safe.
    The vocabulary is read on the thread too, from the start, so that serving begins without it.
    """

    def __init__(
        self, open_compiler: Callable[[], GrammarCompiler], *, on_finished: Callable[[], None]
    ) -> None:
        self._open_compiler = open_compiler
        self._on_finished = on_finished
        self._compiler: GrammarCompiler | None = None
        self._inbox: queue.SimpleQueue[Submit | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[_Compiled] = queue.SimpleQueue()
        self._held: dict[str, bool] = {}
        """Ids of held requests, and whether they are still wanted."""
        thread = threading.Thread(target=self._run, name="flare-grammars", daemon=True)
        thread.start()

    @property
    def is_holding(self) -> bool:
        """Whether any request is held back."""
        return bool(self._held)

    def holds_back(self, command: EngineCommand) -> bool:
        """Say whether a command is kept from the engine: a request without its compiled grammar,
        or the withdrawal of one.
        """
        if isinstance(command, Submit) and command.grammar is not None:
            if command.request_id in self._held:
                return False
            if self._compiler is not None and self._compiler.has(command.grammar):
                return False
            self._held[command.request_id] = True
            self._inbox.put(command)
            return True
        if isinstance(command, Cancel) and command.request_id in self._held:
            self._held[command.request_id] = False
            return True
        return False

    def released(self) -> list[Submit]:
        """Return the requests whose grammars are there now, in the order of their arrival."""
        submits: list[Submit] = []
        while True:
            try:
                submit, grammar = self._finished.get_nowait()
            except queue.Empty:
                return submits
            assert submit.grammar is not None
            if self._compiler is not None:
                self._compiler.keep(submit.grammar, grammar)
            if self._held.pop(submit.request_id):
                submits.append(submit)

    def __call__(self, grammar: GrammarMessage, *, ignores_end: bool) -> OutputGrammar:
        """Return a grammar at its start. Raises GrammarError."""
        if self._compiler is None:
            raise GrammarError("the model's vocabulary cannot be constrained")
        opened: OutputGrammar = self._compiler(grammar, ignores_end=ignores_end)
        return opened

    def close(self) -> None:
        """Let the thread end after what it is at; what is still held is dropped."""
        self._inbox.put(_CLOSE)

    def _run(self) -> None:
        """Compile until told to end (the thread)."""
        failure: GrammarError | None = None
        made: OrderedDict[tuple[str, str], CompiledGrammar | GrammarError] = OrderedDict()
        try:
            self._compiler = self._open_compiler()
        except Exception as fault:  # noqa: BLE001 - the thread boundary: serving goes on without.
            failure = GrammarError(f"cannot be used with this model: {fault}")
        while (submit := self._inbox.get()) is not _CLOSE:
            self._finished.put(_Compiled(submit, failure or self._remembered(submit, made)))
            self._on_finished()

    def _remembered(
        self, submit: Submit, made: OrderedDict[tuple[str, str], CompiledGrammar | GrammarError]
    ) -> CompiledGrammar | GrammarError:
        """Compile a grammar unless one of the latest, as many as the engine keeps, is the same.

        Choices of one request, and clients with one schema, are held back together, and only the
        engine's thread may look into the compiler.
        """
        assert submit.grammar is not None
        key = (submit.grammar.kind, submit.grammar.text)
        if key not in made:
            made[key] = self._compile(submit.grammar)
        made.move_to_end(key)
        if len(made) > KEPT_GRAMMARS:
            made.popitem(last=False)
        return made[key]

    def _compile(self, grammar: GrammarMessage) -> CompiledGrammar | GrammarError:
        assert self._compiler is not None
        try:
            return self._compiler.compile(grammar)
        except GrammarError as error:
            return error
        except Exception as fault:  # noqa: BLE001 - the thread boundary: it fails one request.
            return GrammarError(f"cannot be compiled: {type(fault).__name__}: {fault}")
