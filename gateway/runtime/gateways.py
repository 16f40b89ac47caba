"""The gateways that share a Redis: each announces itself there, with the ledger that it writes to.

Gateways of one installation share everything that Redis holds, and each takes a part of the requests. If they
do not share a ledger, each ledger has only a part of the records, and nothing in it shows that.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pydantic import TypeAdapter

from adapters.errors import StoreUnavailableError
from adapters.store.protocol.coordination import CoordinationStore
from gateway.config import SettingsError
from gateway.observability import build_info
from gateway.observability.conditions import Condition
from gateway.observability.gateway_name import GatewayName
from gateway.observability.process_metrics import ProcessValues
from gateway.units import HOUR

log = logging.getLogger(__name__)

TTL_SECONDS: Final = 15.0
"""How long a gateway that was killed is still announced."""
_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 1.0
"""Between two looks whether a gateway with another ledger lives."""
_IDENTIFY_SECONDS: Final = 60.0
"""Between two checks of the ledger's identity: a database may be replaced under its URL."""
_START_SECONDS: Final = 3.0
"""How long a start waits for the ledger's identity."""
MISSING: Final = (
    "Not all records are here: another gateway of this installation keeps its own in another ledger."
)


@dataclass(frozen=True, slots=True)
class Death:
    died_at: int
    """Unix microseconds."""
    code: int
    """The worker's exit code."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a gateway announces about itself. Fields that an older gateway does not send have their
    defaults."""

    name: str
    announced_at: int
    """When it was made, Unix microseconds by that gateway's clock, as the other times."""
    started: int
    serving: bool = True
    """False: it is starting, and may be refused."""
    version: str = ""
    commit: str = ""
    workers: int = 1
    ledger: str = ""
    """Identity of its ledger; empty: not known yet."""
    ledger_url: str = ""
    redis_url: str = ""
    restarts: int = 0
    """Restarts of its workers since it started."""
    deaths: tuple[Death, ...] = ()
    """Deaths of its workers within the last hour, oldest first."""

    @property
    def where(self) -> str:
        return f"{self.ledger_url} ({self.ledger})"


_codec = TypeAdapter(Announcement)


