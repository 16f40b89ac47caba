"""A hundred adapters, Zipf 1, whose total rate follows one of four courses. Theirs are of 200 ticks of three
seconds; here the course is stretched to the workload's length, and the rate is what is asked for."""

from __future__ import annotations

import numpy as np

from gateway.planning.simulator.workloads import Drawn, Floats, Generator, Ints

TICKS = 200
PEAK, TROUGH, DAYS = 50, 10, 2
SPIKES, TIMES, HALF_LIFE = (50, 130), 5, 8
"""Ticks of two spikes, what each multiplies the rate by, and ticks until half of that is gone."""
CALM_BUSY_SURGE = (15, 40, 70)
STAYS_OR_GOES = ((0.9, 0.1, 0.0), (0.15, 0.8, 0.05), (0.1, 0.2, 0.7))
"""Probabilities of the next tick's state, for each state."""


def _zipf(drawn: Drawn) -> Ints:
    return drawn.zipf(1.0, drawn.adapters)


def _daily(arrival: Floats, seconds: float) -> Floats:
    height = (1 - np.cos(2 * np.pi * DAYS * arrival / seconds)) / 2
    return np.asarray((TROUGH + (PEAK - TROUGH) * height) / PEAK)


def _spikes(arrival: Floats, seconds: float) -> Floats:
    tick = arrival / seconds * TICKS
    rate = np.ones_like(tick)
    for spike in SPIKES:
        rate += np.where(tick < spike, 0, (TIMES - 1) * 0.5 ** (np.maximum(0, tick - spike) / HALF_LIFE))
    return np.asarray(rate / (TIMES + 0.01))


def _states(arrival: Floats, seconds: float) -> Floats:
    """The same sequence of states for every seed."""
    rng, states = np.random.default_rng(42), [0]
    while len(states) < TICKS:
        states.append(int(rng.choice(3, p=STAYS_OR_GOES[states[-1]])))
    rates = np.array(CALM_BUSY_SURGE)[states] / max(CALM_BUSY_SURGE)
    return np.asarray(rates[np.minimum(TICKS - 1, (arrival / seconds * TICKS).astype(int))])


DYNAMO = {
    "dynamo-zipf": Generator(100, _zipf),
    "dynamo-diurnal": Generator(100, _zipf, rate=_daily),
    "dynamo-flash": Generator(100, _zipf, rate=_spikes),
    "dynamo-mmpp": Generator(100, _zipf, rate=_states),
}
