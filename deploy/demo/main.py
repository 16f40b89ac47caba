"""`florin demo`: the whole system on this machine, with real vLLM engines.

Set-up (once per machine) → engines and gateway → customers and adapters → transcript. With `--exit` the demo
then ends; otherwise it restarts the killed engine and stays up until Ctrl-C or SIGTERM. In every case it
stops everything it started and removes the temporary directory.
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

from adapters.wording import counted
from deploy.demo.engine_env import EngineEnv, EngineEnvError, ensure_engine_env
from deploy.demo.engines import EngineStartError, Fleet
from deploy.demo.gateway import Gateway, GatewayError
from deploy.demo.model import ModelError, ensure_demo_model
from deploy.demo.stack import GPU_TYPES, Installation, install, wait_until_up
from deploy.demo.transcript import Transcript

USUAL_PORT = 8080
"""The default port of `florin` commands."""
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
NARROWEST = 110
"""Width of the transcript if it is written to a file or a pipe."""


class ChecksFailedError(Exception):
    """A check of the transcript failed; what failed has been printed."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM."""


def run(*, exit_after: bool, env_file: Path | None) -> int:
    """Return the exit code: 0 if every check passed and the demo was asked to end."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=NARROWEST)
    if env_file:
        env_file.unlink(missing_ok=True)  # a waiting process must not read an earlier run's file
    with _signals():
        try:
            return _run(console, exit_after=exit_after, env_file=env_file)
        except (EngineEnvError, ModelError, EngineStartError, GatewayError, ChecksFailedError) as error:
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
        console.print(f"Watch it in a browser: {gateway.url}/console", markup=False, soft_wrap=True)
        console.print(f"  {_sign_in_link(gateway)}   (signs in once)", markup=False, soft_wrap=True)
        transcript = Transcript(installation, console)
        right = transcript.play()
        _verdict(console, transcript)
        if not right:
            raise ChecksFailedError(f"Stopping everything. The logs are in {directory / 'logs'}.")
        if exit_after:
            console.print("Stopping everything…")
            return 0
        _repair(console, installation)
        if env_file:
            installation.write_env(env_file)
        _stay(console, installation, env_file)
        return 0


def _start(console: Console, fleet: Fleet, gateway: Gateway) -> Installation:
    kind = counted(fleet.env.gpus, "GPU") if fleet.env.gpus else "the CPU"
    console.print(f"Starting two vLLM engines on {kind}, Valkey and the gateway…")
    console.print(Text(labels(fleet.env), style="dim"))
    began = time.monotonic()
    with console.status("starting engines…") as status:
        for engine in fleet.engines:
            fleet.launch(engine.index)
        gateway.launch()
        gateway.wait()
        fleet.wait(fleet.engines, lambda seconds: status.update(f"starting engines: {seconds:.0f} s"))
    console.print(
        f"Engines healthy after {time.monotonic() - began:.0f} s. Registering customers and adapters…"
    )
    return install(gateway, fleet, fleet.model)


def labels(env: EngineEnv) -> str:
    """Labels what is made up in the demo."""
    types = " and ".join(GPU_TYPES)
    if env.gpus:
        return f"The GPU types {types} and their prices are made up; both engines run on this machine's GPUs."
    return (
        f"The GPU types {types} and their prices are made up; both engines run on the CPU, with one line of "
        "vLLM's CPU build patched (see docs/vllm.md)."
    )


def _sign_in_link(gateway: Gateway) -> str:
    """A link to the console as the operator."""
    return f"{gateway.url}{gateway.call('POST', '/admin/v1/sign-in-links')['url']}"


def _repair(console: Console, installation: Installation) -> None:
    """Restart the engine that the transcript killed, and check that every customer gets an answer again."""
    dead = [engine for engine in installation.fleet.engines if not engine.alive]
    console.print()
    with console.status("restarting the killed engine…") as status:
        for engine in dead:
            installation.fleet.restart(
                engine.index, lambda seconds: status.update(f"restarting the killed engine: {seconds:.0f} s")
            )
        wait_until_up(installation.gateway, len(installation.fleet.engines))
    for engine in dead:
        console.print(f"Engine {installation.engine_name(engine.index)} is back and takes adapters again.")
    transcript = Transcript(installation, console)
    for customer in installation.customers:
        answer = transcript.chat(customer, "Hello!")
        if not answer.right:
            raise GatewayError(f"{customer.name} got a wrong answer after the engine restarted: {answer}")


def _verdict(console: Console, transcript: Transcript) -> None:
    console.print()
    if transcript.failures:
        console.print(Text(f"Failed checks: {len(transcript.failures)}", style="bold red"))
        for failure in transcript.failures:
            console.print(Text(f"  ✗ {failure}", style="red"))
    else:
        console.print(Text("All checks passed.", style="bold green"))


def _stay(console: Console, installation: Installation, env_file: Path | None) -> None:
    """Stay up until Ctrl-C, SIGTERM, or the gateway's exit."""
    customer = installation.customers[0]
    gateway = installation.gateway
    lines = (
        "",
        "The demo stays up until Ctrl-C. Try from another terminal:",
        "",
        f"  export FLORIN_URL={gateway.url} FLORIN_OPERATOR_KEY={gateway.operator_key}",
        "  .venv/bin/florin placement",
        "  .venv/bin/florin cost report",
        "  .venv/bin/florin console --open     # the same in a browser",
        f"  curl {gateway.url}/v1/chat/completions -H 'authorization: Bearer {customer.key}' \\",
        "    -H 'content-type: application/json' \\",
        """    -d '{"model": "support", "temperature": 0,""",
        """         "messages": [{"role": "user", "content": "Who are you?"}]}'""",
        *((f"  source {env_file}     # all keys and URLs",) if env_file else ()),
    )
    for line in lines:
        console.print(line, markup=False, soft_wrap=True)
    try:
        while gateway.alive:
            time.sleep(0.5)
    except Stopped:
        console.print("\nStopping everything…")
        return
    raise GatewayError("The gateway exited unexpectedly.")


@contextmanager
def _directory() -> Iterator[Path]:
    """A temporary directory for state and logs, kept after a failure so that the logs can be read."""
    directory = Path(tempfile.mkdtemp(prefix="florin-demo-"))
    try:
        yield directory
    except (EngineStartError, GatewayError, ChecksFailedError):
        raise
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _port(exit_after: bool) -> int:  # noqa: FBT001 - private, one caller
    """The default port if the demo stays up and the port is free; otherwise any."""
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
    """SIGINT, SIGTERM and SIGHUP raise Stopped once; further signals are ignored during the shutdown. Under
    nohup, SIGHUP stays ignored."""
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
