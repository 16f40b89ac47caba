"""Estimates the output of attempts that ended before their engine reported any counts.

An engine reports the tokens of an answer that is not streamed at its end only. If the client leaves before,
or the engine fails, the attempt has used the engine all the same, perhaps for minutes. Its output is then
what an answer gets on this engine in that time, and at most what the request allowed.
"""

from __future__ import annotations

from typing import Final

from adapters.placement.scheduling.figures import H200
from gateway.metering.engine_metrics import EngineSample

PRIOR_SPEED: Final = 1000 / (H200.step + H200.lora)
"""Tokens a second of one answer on an engine of which nothing is known."""
PRIOR_SECONDS: Final = 3.0
"""Seconds of one answer that the prior is worth."""
MEMORY: Final = 0.98
"""Weight of the past at each sample with new tokens: about the last fifty count."""
RANGE: Final = 30.0
"""No speed leaves this factor around its prior, whatever an engine's metrics say."""
MOST_SECONDS: Final = 60.0
"""Samples further apart say nothing about the time between them."""


class AnswerSpeed:
    """How fast one answer grows on an engine, its prompt and waiting included: the engine's counter of
    generated tokens over the requests that it ran. So it includes other gateways' requests, and no client
    can move it by reading slowly. Mutable: the event loop writes, the usage log's thread reads."""

    __slots__ = ("_last", "_seconds", "_tokens", "_uncounted")

    def __init__(self) -> None:
        self._tokens = PRIOR_SPEED * PRIOR_SECONDS
        self._seconds = PRIOR_SECONDS
        self._uncounted = 0.0
        """Seconds of answers since its counter last grew: some engines count an answer at its end."""
        self._last: tuple[EngineSample, int] | None = None

    def __repr__(self) -> str:
        return f"<AnswerSpeed {self.value:.1f} tokens/s>"

    @property
    def value(self) -> float:
        """Tokens a second of one answer."""
        speed = self._tokens / self._seconds
        return min(PRIOR_SPEED * RANGE, max(PRIOR_SPEED / RANGE, speed))

    def sampled(self, sample: EngineSample, running: int) -> None:
        """The engine's counters, and the requests that it runs."""
        last, self._last = self._last, (sample, running)
        if last is None:
            return
        tokens = sample.completion_tokens - last[0].completion_tokens
        seconds = (sample.at - last[0].at) / 1e6
        busy = seconds * (last[1] + running) / 2
        known = 0 < seconds <= MOST_SECONDS and tokens >= 0 and not sample.is_of_another_process(last[0])
        if not known or not (busy or tokens):
            self._uncounted = 0.0
            return
        self._uncounted += busy
        if tokens:
            self._tokens = self._tokens * MEMORY + tokens
            self._seconds = self._seconds * MEMORY + self._uncounted
            self._uncounted = 0.0

    def tokens(self, nanoseconds: int) -> int:
        """What one answer gets in this time."""
        return int(self.value * nanoseconds / 1e9)
