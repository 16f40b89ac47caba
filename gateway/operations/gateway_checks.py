"""What `florin doctor` says of the gateways: which build each runs, and whose workers died lately."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from adapters.reconcile.diagnosis import Diagnosis
from gateway.runtime.gateways import Announcement

_KILLED = -9
_MINUTE = 60_000_000


def of_gateways(gateways: Iterable[Announcement], now: int) -> Iterator[Diagnosis]:
    """`now`: Unix microseconds."""
    for one in gateways:
        workers = f"{one.workers} worker{'s' if one.workers > 1 else ''}"
        build = f"Florin {one.version} (commit {one.commit or 'unknown'})"
        yield Diagnosis("gateway", "ok", one.name, f"{build}, {workers}, up {_ago(now - one.started)}.")
        if one.deaths:
            yield _deaths(one, now)


def _deaths(one: Announcement, now: int) -> Diagnosis:
    count, last = len(one.deaths), one.deaths[-1]
    killed = ", killed, often for lack of memory" if last.code == _KILLED else ""
    return Diagnosis(
        "worker_restarts", "warning", one.name,
        f"{'A worker' if count == 1 else f'{count} workers'} died within the last hour and had to be "
        f"replaced, the last {_ago(now - last.at)} ago (exit code {last.code}{killed}).",
        "See the gateway's log of that time, and the kernel's (dmesg). The requests that ran there were cut "
        "off; their usage is recorded.",
    )  # fmt: skip


def _ago(micros: int) -> str:
    """`4 min`"""
    minutes = max(0, micros) // _MINUTE
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"
