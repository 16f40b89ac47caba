"""The target of the fuzzer: `florin serve` in its own process, with engines, three customers' adapters and a
key for each role."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
import requests

from deploy.demo.gateway import Gateway, GatewayError
from gateway.tenants.directory import Role
from loadtests.fuzz.client import Caller
from loadtests.fuzz.hostile import Engines
from loadtests.fuzz.judge import BrokenPromiseError, Log
from loadtests.fuzz.watch import Watch
from loadtests.overhead import adapter_files

TENANTS = ("kestrel", "osprey", "harrier")
ENGINES = ("heron-one", "heron-two")
"""Names that random changes of the registry will not hit by chance."""
HELLO = {"model": "support", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3}
RECOVERY = 60.0
"""Seconds within which an ordinary request must be answered after a batch; generous, for busy machines."""
OFFLINE = {"HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
"""Made-up sources must not be looked up on the internet."""


class FuzzTarget:
    """`with FuzzTarget(directory) as world`. Mutable: time of the last `settle`."""

    def __init__(self, directory: Path, **settings: str) -> None:
        """`settings`: FLORIN_* variables in lower case without the prefix."""
        options = {
            "probe_interval": "0.02",
            "probe_timeout": "2",
            "connect_timeout": "1",
            "engine_idle_timeout": "5",
            "placement_timeout": "5",
        } | settings
        self.directory = directory
        self.keys: dict[str, str] = {"none": "", "wrong": "fl_000000000000_" + "x" * 32}
        """Keys by role; for the tenant role, the first tenant's."""
        self.keyless: list[str] = []
        """Roles for which the admin API creates no keys."""
        self.engines = Engines(2, base=adapter_files.BASE, check_paths=False)
        variables = {f"FLORIN_{name.upper()}": value for name, value in options.items()}
        log = directory / "florin.log"
        self.gateway = Gateway(directory / "state", log, settings=variables | OFFLINE)
        self.log = Log(log)
        self._stack = ExitStack()
        self._settled = datetime.now(UTC) - timedelta(minutes=1)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self.engines)
            stack.enter_context(self.gateway)
            self.gateway.launch()
            self.gateway.wait()
            parts = urlsplit(self.gateway.url)
            self.host, self.port = parts.hostname or "", parts.port or 0
            self._register()
            self.caller = Caller(self.host, self.port)
            stack.callback(self.caller.close)
            self.session = stack.enter_context(requests.Session())
            self.session.trust_env = False
            self.ordinary()
            self.watch = stack.enter_context(Watch(self.host, self.port, self.gateway.pid))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _register(self) -> None:
        for path, body in self._wanted():
            self.gateway.call("POST", path, body)
        for role in Role:
            key = self._key_of(role)
            if key is None:
                self.keyless.append(role)
            else:
                self.keys[role] = key

    def _wanted(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The idempotent registration calls."""
        config = str(adapter_files.write_base_config(self.directory / "base"))
        for name, engine in zip(ENGINES, self.engines.all, strict=True):
            fields = {"gpu_type": "H200", "slots": 4, "cpu_slots": 8, "max_rank": 8, "base_config": config}
            yield "/admin/v1/engines", {"name": name, "url": engine.url, "base": adapter_files.BASE} | fields
        for seed, tenant in enumerate(TENANTS, 1):
            source = adapter_files.write_adapter(self.directory / tenant, seed)
            yield "/admin/v1/tenants", {"name": tenant, "base_access": True}
            yield "/admin/v1/adapters", {"adapter": f"{tenant}/support", "source": str(source)}

    def heal(self) -> None:
        """Restore the registration after arbitrary operator calls."""
        for path, body in self._wanted():
            with suppress(GatewayError):
                self.gateway.call("POST", path, body)
        for role in (Role.TENANT, Role.TENANT_ADMIN):
            self.keys[role] = self._key_of(role) or self.keys[role]

    def _key_of(self, role: Role) -> str | None:
        """Create a key; some roles need a tenant or engine."""
        for more in ({"tenant": TENANTS[0]}, {}, {"engine": ENGINES[0]}):
            try:
                key: str = self.gateway.call("POST", "/admin/v1/keys", {"role": role, **more})["key"]
            except GatewayError:
                continue
            return key
        return None

    # -- invariants after each batch

    def ordinary(self) -> None:
        """An ordinary request must succeed."""
        end = time.monotonic() + RECOVERY
        while True:
            answer = self.caller.post("/v1/chat/completions", json.dumps(HELLO).encode(), self.keys["tenant"])
            if answer.status == 200:
                return
            if time.monotonic() > end:
                raise BrokenPromiseError(f"an ordinary request failed: {answer}")
            time.sleep(0.1)

    def settle(self) -> int:
        """Check that each attempt since the last call has exactly one record and that no lease is left.
        Returns the number of attempts."""
        attempts = self.engines.attempts()
        end = time.monotonic() + RECOVERY
        while True:
            running = self._in_flight()
            records = Counter(f"{r['request_id']}-{r['attempt']}" for r in self._records())
            missing = [name for name in attempts if name not in records]
            if not missing and not running:
                break
            if time.monotonic() > end:
                raise BrokenPromiseError(f"without a record: {missing[:5]}; still running: {running}")
            time.sleep(0.2)
        twice = [name for name, times in Counter(attempts).items() if records[name] > 1 or times > 1]
        if twice:
            raise BrokenPromiseError(f"recorded or sent more than once: {twice[:5]}")
        self._settled = datetime.now(UTC) - timedelta(seconds=1)
        return len(attempts)

    def _records(self) -> Iterator[dict[str, Any]]:
        """Records that ended since shortly before the last call of `settle`."""
        now = datetime.now(UTC) + timedelta(hours=1)
        query = {"from": self._settled.isoformat(), "to": now.isoformat(), "limit": "1000"}
        while True:
            page = self.gateway.call("GET", "/finance/v1/usage", None, **query)
            yield from page["data"]
            if page["next"] is None:
                return
            query["after"] = page["next"]

    def _in_flight(self) -> list[str]:
        answer = httpx2.get(
            f"{self.gateway.url}/metrics",
            headers={"authorization": f"Bearer {self.gateway.operator_key}"},
            timeout=30,
            trust_env=False,
        )
        lines = [line for line in answer.text.splitlines() if line.startswith("florin_in_flight{")]
        return [line for line in lines if float(line.rpartition(" ")[2]) != 0]
