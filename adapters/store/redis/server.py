"""Calls one Redis server: scripts and commands, within a time limit."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from redis import exceptions as redis_errors

from adapters.errors import FencedError, RegistryRegressedError, StoreUnavailableError
from adapters.store.continuity import Position
from adapters.store.protocol.coordination import Fence
from adapters.store.redis.connection import bounded, client

LUA: Final = Path(__file__).parent / "lua"
SCRIPTS: Final = {
    "commit": ("fence",),
    "claim": ("placement",),
    "confirm": ("placement",),
    "abandon": ("placement",),
    "unplace": ("fence", "placement"),
    "mark_lost": ("fence", "placement"),
    "touch": (),
    "lead": (),
    "heartbeat": (),
    "heartbeats": (),
    "limits": (),
}
"""Each script, and the files that precede it, after the prelude."""
CONNECTIONS: Final = 32
"""Connections per store; further callers wait for one."""
REGRESSED: Final = "REGRESSED"
"""Prefix of the error that a script returns if the server lacks the caller's last event."""

Clock = Callable[[], int]


class _Script:
    def __init__(self, name: str) -> None:
        files = ("prelude", *SCRIPTS[name], name)
        self.text = "\n".join((LUA / f"{file}.lua").read_text() for file in files)
        self.sha = hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


class RedisServer:
    """What the parts of the store share. Mutable state: the trusted position and the connections."""

    def __init__(
        self, url: str, *, prefix: str = "florin", clock: Clock | None = None, timeout: float = 2.0
    ) -> None:
        self._url = url
        self._tag = f"{{{prefix}}}"
        self._clock = clock
        self._timeout = timeout
        self.observe: Callable[[str, float], None] = lambda _operation, _seconds: None
        """Receives the duration of each call, failed or not, by operation: a script's name, `activity`,
        `read` or `snapshot`."""
        self._redis = client(url, timeout, CONNECTIONS, tag=self._tag)
        self._scripts = {name: _Script(name) for name in SCRIPTS}
        # Mutable: the trusted position, set by `RedisRegistry.trust`, and whether there has been any answer.
        self._known = Position()
        self._answered = False

    def _key(self, *parts: str) -> str:
        return ":".join((self._tag, *parts))

    def _fence(self, fence: Fence | None) -> tuple[str, str]:
        """The role's key and the token; without a fence, a key that no script reads."""
        return (self._key("role", fence.role), str(fence.token)) if fence else (self._key("feed"), "")

    @staticmethod
    def _check_fence(fence: Fence | None, holds: object) -> None:
        if fence and not holds:
            raise FencedError(f"Another worker holds the role {fence.role} now; nothing was changed.")

    def _ms(self, time: tuple[int, int]) -> int:
        return self._clock() if self._clock else time[0] * 1000 + time[1] // 1000

    async def _run(self, name: str, keys: list[str], arguments: list[Any], *, registry: bool = True) -> Any:
        """`registry`: whether the script touches the registry, and so must not run on one that regressed."""
        now = self._clock() if self._clock else ""
        script = self._scripts[name]
        known = self._known if registry else Position()
        first = f"{now}|{known.seq}|{known.mark}"
        call = (len(keys), *keys, first, *arguments)
        try:
            try:
                return await self._bounded(self._redis.evalsha(script.sha, *call), operation=name)
            except redis_errors.NoScriptError:  # a new server learns the script by running it
                return await self._bounded(self._redis.eval(script.text, *call), operation=name)
        except redis_errors.ResponseError as error:
            if not str(error).startswith(REGRESSED):
                raise
            raise RegistryRegressedError(
                f"Redis has lost changes that this worker knows (up to {self._known.seq}) and is not "
                "written to until an operator decides. See florin registry show."
            ) from error

    async def _bounded(self, reply: object, timeout: float | None = None, operation: str = "read") -> Any:
        began = perf_counter()
        try:
            answer = await bounded(reply, timeout or self._timeout)
        except StoreUnavailableError as error:
            if self._answered or not self._url.startswith("rediss") or "timed out" not in str(error):
                raise
            hint = "It has never answered by TLS; if it has none at this address, use redis:// instead."
            raise StoreUnavailableError(f"{error} {hint}") from error
        else:
            self._answered = True
            return answer
        finally:
            self.observe(operation, perf_counter() - began)
