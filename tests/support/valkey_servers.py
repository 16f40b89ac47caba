"""Several Valkey servers: a primary with a replica and three Sentinels, or a Cluster of six."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from adapters.store.embedded import _binary
from tests.support.engine_hosts import free_port
from tests.support.waiting import PATIENCE_S

DATA = ("--save", "", "--repl-diskless-sync-delay", "0")
"""Options of servers with data. By default a replica waits five seconds for its first copy."""


_HURRY = ["INFO-PERIOD", "100", "PUBLISH-PERIOD", "100", "ASK-PERIOD", "100", "PING-PERIOD", "300"]
"""Milliseconds, for Sentinels. They promote no replica whose last INFO is older than five times the last, and ask
for it once a second while the primary is down."""
_MANUAL = Path(__file__).parents[2] / "docs" / "shared-state.md"


def restricted(prefix: str, password: str) -> list[str]:
    """The documentation's command that creates a user who may do what Florin needs, and no more."""
    words = _MANUAL.read_text().partition("\nACL SETUSER ")[2].partition("```")[0].split()
    command = " ".join(words).replace("~{florin}", f"~{{{prefix}}}").replace("PASSWORD", password)
    return ["ACL", "SETUSER", *command.replace("florin on", f"{prefix} on", 1).split()]


class Servers:
    """Processes by port. Mutable."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *options: str, first: tuple[str, ...] = (), port: int = 0) -> int:
        port = port or free_port()
        home = self._directory / str(port)
        home.mkdir(parents=True)
        command = [str(_binary()), *first, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
        with (home / "log").open("wb") as log:
            self._running[port] = subprocess.Popen([*command, *options], stdout=log, stderr=log)
        return port

    def kill(self, port: int) -> None:
        process = self._running.pop(port)
        process.kill()
        process.wait()

    def stop(self) -> None:
        for port in list(self._running):
            self.kill(port)


def eventually(condition: Callable[[], object], seconds: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
        except RedisError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.02)


def ask(port: int, *command: object) -> object:
    with Redis(port=port) as server:
        return server.execute_command(*command)


@contextmanager
def servers(directory: Path) -> Iterator[Servers]:
    running = Servers(directory)
    try:
        yield running
    finally:
        running.stop()


Announced = Callable[[int], int]
"""The port at which clients find a server, by the port on which it listens."""


def _as_it_is(port: int) -> int:
    return port


def start_sentinels(
    running: Servers, directory: Path, announced: Announced = _as_it_is
) -> tuple[int, int, list[int]]:
    """Ports of a primary, its replica, and three Sentinels that fail over within a second."""
    primary, replica = (free_port() for _ in range(2))
    found = announced(primary)
    running.start(*DATA, "--replica-announce-port", str(found), port=primary)
    follows = ("--replicaof", f"127.0.0.1 {primary}", "--replica-announce-port", str(announced(replica)))
    running.start(*DATA, *follows, port=replica)
    eventually(lambda: b"master_link_status:up" in _raw(replica, "INFO", "replication"))
    sentinels = []
    for number in range(3):
        file = directory / f"sentinel-{number}.conf"
        file.write_text(
            f"sentinel monitor main 127.0.0.1 {found} 2\nsentinel down-after-milliseconds main 500\n"
            "sentinel failover-timeout main 2000\n"
        )
        sentinels.append(running.start(first=(str(file), "--sentinel")))
    for port in sentinels:  # by default they speak every two seconds, and look for replicas every ten
        eventually(lambda port=port: ask(port, "SENTINEL", "DEBUG", *_HURRY))
    for port in sentinels:
        eventually(lambda port=port: _sees(port))
    return primary, replica, sentinels


def _sees(sentinel: int) -> bool:
    with Redis(port=sentinel) as server:
        state = server.sentinel_masters()["main"]
    return state["num-other-sentinels"] == 2 and state["num-slaves"] == 1


def _raw(port: int, *command: str) -> bytes:
    with Redis(port=port) as server:
        server.set_response_callback("INFO", lambda reply, **_: reply)
        return bytes(server.execute_command(*command))


def start_cluster(running: Servers, announced: Announced = _as_it_is) -> list[int]:
    """Ports of three primaries and then their replicas."""
    options = (
        *DATA,
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "500",
        "--cluster-replica-validity-factor",
        "0",
    )
    buses = [free_port() for _ in range(6)]  # by default ports 10,000 higher, which there may not be
    nodes = [free_port() for _ in buses]
    for node, bus in zip(nodes, buses, strict=True):
        own = ("--cluster-port", str(bus), "--cluster-announce-port", str(announced(node)))
        running.start(*options, *own, port=node)
    for node in nodes:
        eventually(lambda node=node: ask(node, "PING"))
    for number, node in enumerate(nodes[:3]):
        first, last = number * 5462, min(16383, number * 5462 + 5461)
        ask(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
        ask(node, "CLUSTER", "SET-CONFIG-EPOCH", number + 1)
    for node, bus in zip(nodes[1:], buses[1:], strict=True):
        ask(nodes[0], "CLUSTER", "MEET", "127.0.0.1", node, bus)
    ids = [bytes(ask(node, "CLUSTER", "MYID")).decode() for node in nodes[:3]]
    for number, node in enumerate(nodes[3:]):

        def follows(node: int = node, primary: str = ids[number]) -> object:
            return ask(node, "CLUSTER", "REPLICATE", primary)

        eventually(follows)
    for node in nodes:
        eventually(lambda node=node: _ready(node))
    return nodes


def slot_owner(port: int, key: str) -> int:
    """The port at which clients find the primary of that key."""
    with Redis(port=port) as server:
        slot = server.execute_command("CLUSTER KEYSLOT", key)
        for first, last, owner, *_ in server.execute_command("CLUSTER SLOTS"):
            if first <= slot <= last:
                return int(owner[1])
    raise AssertionError


def _ready(node: int) -> bool:
    with Redis(port=node) as server:
        info = server.execute_command("CLUSTER INFO")
        slots = server.execute_command("CLUSTER SLOTS")
    return info["cluster_state"] == "ok" and all(len(found) == 4 for found in slots)
