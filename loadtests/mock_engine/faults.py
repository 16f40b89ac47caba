"""Faults as data: what should go wrong, set by attribute in a test or by POST /_mock/faults from outside."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

Place = Literal["headers", "first_event", "events"]
"""Where a request stops: before any byte, after the headers, or after `events` events."""
How = Literal["reset", "close", "mid_event", "hang", "error_event", "kill"]
"""reset: the socket is torn off (RST). close: it ends properly, the body does not. mid_event: half an event,
then reset. hang: silence. error_event: vLLM's error inside the stream, then [DONE]. kill: the engine dies."""

CHOICES: dict[str, tuple[str, ...]] = {
    "stop_at": ("", "headers", "first_event", "events"),
    "probe_as": ("", "base", "other", "all_other"),
    "stop_how": ("reset", "close", "mid_event", "hang", "error_event", "kill"),
}


class FaultError(ValueError):
    pass


@dataclass(slots=True)
class Faults:
    """The delays and `split`, `merge` apply to every generation request; `status`, `stop_at`, `abort`,
    `rubbish` and `usage` to the next `times` ones (-1: all) of those that `only` and `marker` leave."""

    first_byte_delay: float = 0.0
    """Seconds from the request to its first byte."""
    event_delay: float = 0.0
    """Seconds for each token, streamed or not."""
    split: int = 0
    """Cut each write of a stream into HTTP chunks of so many bytes, wherever that falls."""
    merge: int = 1
    """So many events in one write."""

    times: int = -1
    only: str = ""
    """Engine-side model name; empty: every model."""
    marker: str = ""
    """Text that the prompt must hold; empty: every prompt."""
    status: int = 0
    """Answer with this HTTP status and an error object, without generating."""
    stop_at: Literal["", "headers", "first_event", "events"] = ""
    stop_how: How = "reset"
    events: int = 3
    """For stop_at `events`: how many go out before. Not streamed: the same as `first_event`."""
    abort: bool = False
    """Answer as a draining engine does: HTTP 200, no text, finish reason `abort`."""

    rubbish: str = ""
    """Sent as it stands: as a whole answer's body, as the payload of a stream's event number `events`."""
    usage: str = ""
    """JSON that stands in place of every `usage` object."""

    load_delay: float = 0.0
    load_status: int = 0
    """Refuse loads with this status: 400, 404, 500, 503."""
    load_times: int = -1
    """How many loads that holds for."""
    probe_as: Literal["", "base", "other", "all_other"] = ""
    """How versions answer probes: as they should, as the base model, otherwise than on other engines;
    all_other: the base model does so too."""
    probe_only: str = ""
    """Engine-side name that `probe_as` holds for; empty: every one."""
    probe_status: int = 0
    """Refuse probes of versions with this status."""
    probe_delay: float = 0.0
    health_status: int = 200
    health_delay: float = 0.0
    waiting: int = 0
    """What /metrics reports as num_requests_waiting."""
    metrics: str = ""
    """What /metrics answers in place of its own words."""
    metrics_times: int = 1
    """How often it says that."""

    def update(self, values: dict[str, Any]) -> None:
        """Raises FaultError for an unknown field, a value of another type, or a word that means nothing."""
        known = {f.name: type(f.default) for f in fields(self)}
        for name, value in values.items():
            if name not in known:
                raise FaultError(f"no fault is called {name!r}; there are {', '.join(sorted(known))}")
            kind = known[name]
            if not isinstance(value, (int, float) if kind is float else kind):
                raise FaultError(f"{name} must be a {kind.__name__}, not {value!r}")
            if name in CHOICES and value not in CHOICES[name]:
                raise FaultError(f"{name} must be one of {CHOICES[name]}, not {value!r}")
        for name, value in values.items():
            setattr(self, name, value)

    def reset(self) -> None:
        self.update(asdict(Faults()))

    def strikes(self, model: str, prompt: str = "") -> bool:
        """Does a fault that strikes single requests strike the next one? Counts it if so."""
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
