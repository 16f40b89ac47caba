"""`florin demo`: the whole system on this machine, with real vLLM engines.

Set-up (once per machine) → engines and gateway → customers and adapters → transcript → with `--exit` an end,
else the killed engine comes back and all of it stays up until Ctrl-C or SIGTERM. Whatever happens, everything
that was started is stopped, and the temporary directory removed.
"""

from __future__ import annotations

import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.text import Text

from deploy.demo.engine_env import EngineEnv, EngineEnvError, ensure_engine_env
from deploy.demo.engines import EngineStartError, Fleet
from deploy.demo.gateway import Gateway, GatewayError
from deploy.demo.model import ModelError, ensure_demo_model
from deploy.demo.stack import GPU_TYPES, Installation, install, wait_until_up
from deploy.demo.transcript import Transcript

USUAL_PORT = 8080
"""Where `florin` commands look if FLORIN_URL is not set."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NARROWEST = 110
"""Columns when the transcript goes to a file or a pipe."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM."""


def run(*, exit_after: bool, env_file: Path | None) -> int:
    """The exit code: 0 if everything shown was right and the end was asked for."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=NARROWEST)
    if env_file:
        env_file.unlink(missing_ok=True)  # whoever waits for it must not read another run's
    with _signals():
        try:
            return _run(console, exit_after=exit_after, env_file=env_file)
        except (EngineEnvError, ModelError, EngineStartError, GatewayError) as error:
            console.print(Text(str(error), style="red"))
            return 1
        except Stopped:
            console.print("Stopped.")
            return 130


def _run(console: Console, *, exit_after: bool, env_file: Path | None) -> int:
    env = ensure_engine_env(console)
    model = ensure_demo_model(env, console)
    began = time.monotonic()
    with (
        _directory() as directory,
        Fleet(env, model, logs=directory / "logs") as fleet,
        Gateway(directory / "state", directory / "logs" / "gateway.log", port=_port(exit_after)) as gateway,
    ):
        installation = _start(console, fleet, gateway)
        console.print(f"Ready after {time.monotonic() - began:.0f} s: {gateway.url}/v1")
        if exit_after and env_file:
            installation.write_env(env_file)
        transcript = Transcript(installation, console)
        right = transcript.play()
        _verdict(console, transcript)
        if exit_after or not right:
            console.print("Stopping everything…")
            return 0 if right else 1
        _repair(console, installation)
        if env_file:
            installation.write_env(env_file)
        _stay(console, installation, env_file)
        return 0


def _start(console: Console, fleet: Fleet, gateway: Gateway) -> Installation:
    kind = f"{fleet.env.gpus} GPUs" if fleet.env.gpus else "the CPU"
    console.print(f"Starting two vLLM engines on {kind}, Valkey and the gateway…")
    console.print(Text(labels(fleet.env), style="dim"))
    began = time.monotonic()
    with console.status("engines are starting…") as status:
        for engine in fleet.engines:
            fleet.launch(engine.index)
        gateway.launch()
        gateway.wait()
        fleet.wait(fleet.engines, lambda seconds: status.update(f"engines are starting: {seconds:.0f} s"))
    console.print(
        f"Engines answer after {time.monotonic() - began:.0f} s. Registering customers and adapters…"
    )
    return install(gateway, fleet, fleet.model)


def labels(env: EngineEnv) -> str:
    """What the demo shows that is not so."""
    types = " and ".join(GPU_TYPES)
    if env.gpus:
        return f"The GPU types {types} and their prices are made up: both engines run on this machine's GPUs."
    return (
        f"The GPU types {types} and their prices are made up: both engines run on the CPU, with one line of "
        "vLLM's CPU build patched (docs/vllm.md says which)."
    )


def _repair(console: Console, installation: Installation) -> None:
    """Bring back the engine that the transcript killed, and let every customer be answered once more."""
    dead = [engine for engine in installation.fleet.engines if not engine.alive]
    console.print()
    with console.status("the killed engine comes back…") as status:
        for engine in dead:
            installation.fleet.restart(
                engine.index, lambda seconds: status.update(f"the killed engine comes back: {seconds:.0f} s")
            )
        wait_until_up(installation.gateway, len(installation.fleet.engines))
    for engine in dead:
        console.print(f"Engine {installation.engine_name(engine.index)} is back, and takes adapters again.")
    transcript = Transcript(installation, console)
    for customer in installation.customers:
        answer = transcript.chat(customer, "Hello!")
        if not answer.right:
            raise GatewayError(f"{customer.name} was answered wrongly after the engine came back: {answer}")


def _verdict(console: Console, transcript: Transcript) -> None:
    console.print()
    if transcript.failures:
        console.print(Text(f"{len(transcript.failures)} things went wrong:", style="bold red"))
        for failure in transcript.failures:
            console.print(Text(f"  ✗ {failure}", style="red"))
    else:
        console.print(Text("Everything was as it should be.", style="bold green"))


def _stay(console: Console, installation: Installation, env_file: Path | None) -> None:
    """Until Ctrl-C, SIGTERM, or the death of the gateway."""
    customer = installation.customers[0]
    gateway = installation.gateway
    lines = (
        "",
        "All of it stays up until Ctrl-C. From another terminal:",
        "",
        f"  export FLORIN_URL={gateway.url} FLORIN_OPERATOR_KEY={gateway.operator_key}",
        "  .venv/bin/florin placement",
        "  .venv/bin/florin cost report",
        f"  curl {gateway.url}/v1/chat/completions -H 'authorization: Bearer {customer.key}' \\",
        "    -H 'content-type: application/json' \\",
        """    -d '{"model": "support", "temperature": 0,""",
        """         "messages": [{"role": "user", "content": "Who are you?"}]}'""",
        *((f"  source {env_file}     # all keys and addresses",) if env_file else ()),
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    try:
        while gateway.alive:
            time.sleep(0.5)
    except Stopped:
        console.print("\nStopping everything…")
        return
    raise GatewayError("The gateway ended by itself.")


@contextmanager
def _directory() -> Iterator[Path]:
    """For state and logs; kept when something goes wrong, so that the logs can be read."""
    directory = Path(tempfile.mkdtemp(prefix="florin-demo-"))
    try:
        yield directory
    except (EngineStartError, GatewayError):
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _port(exit_after: bool) -> int:  # noqa: FBT001 - private, one caller
    """The usual one for a demo that stays, if it is free; else any."""
    if exit_after:
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT, SIGTERM and a closed terminal raise Stopped once; while things are being stopped, further ones
    are ignored. Under nohup a closed terminal stops nothing."""
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heeded = STOPPING[:2] if nohup else STOPPING

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        for each in heeded:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped

    old = {each: signal.signal(each, stop) for each in heeded}
    try:
        yield
    finally:
        for each, handler in old.items():
            signal.signal(each, handler)
