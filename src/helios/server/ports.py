"""What the service needs of the model's text side; `helios.runtime.text` provides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Protocol


class TextModel(Protocol):
    """Tokenizer and chat template of the served model."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are below this."""
        ...

    @property
    def eos_token_ids(self) -> Sequence[int]:
        """The model's own end tokens."""
        ...

    @property
    def control_token_ids(self) -> Set[int]:
        """Tokens that show as no text."""
        ...

    @property
    def longest_token_bytes(self) -> int:
        """No token stands for more bytes of text than this."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a user's text, with the model's begin token where it wants one.

        Nothing in the text becomes a control token.
        """
        ...

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the tokens of a conversation up to where the answer begins.

        Raises ValueError with the template's own message when it refuses the conversation.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of the tokens, control tokens left out."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that a token stands for; of a control token its name."""
        ...