class Gateways:
    """Announces this worker's gateway, and knows of the others. One per worker, on its event loop.

    Mutable: the ledger's identity, and the others as they were last read."""

    def __init__(
        self,
        store: CoordinationStore,
        own: Announcement,
        identify: Callable[[], str],
        process_values: ProcessValues | None,
        clock: Callable[[], int],
    ) -> None:
        """`identify`: the identity of the ledger, empty if it cannot be asked; blocks."""
        self._store = store
        self._own = own
        self._identify = identify
        self._values = process_values
        self._clock = clock
        self._others: list[Announcement] = []
        self._reported = ""

    def __repr__(self) -> str:
        return f"<Gateways {self.own.name}, others: {[gateway.name for gateway in self._others]}>"

    @property
    def own(self) -> Announcement:
        now, monotonic = self._clock(), time.monotonic()
        deaths = self._values.values.deaths() if self._values else []
        recent = tuple(
            Death(now - int((monotonic - died_at) * 1e6), code)
            for died_at, code in deaths
            if (monotonic - died_at) * 1e6 < HOUR
        )
        restarts = self._values.values.death_count if self._values else 0
        return replace(self._own, announced_at=now, restarts=restarts, deaths=recent)

    @property
    def all(self) -> list[Announcement]:
        """This one first."""
        return [self.own, *self._others]

    @property
    def missing(self) -> str:
        """Why this ledger lacks records, as reports show it; empty if it has all of them."""
        return MISSING if self._elsewhere() else ""

    async def start(self, *, separate_ledgers: bool) -> None:
        """Announce this gateway. Raises SettingsError if another one serves with another ledger, unless
        `separate_ledgers`. A ledger or a Redis that is away keeps no gateway from starting."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_START_SECONDS):
                await self._learn()
        self._own = replace(self._own, serving=separate_ledgers or self._is_replacement())
        with suppress(StoreUnavailableError):
            await self._exchange()
            if not self._own.serving:
                await self._give_way()
        self._own = replace(self._own, serving=True)

    async def run(self) -> None:
        """Announce this gateway and read the others, until cancelled."""
        while True:
            with suppress(StoreUnavailableError):  # other parts say so
                await self._exchange()
            self._report()
            await asyncio.sleep(_SECONDS)

    async def identify(self) -> None:
        """Check the identity of the ledger from time to time, until cancelled."""
        while True:
            await self._learn()
            await asyncio.sleep(_IDENTIFY_SECONDS if self._own.ledger else _SECONDS)

    async def leave(self) -> None:
        """Raises StoreUnavailableError: it then expires."""
        await self._store.announce(self._own.name, self._text(), ttl_ms=0)

    def conditions(self) -> Iterator[Condition]:
        for other in self._elsewhere():
            yield Condition("ledgers_differ", other.name, _difference(self._own, other))

    def _is_replacement(self) -> bool:
        """Whether this worker takes the place of one that died: its gateway already serves."""
        return self._values is not None and bool(self._values.values.deaths())

    def _elsewhere(self) -> list[Announcement]:
        """Those that have another ledger, and serve."""
        return [other for other in differing(self._own, self._others) if other.serving]

    async def _learn(self) -> None:
        identity = await asyncio.to_thread(self._identify)
        if identity:
            self._own = replace(self._own, ledger=identity)

    async def _exchange(self) -> None:
        await self._store.announce(self._own.name, self._text(), ttl_ms=int(TTL_SECONDS * 1000))
        documents = await self._store.announced()
        documents.pop(self._own.name, None)
        self._others = [known for text in documents.values() if (known := _read(text))]
        self._others.sort(key=lambda other: other.name)

    async def _give_way(self) -> None:
        """Raises SettingsError if another gateway that was here before lives and has another ledger. One that
        was killed stays announced until its announcement expires."""
        seen = {other.name: other.announced_at for other in self._before()}
        while before := self._before():
            for other in before:
                if seen.setdefault(other.name, other.announced_at) != other.announced_at:
                    raise SettingsError(
                        f"FLORIN_LEDGER_URL: {_difference(self._own, other)} Give all gateways of this "
                        "Redis one FLORIN_LEDGER_URL, or this one a FLORIN_REDIS_PREFIX of its own. To start "
                        "it all the same, set FLORIN_SEPARATE_LEDGERS=true."
                    )
            await asyncio.sleep(_LOOK_SECONDS)
            await self._exchange()

    def _before(self) -> list[Announcement]:
        """Those with another ledger that serve, or of those that are starting, began before this one."""
        own = self._own
        return [
            other
            for other in differing(own, self._others)
            if other.serving or (other.started, other.name) < (own.started, own.name)
        ]

    def _report(self) -> None:
        """Log a difference once, and its end."""
        report = " ".join(_difference(self._own, other) for other in self._elsewhere())
        if report != self._reported:
            if report:
                log.error("%s", report)
            else:
                log.info("All gateways of this Redis use one ledger again.")
        self._reported = report

    def _text(self) -> str:
        return _codec.dump_json(self.own).decode()


def announcement(name: GatewayName, *, workers: int, ledger_url: str, redis_url: str) -> Announcement:
    """`…_url`: without passwords."""
    return Announcement(
        name.text,
        name.started,
        name.started,
        version=build_info.version(),
        commit=build_info.commit(),
        workers=workers,
        ledger_url=ledger_url,
        redis_url=redis_url,
    )


def differing(own: Announcement, others: Iterable[Announcement]) -> list[Announcement]:
    """The others that are known to have another ledger."""
    return [other for other in others if own.ledger and other.ledger and other.ledger != own.ledger]


def _difference(own: Announcement, other: Announcement) -> str:
    return (
        f"Gateway {other.name} keeps its usage records in {other.where}, this one in {own.where}: reports "
        "and bills of either have only a part."
    )


def _read(text: str) -> Announcement | None:
    try:
        return _codec.validate_json(text)
    except ValueError:  # written by a newer Florin in another format
        return None
