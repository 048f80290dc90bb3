"""Keys of kept states depend on the content up to an endpoint and on nothing else."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from helios.engine.endpoints import KEY_BYTES, PrefixHash, prefixes_of
from helios.engine.messages import ImageMessage
from helios.scheduler import Endpoint

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=30)


def array(tokens: list[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def key_of(tokens: list[int]) -> bytes:
    return prefixes_of(array(tokens), ()).endpoints[-1].key


@given(TOKENS, st.sets(st.integers(1, 30)))
@settings(max_examples=60)
def test_a_key_is_that_of_its_prefix_alone(tokens: list[int], ends: set[int]) -> None:
    inside = sorted(end for end in ends if end <= len(tokens))
    endpoints = prefixes_of(array(tokens), inside).endpoints
    positions = sorted({*inside, len(tokens)})
    assert [endpoint.tokens for endpoint in endpoints] == positions
    for endpoint in endpoints:
        assert endpoint == Endpoint(
            endpoint.tokens, key_of(tokens[: endpoint.tokens]), endpoint.tokens in inside
        )
        assert len(endpoint.key) == KEY_BYTES


@given(TOKENS, TOKENS)
@settings(max_examples=60)
def test_different_content_has_different_keys(left: list[int], right: list[int]) -> None:
    assert (key_of(left) == key_of(right)) == (left == right)


@given(TOKENS, TOKENS)
@settings(max_examples=30)
def test_the_key_of_an_answer_is_that_of_a_prompt_with_the_answer(
    prompt: list[int], answer: list[int]
) -> None:
    whole = prefixes_of(array(prompt), ()).whole
    before = whole.key()
    assert whole.key_after(array(answer)) == key_of(prompt + answer)
    assert whole.key() == before


def test_an_image_counts_from_its_end_on_and_by_its_content() -> None:
    prompt, keys = array([1, 2, 3, 4, 5, 6]), {}
    for digest in (b"", b"cat", b"dog"):
        images = (ImageMessage(start=1, tokens=3, features=2, digest=digest),) if digest else ()
        keys[digest] = [endpoint.key for endpoint in prefixes_of(prompt, (1, 4), images).endpoints]
    assert len({values[0] for values in keys.values()}) == 1
    assert len({values[1] for values in keys.values()}) == 3
    assert len({values[2] for values in keys.values()}) == 3


def test_any_integer_type_gives_the_same_key() -> None:
    left, right = PrefixHash(), PrefixHash()
    left.extend(np.array([1, 2, 3], dtype=np.int32))
    right.extend(np.array([1, 9, 2, 9, 3], dtype=np.int64)[::2])
    assert left.key() == right.key()
