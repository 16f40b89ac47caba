"""florin engine run: what an operator puts into systemd or a pod, one for each engine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import signal
import sys
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapters.hosts import addresses, concealment, environment, gpus
from adapters.hosts.command_line import CommandRefusedError
from adapters.hosts.handover import SIGNALS as HELD_BACK
from adapters.hosts.handover import HandoverError, Running, Successor
from adapters.hosts.life import Host, Life
from adapters.terminal import has_terminal
from gateway import logs
from gateway.commands.client import Json, UsageError
from gateway.commands.enrolling import OPERATOR_KEY, TOKEN, HostKey, TokenFile, check_name, host_key
from gateway.commands.output import clean, note, say
from gateway.commands.prices import Purchase
from gateway.commands.session import HostKeyFile, Session, command

if TYPE_CHECKING:  # imported where an engine is started: `florin engine list` need not wait for them
    from adapters.hosts import flags
    from gateway.commands import host_security

app = typer.Typer()

engine_log = logging.getLogger("florin.engine")

_SECRETS = (OPERATOR_KEY, TOKEN)
RUNNING = "running"
"""What is handed over besides secrets."""
_TELLING = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE)


@command(app, "run", key_file=HostKeyFile)
def run(
    session: Session,
    engine_command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="vllm serve MODEL, with vLLM's own flags.")
    ],
    *,
    name: Annotated[str, typer.Option(help="1 to 63 of a-z, 0-9, - and _; one engine's own.")],
    gpu_type: Annotated[
        str | None,
        typer.Option(help="The label that prices are given for; found by NVML where there is a GPU."),
    ] = None,
    gpu_count: Annotated[
        int | None, typer.Option(min=1, help="GPUs of this engine; by its parallel sizes if left out.")
    ] = None,
    region: Annotated[str, typer.Option(help="Where its GPUs are paid for, as in the price book.")] = "",
    purchase: Annotated[Purchase, typer.Option(help="How its GPUs are paid for.")] = Purchase.ON_DEMAND,
    advertise: Annotated[
        str | None,
        typer.Option(help="Where the gateway reaches the engine, if not at the address that leads to it."),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Where versions are kept on this host; ~/.cache/florin/engines/NAME.")
    ] = None,
    cache_size: Annotated[
        str, typer.Option("--cache-size", "--cache-bytes", help="How much they may take: 500MB, 20GB.")
    ] = "20GB",
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for running requests to finish after SIGTERM.")
    ] = 120.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for the engine to become healthy; then it is started anew.")
    ] = 1800.0,
    agent_host: Annotated[
        str | None, typer.Option(help="Address that the agent listens on, for the gateway to ask for files.")
    ] = None,
    agent_port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 takes a free one.")] = 0,
    token_file: TokenFile = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A variable that the engine is given, beside those that vLLM and its libraries know; "
            "`AWS_*`: all that begin so. May be repeated.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the engine's command and environment, and start nothing.")
    ] = False,
) -> None:
    """Start an engine, keep it running, and keep the gateway informed, until SIGTERM or Ctrl-C. SIGHUP starts
    the agent itself anew, for instance a new version of it, while its engine goes on serving.

    Adds the flags that Florin needs and refuses those that would break it. Restarts the engine when it dies,
    keeps versions' files on this host, and drains before it stops: a second signal hurries. Its first start
    exchanges an enrolment token (--token-file) for a key of this host's own. Exit codes: 0 stopped as asked,
    1 could not begin, 2 usage, 3 no gateway answered to the token.

    Example: florin engine run --name a1 -- vllm serve /models/llama-8b --served-model-name llama-8b
    --max-loras 8
    """
    from adapters.hosts import flags  # noqa: PLC0415  # see above
    from gateway.commands import host_security  # noqa: PLC0415  # likewise

    check_name(name)
    try:
        route = _route(session.gateway)
        host, port = _advertised(advertise)
        launch = flags.plan(
            engine_command,
            os.environ,
            host=addresses.to_bind(host) if host else route,
            port=port or flags.DEFAULTS["port"],
        )
        found = gpus.find(
            gpus.read_products(),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            engine=launch.gpus,
            gpu_type=gpu_type,
            gpu_count=gpu_count,
        )
        cache_bytes = size(cache_size)
    except gpus.GpuError as error:
        raise UsageError(str(error)) from error
    except CommandRefusedError as error:
        raise UsageError("The engine's command is refused:\n" + "\n".join(error.reasons)) from error
    given, withheld = environment.split(os.environ, pass_env or ())
    if dry_run:
        if found.note:
            note(found.note)
        session.result(_shown(launch, found) | {"withheld": list(withheld)}, _dry)
        return
    if session.key_on_command_line:
        raise UsageError(
            "--operator-key shows the key to every process of this host: put it into a file (--key-file)."
        )
    handed = _concealed(given, withheld)
    begin_log()
    key = host_key(session, name, token_file, handed)
    if found.note:
        note(found.note)
    if withheld:
        names = clean(" ".join(withheld))
        note(f"withholds from the engine: {names} (--pass-env NAME gives it what it needs)")
    for addition in launch.additions:
        note(f"adds {shlex.join(addition.words)}: {addition.why}")
    security = host_security.of(launch, advertise, api_url=session.gateway)
    scheme = "https" if launch.tls else "http"
    reached = host or (route if launch.host in addresses.ANYWHERE else launch.host)
    own = "127.0.0.1" if launch.host in addresses.ANYWHERE else launch.host
    hosted = Host(
        name=name,
        command=launch.command,
        environ=given | launch.environment,
        model=launch.model,
        names=launch.names,
        slots=launch.slots,
        cpu_slots=launch.cpu_slots,
        max_rank=launch.max_rank,
        chat_template=launch.chat_template,
        gpu_type=found.type,
        gpu_count=found.count,
        region=region,
        purchase=purchase.value,
        url=(advertise or f"{scheme}://{addresses.bracketed(reached)}:{launch.port}").rstrip("/"),
        own_url=f"{scheme}://{addresses.bracketed(own)}:{launch.port}",
        agent_host=agent_host or route,
        agent_port=agent_port,
        agent_address=host or (route if (agent_host or "") in addresses.ANYWHERE else agent_host or route),
        cache_dir=cache_dir or _cache_home() / name,
        cache_bytes=cache_bytes,
        drain_timeout=drain_timeout,
        start_timeout=start_timeout,
        say=partial(_engine_said, name) if logs.is_json() else None,
    )
    running = handed.pop(RUNNING, "")
    agent = Handed(handed, Running.of(running) if running else None)
    raise typer.Exit(_live(hosted, session.gateway, key, security, agent))


@dataclass(frozen=True, slots=True)
class Handed:
    """What this process has from the one that it was before."""

    secrets: dict[str, str]
    running: Running | None


def _successor(secrets: dict[str, str]) -> Successor:
    """This very command, once more, with whatever code is installed by then."""
    command = [sys.executable, *sys.orig_argv[1:]]

    async def check() -> None:
        at = next(i for i, words in enumerate(pairwise(command)) if words == ("engine", "run")) + 2
        dry = [*command[:at], "--dry-run", *command[at:]]
        tried = await asyncio.create_subprocess_exec(
            *dry, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,  # and without the secrets, which it does not need
        )  # fmt: skip
        _, said = await tried.communicate()
        if tried.returncode:
            raise HandoverError(clean(said.decode(errors="replace").strip()[-2000:]))

    def start(running: str) -> None:
        for handler in logging.getLogger().handlers:
            handler.flush()  # threads end with the exec
        concealment.start_anew(command, os.environ, {**secrets, RUNNING: running})

    return Successor(check, start)


def begin_log() -> None:
    """As the gateway's settings of the same names say. Raises UsageError."""
    for variable, allowed in (("FLORIN_LOG_FORMAT", logs.FORMATS), ("FLORIN_LOG_LEVEL", logs.LEVELS)):
        value = os.environ.get(variable) or allowed[0]
        if value not in allowed:
            raise UsageError(f"{variable} must be one of {', '.join(allowed)}; it is {value!r}.")
    logs.log_to_stderr()
    engine_log.setLevel(logging.INFO)  # what an engine writes goes on, whatever of ours is logged


