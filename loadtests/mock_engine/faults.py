"""Faults as data, set as attributes in a test or through POST /_mock/faults."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Place = Literal["headers", "first_event", "events"]
"""Where a request fails: before any byte, after the headers, or after `events` events."""
How = Literal["reset", "close", "mid_event", "hang", "error_event", "kill"]
"""reset: the connection is reset (RST). close: it closes gracefully with an incomplete body. mid_event: half
an event, then a reset. hang: silence. error_event: vLLM's error in the stream, then [DONE]. kill: the engine
dies."""

CHOICES: dict[str, tuple[str, ...]] = {
    "stop_at": ("", "headers", "first_event", "events"),
    "probe_as": ("", "base", "other", "all_other"),
    "stop_how": ("reset", "close", "mid_event", "hang", "error_event", "kill"),
}


class FaultError(ValueError):
    pass


@dataclass(slots=True)
class Faults:
    """The delays, `split` and `merge` apply to every generation request. `status`, `stop_at`, `abort`,
    `rubbish` and `usage` apply to the next `times` requests (-1: all) that match `only` and `marker`."""

    first_byte_delay: float = 0.0
    """Seconds from the request to its first byte."""
    event_delay: float = 0.0
    """Seconds per token, streamed or not."""
    delay_only: str = ""
    """Engine-side model name that these two apply to; empty: all."""
    split: int = 0
    """Cut each write of a stream into HTTP chunks of this many bytes."""
    merge: int = 1
    """Number of events per write."""

    times: int = -1
    only: str = ""
    """Engine-side model name; empty matches every model."""
    marker: str = ""
    """Text that the prompt must contain; empty matches every prompt."""
    status: int = 0
    """Answer with this HTTP status and an error object, without generating."""
    message: str = ""
    """What that error object says."""
    stop_at: Literal["", "headers", "first_event", "events"] = ""
    stop_how: How = "reset"
    events: int = 3
    """For stop_at `events`: number of events sent before. Without streaming, the same as `first_event`."""
    scores_kill: bool = False
    """The engine dies of a request that has its prompt scored beside another request."""
    abort: bool = False
    """Answer like a draining engine: HTTP 200, no text, finish reason `abort`."""

    rubbish: str = ""
    """Sent verbatim as an answer's body, or as the payload of event number `events` of a stream."""
    usage: str = ""
    """JSON that replaces every `usage` object."""

    load_delay: float = 0.0
    load_held: bool = False
    """Loads begin when this is false again."""
    load_status: int = 0
    """Refuse loads with this status: 400, 404, 500, 503."""
    load_times: int = -1
    """Number of loads that it applies to."""
    probe_as: Literal["", "base", "other", "all_other"] = ""
    """How versions answer probes: correctly, like the base model, or differently than on other engines;
    all_other: the base model answers differently too."""
    probe_only: str = ""
    """Engine-side name that `probe_as` applies to; empty matches all."""
    probe_status: int = 0
    """Refuse probes of versions with this status."""
    probe_delay: float = 0.0
    health_status: int = 200
    health_delay: float = 0.0
    waiting: int = 0
    """num_requests_waiting in /metrics."""
    metrics: str = ""
    """Replaces the /metrics response."""
    metrics_times: int = 1
    """Number of times that it does."""

    def update(self, values: dict[str, Any]) -> None:
        """Raises FaultError for an unknown field, a wrong type or an unknown value."""
        known = {f.name: type(f.default) for f in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise FaultError(f"unknown fault {name!r}; known: {', '.join(sorted(known))}")
            kind = known[name]
            if not isinstance(value, (int, float) if kind is float else kind):
                raise FaultError(f"{name} must be a {kind.__name__}, not {value!r}")
            if name in CHOICES and value not in CHOICES[name]:
                raise FaultError(f"{name} must be one of {CHOICES[name]}, not {value!r}")
        for name, value in values.items():
            setattr(self, name, value)

    def reset(self) -> None:
        self.update(asdict(Faults()))

    def delays(self, model: str) -> tuple[float, float]:
        """Seconds before the first byte, and per token."""
        if self.delay_only not in ("", model):
            return 0.0, 0.0
        return self.first_byte_delay, self.event_delay

    def applies_to(self, model: str, prompt: str = "") -> bool:
        """Whether a per-request fault applies to this request; counts it if so."""
        if not (self.status or self.stop_at or self.abort or self.rubbish or self.usage) or self.times == 0:
            return False
        if (self.only and self.only != model) or self.marker not in prompt:
            return False
        if self.times > 0:
            self.times -= 1
        return True

    def refuses_load(self) -> bool:
        if not self.load_status or self.load_times == 0:
            return False
        if self.load_times > 0:
            self.load_times -= 1
        return True
