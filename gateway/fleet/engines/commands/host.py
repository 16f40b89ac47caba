"""Implements `florin engine run`: hides secrets from the engine, runs the agent, hands over to a
successor."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import aiohttp

from adapters.engine_agent import addresses, engine_flags, gpus, key_protection
from adapters.engine_agent.agent import Agent
from adapters.engine_agent.artifact_download import StageError
from adapters.engine_agent.engine_client import EngineWatch
from adapters.engine_agent.gateway_client import GatewayClient, GatewayDownError, GatewayRefusedError
from adapters.engine_agent.handover import SIGNALS as HELD_BACK
from adapters.engine_agent.handover import AgentHandover, HandoverError, Successor
from adapters.engine_agent.state import AgentState, HostConfig
from adapters.errors import RejectedError
from adapters.wording import counted
from gateway.commands import log
from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean, note, say
from gateway.fleet.engines.commands import host_security
from gateway.fleet.engines.commands.enrolling import OPERATOR_KEY, TOKEN, HostKey
from gateway.serving.terminal import has_terminal

engine_log = logging.getLogger("florin.engine")

_SECRETS = (OPERATOR_KEY, TOKEN)
RUNNING = "running"
"""Key of the handover state among the secrets."""
_TELLING = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Handed:
    """State handed over by the previous process."""

    secrets: dict[str, str]
    running: AgentHandover | None


def _successor(secrets: dict[str, str]) -> Successor:
    """This same command, run with the code that is installed then."""
    command = [sys.executable, *sys.orig_argv[1:]]

    async def check() -> None:
        end = next(i for i, words in enumerate(pairwise(command)) if words == ("engine", "run")) + 2
        dry = [*command[:end], "--dry-run", *command[end:]]
        trial = await asyncio.create_subprocess_exec(
            *dry, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,  # without the secrets
        )  # fmt: skip
        _, errors = await trial.communicate()
        if trial.returncode:
            raise HandoverError(clean(errors.decode(errors="replace").strip()[-2000:]))

    def start(running: str) -> None:
        for handler in logging.getLogger().handlers:
            handler.flush()  # threads end with the exec
        key_protection.re_execute(command, os.environ, {**secrets, RUNNING: running})

    return Successor(check, start)


def begin_log() -> None:
    """Raises UsageError."""
    log.begin()
    engine_log.setLevel(logging.INFO)  # the engine's output is always logged


def engine_said(name: str, line: str) -> None:
    engine_log.info("%s", line, extra={"engine": name})


def concealed(given: dict[str, str], withheld: tuple[str, ...]) -> dict[str, str]:
    """The secrets of the environment that the engine must not get, not even from `/proc`: this process
    re-executes itself without them."""
    key_protection.conceal_memory()
    handed = key_protection.handed_over()
    secret = {name: os.environ[name] for name in _SECRETS if os.environ.get(name)}
    if not handed and (secret or any(_TELLING.search(n) for n in withheld if not n.startswith("FLORIN_"))):
        own = {n: v for n, v in os.environ.items() if n.startswith("FLORIN_") and n not in _SECRETS}
        key_protection.re_execute([sys.executable, *sys.orig_argv[1:]], given | own, secret)
    return handed


def with_merged(
    launch: engine_flags.Launch,
    gateway: str,
    key: HostKey,
    security: host_security.Security,
    *,
    name: str,
    version: str | None,
    cache: Path,
) -> tuple[str, ...]:
    """The engine's command, with the version merged into its weights, which are made beside `cache` if need
    be; None: none is. Raises UsageError."""
    if version is None:
        return launch.command
    from adapters.engine_agent import merging  # loads numpy

    async def merge() -> tuple[Path, str]:
        async with GatewayClient(gateway, key.key, key.reread, security.gateway) as client:
            root = cache.with_name(f"{cache.name}.merged")
            return await merging.merged_model(client, name, version, Path(launch.model), root)

    note(f"merging {clean(version)} into {clean(launch.model)} …")
    if not Path(launch.model).is_dir():
        raise UsageError(f"--merge needs the base model as a directory; {launch.model} is none.")
    try:
        merged, engine_name = asyncio.run(merge())
    except (GatewayDownError, GatewayRefusedError, StageError, RejectedError, OSError) as error:
        raise UsageError(f"--merge: {error}") from error
    return merging.with_weights(launch.command, launch.model, merged, engine_name)


def run(
    host: HostConfig, gateway: str, key: HostKey, security: host_security.Security, handed: Handed
) -> int:
    async def live() -> int:
        state = AgentState()
        loop = asyncio.get_running_loop()
        for number in HELD_BACK:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, state.ask_to_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, state.ask_to_restart)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        own = security.host
        connector = aiohttp.TCPConnector(ssl=own.engine.ssl)
        async with (
            GatewayClient(gateway, key.key, key.reread, security.gateway) as client,
            aiohttp.ClientSession(
                trust_env=False, connector=connector, headers=security.engine_headers
            ) as to_engine,
        ):
            own.engine.authorize(to_engine)
            watch = EngineWatch(to_engine, host.own_url, host.url)
            return await Agent(
                host, state, client, watch, own, _successor(handed.secrets), handed.running
            ).run()

    security.warn(host.agent_host)
    return int(asyncio.run(live()))


def size(text: str) -> int:
    """Parses `20GB` into bytes; k, M, G, T are powers of 1000, Ki, Mi, … of 1024. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--cache-size: {text!r} is not a size like 500MB or 20GB.")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def route(gateway: str) -> str:
    try:
        return addresses.route_to(gateway)
    except ValueError as error:
        raise UsageError(f"FLORIN_URL: no route to {gateway!r} ({error}).") from error


def advertised(url: str | None) -> tuple[str, int | None]:
    if url is None:
        return "", None
    try:
        return addresses.split(url)
    except ValueError as error:
        raise UsageError(f"--advertise: {url!r} must look like http://10.0.0.7:8000.") from error


def cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "florin" / "engines"


def shown(launch: engine_flags.Launch, on: gpus.Gpus) -> Json:
    return {
        "command": list(launch.command),
        "environment": launch.environment,
        "added": [{"flag": shlex.join(a.words), "why": a.why} for a in launch.additions],
        "base": launch.names[0],
        "slots": launch.slots,
        "cpu_slots": launch.cpu_slots,
        "max_rank": launch.max_rank,
        "seats": launch.seats or None,
        "gpu_type": on.type,
        "gpu_count": on.count,
    }


def show_dry(launch: engine_flags.Launch, on: gpus.Gpus) -> None:
    note_additions(launch)
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in launch.environment.items())
    say(f"{assigned} {shlex.join(launch.command)}")
    slots = f"{counted(launch.slots, 'slot')}, ranks up to {launch.max_rank}"
    note(f"Registers as {clean(launch.names[0])} on {on.count} x {clean(on.type)}, {slots}.")


def note_additions(launch: engine_flags.Launch) -> None:
    for addition in launch.additions:
        note(f"adds {shlex.join(addition.words)}: {addition.why}")