def _engine_said(name: str, line: str) -> None:
    engine_log.info("%s", line, extra={"engine": name})


def _concealed(given: dict[str, str], withheld: tuple[str, ...]) -> dict[str, str]:
    """What of the environment is secret and not for the engine, which must not read it from `/proc` either:
    this process starts itself anew without it."""
    concealment.conceal_memory()
    handed = concealment.handed_over()
    secret = {name: os.environ[name] for name in _SECRETS if os.environ.get(name)}
    if not handed and (secret or any(_TELLING.search(n) for n in withheld if not n.startswith("FLORIN_"))):
        own = {n: v for n, v in os.environ.items() if n.startswith("FLORIN_") and n not in _SECRETS}
        concealment.start_anew([sys.executable, *sys.orig_argv[1:]], given | own, secret)
    return handed


def _live(host: Host, gateway: str, key: HostKey, security: host_security.Security, handed: Handed) -> int:
    import aiohttp  # noqa: PLC0415 - the other commands need none of these

    from adapters.hosts.agent import Agent  # noqa: PLC0415 - as above
    from adapters.hosts.engine_watch import EngineWatch  # noqa: PLC0415 - as above
    from adapters.hosts.link import Link  # noqa: PLC0415 - as above

    async def live() -> int:
        life = Life()
        loop = asyncio.get_running_loop()
        for number in HELD_BACK:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                loop.add_signal_handler(number, life.ask_to_stop)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and not has_terminal():
            loop.add_signal_handler(signal.SIGHUP, life.ask_to_renew)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_BACK)
        own = security.host
        connector = aiohttp.TCPConnector(ssl=own.engine.ssl)
        async with (
            Link(gateway, key.key, key.reread, security.gateway) as link,
            aiohttp.ClientSession(
                trust_env=False, connector=connector, headers=security.engine_headers
            ) as to_engine,
        ):
            own.engine.authorize(to_engine)
            watch = EngineWatch(to_engine, host.own_url, host.url)
            return await Agent(host, life, link, watch, own, _successor(handed.secrets), handed.running).run()

    security.warn(host.agent_host)
    return int(asyncio.run(live()))


