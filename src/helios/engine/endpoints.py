"""Keys of kept states: what a conversation consisted of up to an exact token count.

One running blake2b hash (RFC 7693) goes over the content, and an endpoint's key is its digest
there. So a key depends on the content alone, not on where the endpoints before it lie: the end of
an answer is found again by the next turn, which has the answer in its prompt.

Content is little-endian int32 token ids. An image adds, behind its last token, -1 (which no token
id is) and the hash of its digest, so that no text can stand for an image.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from helios.engine.messages import ImageMessage
from helios.scheduler import Endpoint

KEY_BYTES: Final = 16
"""128 bits: two of 2**32 different prefixes share a key with a probability of 2**-65."""
_IMAGE: Final = (-1).to_bytes(4, "little", signed=True)

Tokens = npt.NDArray[np.int32]


class PrefixHash:
    """A running hash of content; extending it never changes a key that it gave before."""

    __slots__ = ("_hash",)

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=KEY_BYTES)

    def extend(self, tokens: Tokens) -> None:
        """Add token ids."""
        self._hash.update(np.ascontiguousarray(tokens, dtype="<i4").data)

    def extend_image(self, digest: bytes) -> None:
        """Add the identity of an image whose tokens were added."""
        self._hash.update(_IMAGE + hashlib.blake2b(digest, digest_size=KEY_BYTES).digest())

    def key(self) -> bytes:
        """Return the key of everything added so far."""
        return self._hash.digest()

    def key_after(self, tokens: Tokens) -> bytes:
        """Return the key of everything added so far and `tokens`, without adding them."""
        longer = self._hash.copy()
        longer.update(np.ascontiguousarray(tokens, dtype="<i4").data)
        return longer.digest()


class Prefixes(NamedTuple):
    """The endpoints of a prompt with their keys, and the hash of the whole prompt."""

    endpoints: tuple[Endpoint, ...]
    whole: PrefixHash


def prefixes_of(
    prompt: Tokens, message_ends: Sequence[int], images: Sequence[ImageMessage] = ()
) -> Prefixes:
    """Return the keys of a prompt at its message ends and at its own end.

    Message ends rise and lie in the prompt; images lie in it, in order and apart.
    """
    running, endpoints, done = PrefixHash(), [], 0
    image_at = {image.start + image.tokens: image for image in images}
    ends = frozenset(message_ends)
    for position in sorted({*message_ends, *image_at, len(prompt)}):
        running.extend(prompt[done:position])
        done = position
        if position in image_at:
            running.extend_image(image_at[position].digest)
        if position in ends or position == len(prompt):
            endpoints.append(Endpoint(position, running.key(), position in ends))
    return Prefixes(tuple(endpoints), running)
