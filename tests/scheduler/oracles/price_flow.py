"""The price flow integrated in small steps instead of solved."""

from __future__ import annotations


def integrate(
    price: float, *, reference: float, service: float, interval_ms: float, adaptation_ms: float
) -> float:
    """Integrate dq/dt = (1 - h q) / tau over an interval; price and result are physical.

    Fourth-order Runge-Kutta with steps small against both time scales of the equation, 1/tau and
    h/tau, so its error is far below the tolerance of every test that uses it.
    """
    q = price * reference
    h = service / (interval_ms * reference)
    fastest = max(1.0, h) / adaptation_ms
    steps = max(64, int(64 * interval_ms * fastest) + 1)
    dt = interval_ms / steps

    def slope(value: float) -> float:
        return (1.0 - h * value) / adaptation_ms

    for _ in range(steps):
        k1 = slope(q)
        k2 = slope(q + dt * k1 / 2)
        k3 = slope(q + dt * k2 / 2)
        k4 = slope(q + dt * k3)
        q += dt * (k1 + 2 * k2 + 2 * k3 + k4) / 6
    return q / reference