def size(text: str) -> int:
    """`20GB` in bytes; k, M, G, T are powers of 1000, with an i (GiB) of 1024. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise UsageError(f"--cache-size: {text!r} is not a size like 500MB or 20GB.")
    power = " kmgt".index(match[2].lower() or " ")
    return int(float(match[1]) * (1024 if match[3] else 1000) ** power)


def _route(gateway: str) -> str:
    try:
        return addresses.route_to(gateway)
    except ValueError as error:
        raise UsageError(f"FLORIN_URL: no way leads to {gateway!r} ({error}).") from error


def _advertised(url: str | None) -> tuple[str, int | None]:
    if url is None:
        return "", None
    try:
        return addresses.split(url)
    except ValueError as error:
        raise UsageError(f"--advertise: {url!r} must look like http://10.0.0.7:8000.") from error


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "florin" / "engines"


def _shown(launch: flags.Launch, found: gpus.Gpus) -> Json:
    return {
        "command": list(launch.command),
        "environment": launch.environment,
        "added": [{"flag": shlex.join(a.words), "why": a.why} for a in launch.additions],
        "base": launch.names[0],
        "slots": launch.slots,
        "cpu_slots": launch.cpu_slots,
        "max_rank": launch.max_rank,
        "gpu_type": found.type,
        "gpu_count": found.count,
    }


def _dry(body: Json) -> None:
    for added in body["added"]:
        note(f"adds {added['flag']}: {added['why']}")
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in body["environment"].items())
    say(f"{assigned} {shlex.join(body['command'])}")
    gpus_ = f"{body['gpu_count']} x {clean(body['gpu_type'])}"
    slots = f"{body['slots']} slots, ranks up to {body['max_rank']}"
    note(f"Registers as {clean(body['base'])} on {gpus_}, {slots}.")
