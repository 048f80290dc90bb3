"""What a training starts from: which tokens may be proposed, and the first parameters.

With minutes of training the start decides much. Everything that enters the residual stream is
fitted by least squares to the target's next hidden row, one after the other: the joint of the two
inputs, then the attention output and the last product of the layer to what is left. The other
matrices, which make the features for that, are those of the target's last layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ignition.checkpoint import Checkpoint
from ignition.distillation.head import (
    SharedWeights,
    attended,
    gated,
    joined,
    joint_inputs,
    rms,
    rotations,
    shifted,
)
from ignition.distillation.target import Text
from ignition.draft.shapes import HIDDEN_NORM, JOIN, LAYER, TOKEN_NORM, parameter_shapes

RIDGE: Final = 1e-2
"""Added to the diagonal of the normal equations, relative to its mean."""
_FIT_TEXTS: Final = 384
"""Texts that the start is fitted to; more of them change little."""
_LEAST_SQUARE: Final = 1e-4
"""Of a place of a normed row; one that is always zero gets no endless gain."""
_FITTED: Final = (JOIN, LAYER + "o", LAYER + "down")
"""In the order in which they are applied."""


def frequent_tokens(
    texts: Iterable[Text], *, vocabulary_size: int, count: int
) -> npt.NDArray[np.int64]:
    """Return the ids of the most frequent output tokens, ascending.

    Ties, and places that the texts leave free, go to lower ids: a byte-pair vocabulary numbers
    frequent pairs first.
    """
    seen = np.zeros(vocabulary_size, np.int64)
    for text in texts:
        np.add.at(seen, text.token_ids[text.prompt_tokens :], 1)
    chosen = np.argsort(-seen, kind="stable")[:count]
    return np.sort(chosen)


def first_parameters(
    checkpoint: Checkpoint, shared: SharedWeights, texts: Sequence[Text]
) -> dict[str, Tensor]:
    """Return the parameters that training starts from."""
    geometry = checkpoint.geometry
    last = f"layers.{geometry.layer_count - 1}."
    start = _even_gains(shared, texts)
    for name, shape in parameter_shapes(geometry).items():
        if name in start:
            continue
        if name in _FITTED:
            start[name] = torch.zeros(shape)
        else:
            stored = checkpoint.float32(last + name.removeprefix(LAYER))
            start[name] = torch.from_numpy(np.array(stored, np.float32))
    for name in _FITTED:
        start[name] = _fit(start, shared, texts[:_FIT_TEXTS], name)
    return start


@torch.no_grad()
def _even_gains(shared: SharedWeights, texts: Sequence[Text]) -> dict[str, Tensor]:
    """Return the gains of both norms in front of the joint, which even out its inputs.

    A few places of a hidden row are many times as large as the others. Behind these gains each
    place has a mean square of one: no place rules the gradient of the joint, and what is read in
    eight bits keeps its small places too.
    """
    size, epsilon = shared.geometry.hidden_size, shared.geometry.rms_epsilon
    squares, count = torch.zeros(2, size, dtype=torch.float64), 0
    for text in texts[:_FIT_TEXTS]:
        tokens = torch.from_numpy(text.token_ids.astype(np.int64))
        hidden = torch.from_numpy(text.hidden.astype(np.float32))
        for place, rows in enumerate((hidden, shared.embed[tokens])):
            squares[place] += rms(rows, epsilon).double().pow(2).sum(0)
        count += len(tokens)
    gains = (squares / count).clamp(min=_LEAST_SQUARE).rsqrt().to(torch.float32)
    return {HIDDEN_NORM: gains[0], TOKEN_NORM: gains[1]}


@torch.no_grad()
def _fit(
    start: dict[str, Tensor], shared: SharedWeights, texts: Sequence[Text], name: str
) -> Tensor:
    """Return the least-squares matrix from what it is applied to, to what is missing without it."""
    width, size = start[name].shape[1], shared.geometry.hidden_size
    gram = torch.zeros(width, width, dtype=torch.float64)
    cross = torch.zeros(width, size, dtype=torch.float64)
    for text in texts:
        features, missing = _features(start, shared, text, name)
        gram += features.T @ features
        cross += features.T @ missing
    gram += RIDGE * gram.trace() / width * torch.eye(width, dtype=torch.float64)
    solved: Tensor = torch.linalg.solve(gram, cross)
    return solved.T.to(torch.float32).contiguous()


def _features(
    start: dict[str, Tensor], shared: SharedWeights, text: Text, name: str
) -> tuple[Tensor, Tensor]:
    """Return what a fitted matrix is applied to, and the rest of the target's normed rows."""
    geometry = shared.geometry
    hidden = torch.from_numpy(text.hidden.astype(np.float32))[None]
    tokens = torch.from_numpy(text.token_ids.astype(np.int64))[None]
    # The first entry has no row before it, and no round ever starts there.
    truth = rms(hidden, geometry.rms_epsilon)[0, 1:]
    before = shifted(hidden)
    if name == JOIN:
        return joint_inputs(start, shared, before, tokens)[0, 1:], truth
    x = joined(start, shared, before, tokens)
    mixed = attended(start, geometry, x, rotations(geometry, x.shape[1]), [])
    if name == LAYER + "o":
        return mixed[0, 1:], truth - x[0, 1:]
    x = x + torch.nn.functional.linear(mixed, start[LAYER + "o"])
    return gated(start, geometry, x)[0, 1:], truth - x[0, 1:]
