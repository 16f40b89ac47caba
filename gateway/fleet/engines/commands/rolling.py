"""florin engine roll: restarts a fleet, one engine after the other."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import urlsplit

import typer

from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.fleet.engines.commands.draining import follow
from gateway.fleet.engines.schemas.engines import Drain, DrainOptions, Engine, RestartingEngine
from gateway.schemas.base import Listed

app = typer.Typer()

_STDERR = 2
_POLL_SECONDS = 0.5
_SETTLE_SECONDS = 3.0
"""After a restart without an agent, the gateway may take so long to see that the engine is empty."""


@command(app, "roll")
@with_options(DrainOptions, but=("release",))
def roll(
    session: Session,
    names: Annotated[list[str] | None, typer.Argument(help="The engines, in this order.")] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All engines, by name.")] = False,
    base: Annotated[str | None, typer.Option(help="Only engines that serve this base model.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="Shell command that restarts an engine, run here with FLORIN_ENGINE, FLORIN_ENGINE_HOST "
            "and FLORIN_ENGINE_URL set. Default: the engine's agent restarts it.",
        ),
    ] = None,
    wait_for_restart: Annotated[
        bool, typer.Option("--wait-for-restart", help="Wait until you have restarted each engine yourself.")
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Continue a roll: skip engines that have been restarted since then, like "
            "2026-07-01T12:00:00Z.",
        ),
    ] = None,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for a restarted engine to become healthy.")
    ] = 1800.0,
    trial: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=50,
            metavar="PERCENT",
            help="Try the first engine with this percentage of the requests, and continue only once its "
            "trial has shown that it is no worse than the others.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show which engines would be restarted, and change nothing.")
    ] = False,
    changes: Json,
) -> None:
    """Restart engines one after the other without a failed request, for example to upgrade vLLM.

    For each engine: drain it as `florin engine drain --keep` does, restart it, wait until it is healthy,
    return it to service, and wait until the adapters that it held are loaded again. Stops at the first
    failure, and says how to continue. Engines that are draining already are skipped unless they are named.

    Example: florin engine roll --all --base llama-8b

    Example: florin engine roll a1 a2 --command 'ssh $FLORIN_ENGINE_HOST systemctl restart vllm'
    """
    if bool(names) == (all_ or base is not None):
        raise UsageError("Name the engines, or use --all or --base MODEL.")
    if run and wait_for_restart:
        raise UsageError("Use either --command or --wait-for-restart.")
    begun = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=1)  # no restart is that quick
    first = _time(since) if since else begun
    steps = _chosen(session.api, names, base, resumed=since is not None, first=first)
    plan = {"since": _shown(first), "engines": [asdict(step) for step in steps]}
    if dry_run:
        session.result(plan, lambda _: _planned(steps))
        return
    restart = _by_command(run) if run else _by_operator if wait_for_restart else _by_agent
    timeout = DrainOptions(**changes).timeout
    todo = [step.engine for step in steps if not step.skipped]
    for number, name in enumerate(todo, 1):
        note(f"{clean(name)} ({number} of {len(todo)}): draining")
        try:
            roll_one = _Roll(session.api, name, first if since else None, timeout, start_timeout, restart)
            roll_one.run(trial if number == 1 else None)
        except _TrialFailedError:
            raise
        except (ApiError, UnreachableError) as error:
            again = shlex.join(_again(names, base, run, wait_for_restart=wait_for_restart))
            words = f"{error} Stopped at engine {clean(name)}; to continue: {again} --since {_shown(first)}"
            if isinstance(error, UnreachableError):
                raise UnreachableError(words) from error
            raise ApiError(error.status, words, error.code) from error
    session.result(plan, lambda _: _rolled(steps))


@dataclass(frozen=True, slots=True)
class _Step:
    engine: str
    skipped: str | None
    """Why; None: it is restarted."""


class _TrialFailedError(ApiError):
    """The new version is worse: the roll must not continue."""


@dataclass(frozen=True, slots=True)
class _Roll:
    """The roll of one engine. Each step looks at what is there, so that a second roll continues."""

    api: Api
    name: str
    since: datetime | None
    """An engine that was restarted since then is not restarted again."""
    timeout: float
    start_timeout: float
    restart: Callable[[Api, Engine], None]

    def run(self, trial: int | None) -> None:
        """`trial`: the share of requests with which it is tried. Raises ApiError, UnreachableError."""
        engine = self._engine()
        if self.since is None or not _restarted(engine, self.since):
            path = f"{self._path}/drain"
            if self.api.get(path, Drain).alone and engine.health == "up":
                raise ApiError(
                    409,
                    f"No other engine of {clean(engine.base)} takes requests, so a restart of {self.name} "
                    "would refuse them: start another engine first.",
                )
            if trial:
                self.api.put(f"{self._path}/trial", {"share": trial}, Engine)
            drain = self.api.post(path, {"timeout": self.timeout, "release": False}, Drain)
            follow(self.api, drain, self.timeout)
            note(f"{clean(self.name)}: drained, restarting")
            self.restart(self.api, engine)
            self._until(
                lambda now: _process(now) != _process(engine) and now.health == "up" and not now.stopping,
                self.start_timeout,
                f"Engine {self.name} has not been restarted and healthy within {self.start_timeout:g} s: see "
                "its log.",
            )
        if not engine.agent:
            self._settle()
        note(f"{clean(self.name)}: healthy, loading the adapters that it held")
        back = "cordoned" if engine.state == "cordoned" else "active"
        self.api.put(f"{self._path}/state", {"state": back}, Engine)
        self._until(
            lambda now: not now.lost,
            self.timeout,
            f"Engine {self.name} serves again, but not all of the adapters that it held are loaded: see "
            "florin doctor.",
        )

        if trial:
            name = clean(self.name)
            note(f"{name}: on trial; to see how it compares: florin engine trial {name}")
            self._until(lambda now: now.trial is None or bool(now.trial.stopped), math.inf, "")
            if (tried := self._engine().trial) is not None:
                raise _TrialFailedError(
                    409,
                    f"Engine {self.name} failed its trial and was drained; no other was restarted. "
                    f"{tried.stopped} Put its old version back, and restart it: florin engine roll "
                    f"{self.name}",
                )

    def _settle(self) -> None:
        """Wait, while the engine still gets no requests, until the gateway knows that its adapters are gone:
        until then it would send requests for them there, which would have to fail over."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while time.monotonic() < deadline:
            with contextlib.suppress(UnreachableError):  # the gateway itself may be restarting
                if self._engine().lost:
                    return
            time.sleep(_POLL_SECONDS)

    @property
    def _path(self) -> str:
        return f"/admin/v1/engines/{segment(self.name)}"

    def _engine(self) -> Engine:
        return self.api.get(self._path, Engine)

    def _until(self, true: Callable[[Engine], bool], seconds: float, otherwise: str) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                if true(self._engine()):
                    return
            except UnreachableError:  # the gateway itself may be restarting
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise ApiError(408, otherwise)
            time.sleep(_POLL_SECONDS)


