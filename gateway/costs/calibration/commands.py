"""florin calibrate"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.output import clean, console, fail, note, say, show, table
from gateway.commands.session import REFUSED, Session, command
from gateway.costs.calibration.schemas import Calibration
from gateway.fleet.adapters.schemas.adapters import VersionDetails
from gateway.fleet.engines.schemas.engines import Engine
from gateway.schemas.base import Listed

if TYPE_CHECKING:
    from gateway.costs.calibration.fit import Fit, LoadSample
    from gateway.costs.calibration.load import EngineUnderLoad

app = typer.Typer()


@command(app, "calibrate")
def calibrate(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="A registered, idle engine.")],
    *,
    adapter: Annotated[
        str | None,
        typer.Option(help="TENANT/NAME to measure adapter loads with. Default: loads are not measured."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.05, help="Target duration of each measurement.")] = 3.0,
    repeats: Annotated[int, typer.Option(min=1, max=50, help="Repetitions of each of the nine loads.")] = 4,
    valid_from: Annotated[
        str | None, typer.Option("--from", help="Start of validity, ISO 8601. Default: this hour.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Measure although the engine is active or busy; less accurate.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and show, but store nothing.")] = False,
) -> None:
    """Measure the GPU time of prompt, cached and output tokens, of the KV cache, and of adapter loads.

    Runs a designed load directly on the engine (its URL must be reachable from here), fits the weights, and
    stores them for the engine's GPU type and base model. From then on Florin divides busy time by measured
    work instead of the default 1:2, and reports spare capacity while busy. Drain the engine first. The
    reconciliation reports the tokens spent as not Florin's.

    Example: florin engine drain a1 && florin calibrate a1 --adapter acme/support
    """
    import asyncio

    from gateway.costs.calibration.fit import CalibrationError, fit

    engine = _engine(session, name, force=force)
    path = _path(session, adapter) if adapter else None
    try:
        under, samples = asyncio.run(_measure(engine, path, seconds, repeats))
        weights = fit(samples)
    except* CalibrationError as group:
        fail(str(_first(group)))
        raise typer.Exit(REFUSED) from None
    new = {
        "gpu_type": engine.gpu_type,
        "base_model": engine.base,
        "engine_version": under.version,
        "valid_from": valid_from,
        "weights_ps": {w.term: w.picoseconds for w in weights.weights},
        "document": {
            "engine": name,
            "gpu_count": engine.gpu_count,
            "at_once": under.at_once,
            "fit": weights.document(),
            "samples": [asdict(s) for s in samples],
        },
    }
    if dry_run:
        session.result(new, lambda _: _show(weights, f"Dry run for {_pool(engine)}: not stored."))
        return
    kept = session.api.post("/admin/v1/calibrations", new, Calibration)
    stored = f"Stored for {_pool(engine)}, valid from {clean(kept.valid_from)}."
    session.result(kept, lambda _: _show(weights, stored))


def _pool(engine: Engine) -> str:
    return f"{clean(engine.gpu_type)} with {clean(engine.base)}"


def _engine(session: Session, name: str, *, force: bool) -> Engine:
    for engine in session.api.get("/admin/v1/engines", Listed[Engine]).data:
        if engine.name == name:
            busy = engine.running + engine.waiting
            if not force and (engine.state != "draining" or busy):
                raise UsageError(
                    f"{name} is {engine.state} with {counted(busy, 'request')}: drain it "
                    f"first (florin engine drain {name}), or measure anyway with --force."
                )
            return engine
    raise UsageError(f"No such engine: {name!r}. See florin engine list.")


def _path(session: Session, adapter: str) -> str | None:
    versions = session.api.get(f"/admin/v1/adapters/{adapter}/versions", Listed[VersionDetails])
    return versions.data[-1].path


async def _measure(
    engine: Engine, path: str | None, seconds: float, repeats: int
) -> tuple[EngineUnderLoad, list[LoadSample]]:
    from gateway.costs.calibration.design import loads
    from gateway.costs.calibration.load import EngineUnderLoad

    async with EngineUnderLoad(engine.url, engine.base, engine.gpu_count) as under:
        plan = list(loads(under.max_model_len, repeats))
        columns = (
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(), TimeRemainingColumn(),
        )  # fmt: skip
        with Progress(*columns, console=console(stderr=True), transient=True) as progress:
            task = progress.add_task("finding saturation", total=len(plan))
            await under.find_saturation()
            samples = []
            for load in plan:
                progress.update(task, description=f"measuring {load.phase}")
                samples.append(await under.measure(load, seconds))
                progress.advance(task)
            if path is not None:
                progress.update(task, description="measuring adapter loads")
                samples += await under.measure_loads(path)
        return under, samples


def _show(fit: Fit, outcome: str) -> None:
    from gateway.costs.calibration.fit import UNITS

    rows = [
        (
            w.term,
            unit,
            _micros(w.picoseconds) if w.measured else "not measured",
            f"{_micros(w.low)} to {_micros(w.high)}" if w.measured else "",
        )
        for w, unit in zip(fit.weights, UNITS, strict=True)
    ]
    heads = ("weight", "GPU time per", "microseconds", "95 % interval")
    show(table(heads, rows, right=heads[2:]))
    note(
        f"{fit.samples} measurements; the fit explains {fit.r_squared:.1%} of the variance; "
        f"largest error {fit.worst:.0%}."
    )
    say(outcome)


def _micros(picoseconds: int) -> str:
    return f"{picoseconds / 1e6:,.3f}"


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """The innermost error: a task group may wrap it more than once."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
