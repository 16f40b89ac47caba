"""When an adapter is worth engines into whose weights it is merged. Pure.

LoRA's kernels cost time at every step. An engine whose weights are the version's own does without them, but
serves nothing else: it pays once the adapter alone keeps it busy. What it cannot take goes on to the engines
that load adapters.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from gateway.planning.simulator.hardware import Hardware

BATCH: Final = 128
"""Requests in a step of a busy engine, for which both kinds are compared."""
LEAST: Final = 0.05
"""Engines that must be saved to be worth the work."""


@dataclass(frozen=True, slots=True)
class MergedGain:
    engines: int
    """To be started with the version merged into their weights."""
    busy: float
    """Engines that load adapters and that this traffic keeps busy."""
    takes_over: float
    """How many of these the merged ones replace."""

    @property
    def saved(self) -> float:
        """Engines."""
        return self.takes_over - self.engines


def token_ms(hardware: Hardware, *, merged: bool) -> float:
    """Milliseconds from one token of an answer to the next."""
    return hardware.step_seconds(BATCH, 0 if merged else 1, 0) * 1000


def request_seconds(hardware: Hardware, prompt: float, output: float, *, merged: bool) -> float:
    """What a request takes of a busy engine's time, where prompts fill the steps that compute them. `prompt`,
    `output`: tokens."""
    adapters, room = 0 if merged else 1, hardware.budget - BATCH
    token_step = hardware.step_seconds(BATCH, adapters, 0)
    prompt_step = hardware.step_seconds(BATCH, adapters, room)
    return (prompt_step - token_step) / room * prompt + token_step / BATCH * output


def speedup(hardware: Hardware, prompt: float, output: float) -> float:
    """How many requests a merged engine serves in the time of one on an engine that loads adapters."""
    return request_seconds(hardware, prompt, output, merged=False) / request_seconds(
        hardware, prompt, output, merged=True
    )


def gain(busy: float, factor: float) -> MergedGain | None:
    """`busy`: engines that load adapters and that the adapter's traffic keeps busy; `factor`: see `speedup`.
    None: it does not pay."""
    counts = {math.floor(busy / factor), math.ceil(busy / factor)} - {0}
    gains = [MergedGain(count, busy, min(busy, count * factor)) for count in sorted(counts)]
    best = max(gains, key=lambda g: g.saved, default=None)
    return best if best is not None and best.saved >= LEAST else None