# -- how an engine is restarted


def _by_agent(api: Api, engine: Engine) -> None:
    api.post(f"/admin/v1/engines/{segment(engine.name)}/restart", None, RestartingEngine)


def _by_operator(_: Api, engine: Engine) -> None:
    note(f"Restart engine {clean(engine.name)} ({clean(engine.url)}) now.")


def _by_command(shell: str) -> Callable[[Api, Engine], None]:
    def restart(_: Api, engine: Engine) -> None:
        environ = os.environ | {
            "FLORIN_ENGINE": engine.name,
            "FLORIN_ENGINE_HOST": urlsplit(engine.url).hostname or "",
            "FLORIN_ENGINE_URL": engine.url,
        }
        done = subprocess.run(shell, shell=True, env=environ, stdout=_STDERR, check=False)  # noqa: S602  # the operator's own
        if done.returncode:
            raise ApiError(500, f"The command exited with {done.returncode}.")

    return restart


# -- which engines


def _chosen(
    api: Api, names: list[str] | None, base: str | None, *, resumed: bool, first: datetime
) -> list[_Step]:
    """Raises UsageError."""
    engines = {engine.name: engine for engine in api.get("/admin/v1/engines", Listed[Engine]).data}
    if unknown := [name for name in names or () if name not in engines]:
        raise UsageError(f"There is no engine {clean(unknown[0])!r}.")
    steps = []
    for name in names or [name for name, engine in engines.items() if base in {None, engine.base}]:
        engine, skipped = engines[name], None
        if engine.state == "draining" and not (names or resumed):
            skipped = "is draining"
        elif resumed and _restarted(engine, first) and engine.state == "active" and not engine.lost:
            skipped = "has been restarted"
        elif engine.stopped:
            skipped = "is stopped"
        steps.append(_Step(name, skipped))
    return steps


def _process(engine: Engine) -> object:
    """Identifies the engine's process; of one without an agent, only the start is known."""
    return engine.epoch or engine.started


def _restarted(engine: Engine, first: datetime) -> bool:
    return engine.started >= first.timestamp() * 1e6


def _time(text: str) -> datetime:
    try:
        time_ = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since: {text!r} is not a time like 2026-07-01T12:00:00Z.") from error
    return time_ if time_.tzinfo else time_.replace(tzinfo=UTC)


def _shown(time_: datetime) -> str:
    return f"{time_.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _again(
    names: list[str] | None, base: str | None, run: str | None, *, wait_for_restart: bool
) -> list[str]:
    words = ["florin", "engine", "roll", *(names or ([] if base else ["--all"]))]
    words += ["--base", base] if base else []
    words += ["--command", run] if run else []
    return [*words, "--wait-for-restart"] if wait_for_restart else words


def _planned(steps: list[_Step]) -> None:
    rows = [(step.engine, f"skip: it {step.skipped}" if step.skipped else "restart") for step in steps]
    show(table(("engine", "plan"), rows))


def _rolled(steps: list[_Step]) -> None:
    done = sum(1 for step in steps if not step.skipped)
    say(f"{done} engine{'s' * (done != 1)} restarted; {len(steps) - done} skipped.")
