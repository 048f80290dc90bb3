"""Momentum whose update is made orthogonal: Muon (Jordan et al. 2024), for the matrices of a head.

The hidden rows that a head reads have a few large directions, which carry most of a gradient's
size and little of what is to be learned. A step of equal size in every direction of a matrix
learns from few texts what a step per element learns from many.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor

MOMENTUM: Final = 0.95
_ITERATIONS: Final = 3
"""More make sizes more equal, but cost as much as the gradient does, and teach no better."""
_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
"""Of the Newton-Schulz iteration: steep at zero, and near one for singular values up to one."""
_RATE_SCALE: Final = 0.2
"""Gives an update the mean square that one of AdamW usually has (Liu et al. 2025), so that a rate
means what readers are used to."""


def orthogonal(matrix: Tensor) -> Tensor:
    """Return about U V^T of a matrix U S V^T: every singular value lies near one."""
    a, b, c = _QUINTIC
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if is_tall else matrix
    x = x / x.norm().clamp(min=1e-20)
    for _ in range(_ITERATIONS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if is_tall else x


class Muon:
    """Steps matrices down their gradients, in place."""

    def __init__(self, matrices: Mapping[str, Tensor], *, weight_decay: float) -> None:
        self._matrices = dict(matrices)
        self._weight_decay = weight_decay
        self.momenta = {name: torch.zeros_like(value) for name, value in self._matrices.items()}
        """By name; all that a step depends on besides gradients and matrices."""

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Step by the gradients that lie in `.grad`, and forget them."""
        for name, matrix in self._matrices.items():
            gradient, momentum = matrix.grad, self.momenta[name]
            assert gradient is not None, name
            momentum.mul_(MOMENTUM).add_(gradient)
            update = orthogonal(gradient.add(momentum, alpha=MOMENTUM))
            matrix.mul_(1 - rate * self._weight_decay)
            matrix.add_(update, alpha=-rate * _RATE_SCALE * max(matrix.shape) ** 0.5)
            matrix.grad = None
