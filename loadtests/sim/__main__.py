"""`python -m loadtests.sim`: how a fleet serves a workload under each scheduling policy. See
loadtests/README.md."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from adapters.placement.scheduling.figures import ENGINE_MODELS, MEASURED
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.shared_prompts import SHARED, generate_shared
from gateway.planning.simulator.workloads import HOT, WORKLOADS, Workload, generate
from loadtests.sim import report
from loadtests.sim.capacity import capacity
from loadtests.sim.contestants import contestant
from loadtests.sim.dynamo.workloads import DYNAMO
from loadtests.sim.fairness import Backlogged, Flooded, backlog, both, flood
from loadtests.sim.fit import fit
from loadtests.sim.measured import Measured, measured
from loadtests.sim.trace_file import TraceError, read

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
FIRST, SLOTS = ["W1"], [8]
WORKERS, RATES = [1, 4], [30.0, 40.0, 50.0]
NONE: list[str] = []
NAMES = [*WORKLOADS, *SHARED, *DYNAMO]
EngineModelName = Annotated[str, typer.Option("--engine-model", help=", ".join(ENGINE_MODELS))]
POLICIES = ["cost", "power_of_two+direct", "landed"]
SEEDS = [11, 12, 13]
"""Never used for tuning: seeds 1 and 2 are for that."""
_console = Console(width=180)
_errors = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Job:
    """One contestant, site, workload and seed."""

    policy: str
    site: Site
    workload: str
    rate: float
    duration: float
    seed: int
    adapters: int | None
    cv: float | None
    big_ranks: float
    hot: float
    trace: Path | None

    @property
    def case(self) -> str:
        return f"{self.workload}, {self.site.slots} slots"

    def made(self) -> Workload:
        if self.trace is not None:
            return read(self.trace)
        if self.workload in SHARED:
            return generate_shared(
                self.workload, self.rate, self.duration, self.seed, adapters=self.adapters or 8
            )
        return generate(
            DYNAMO.get(self.workload, self.workload),
            self.rate,
            self.duration,
            self.seed,
            adapters=self.adapters,
            cv=self.cv,
            big_ranks=self.big_ranks,
            hot=self.hot,
        )


@app.callback(invoke_without_command=True)
def simulate(  # noqa: PLR0917 - options
    context: typer.Context,
    trace: Annotated[Path | None, typer.Option(help="CSV: arrival_s, tenant, adapter, rank, …")] = None,
    workload: Annotated[list[str], typer.Option(help=f"{', '.join(NAMES)}; repeatable")] = FIRST,
    policy: Annotated[list[str], typer.Option(help="with modifiers: activity+direct; repeatable")] = POLICIES,
    engines: Annotated[int, typer.Option(min=1)] = 8,
    slots: Annotated[list[int], typer.Option(min=1, help="GPU slots of an engine; repeatable")] = SLOTS,
    cpu_slots: Annotated[int, typer.Option(help="adapters in an engine's CPU memory")] = 64,
    seats: Annotated[
        int, typer.Option(min=1, help="requests that an engine runs at a time")
    ] = Hardware.of().max_sequences,
    engine_model: EngineModelName = MEASURED,
    pin: Annotated[list[str], typer.Option(help="an adapter that is pinned: a5; repeatable")] = NONE,
    merged: Annotated[
        list[str], typer.Option(help="an adapter that is merged into one of the engines: a0; repeatable")
    ] = NONE,
    workers: Annotated[int, typer.Option(min=1)] = 1,
    rate: Annotated[float, typer.Option(min=0.001, help="requests per second; with --capacity a guess")] = 20,
    duration: Annotated[float, typer.Option(min=1, help="seconds of arrivals")] = 300,
    adapters: Annotated[int | None, typer.Option(min=2, help="default: the workload's")] = None,
    cv: Annotated[float | None, typer.Option(min=0.1, help="of the gaps between arrivals")] = None,
    big_ranks: Annotated[float, typer.Option(min=0, max=1, help="share of adapters of rank 64")] = 0.0,
    hot: Annotated[float, typer.Option(min=0, max=1, help="share of a0 in the workload hot")] = HOT,
    pool: Annotated[int | None, typer.Option(min=1, help="engines that take rank 64; default: all")] = None,
    fair_queue: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--fair-queue/--no-fair-queue", help="tenants take turns while engines are full")
    ] = False,
    labels: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--labels", help="tenant t0 requires region=eu, which every other engine has")
    ] = False,
    slo_ttft: Annotated[float, typer.Option(help="seconds to the first token; also the deadline")] = 2.0,
    slo_itl: Annotated[float, typer.Option(help="mean seconds between tokens")] = 0.1,
    seeds: Annotated[list[int], typer.Option(help="repeatable")] = SEEDS,
    find_capacity: Annotated[  # noqa: FBT002 - an option
        bool, typer.Option("--capacity", help="find the rate at which 95 % meet both objectives")
    ] = False,
    jobs: Annotated[int, typer.Option(min=1, help="processes")] = 1,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file")] = None,
    plot: Annotated[Path | None, typer.Option(help="with --capacity: write an SVG")] = None,
) -> None:
    """Simulate; without options, one small comparison."""
    if context.invoked_subcommand:
        return
    _check(policy, workload, engine_model)
    plans = [
        Job(
            each,
            Site(
                engines,
                slot,
                cpu_slots,
                workers,
                slo_ttft,
                slo_itl,
                pool,
                labels,
                pins=frozenset(pin),
                merged=tuple(merged),
                fair_queue=fair_queue,
                hardware=Hardware.of(engine_model, max_sequences=seats),
            ),
            trace.stem if trace else load,
            rate,
            duration,
            seed,
            adapters,
            cv,
            big_ranks,
            hot,
            trace,
        )
        for load in (workload[:1] if trace else workload)
        for slot in slots
        for each in policy
        for seed in (seeds[:1] if trace else seeds)
    ]
    settings = {
        "engines": engines, "cpu_slots": cpu_slots, "workers": workers, "rate": rate, "duration": duration,
        "slo_ttft": slo_ttft, "slo_itl": slo_itl, "seeds": seeds,
        "big_ranks": big_ranks, "pool": pool, "labels": labels, "fair_queue": fair_queue, "seats": seats,
        "pins": pin, "engine_model": engine_model, "merged": merged, "hot": hot,
    }  # fmt: skip
    try:
        done = _all(plans, jobs, find_capacity=find_capacity)
    except TraceError as error:
        raise _stop(str(error)) from error
    document: dict[str, Any] = {"settings": settings}
    if find_capacity:
        capacities: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for job in plans:
            capacities[job.case][job.policy].append(done[job])
        report.show_capacities(_console, capacities)
        document["capacity"] = capacities
        if plot:
            plot.write_text(report.capacities_plot(capacities))
    else:
        courses: dict[str, dict[str, list[Measured]]] = defaultdict(lambda: defaultdict(list))
        for job in plans:
            courses[job.case][job.policy].append(done[job])
        for case, rows in courses.items():
            report.show_courses(_console, case, rows)
        document["courses"] = {case: report.courses_document(rows) for case, rows in courses.items()}
    if json:
        json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))


@app.command("fit")
def show_fit(
    engine_model: EngineModelName = MEASURED,
    json: Annotated[Path | None, typer.Option(help="write the figures to this file")] = None,
) -> None:
    """Compare the engine model with measurements."""
    _check([], [], engine_model)
    fitted = fit(engine_model)
    report.show_fit(_console, fitted)
    if json:
        rows = [{**asdict(each.point), "model": each.model, "error": each.error} for each in fitted]
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


@app.command("flood")
def show_floods(  # noqa: PLR0917 - options
    policy: Annotated[str, typer.Option(help="with modifiers")] = "cost+wait",
    engines: Annotated[int, typer.Option(min=1)] = 8,
    slots: Annotated[int, typer.Option(min=1, help="GPU slots of an engine")] = 32,
    seats: Annotated[int, typer.Option(min=1, help="requests that an engine runs at a time")] = 64,
    engine_model: EngineModelName = MEASURED,
    workers: Annotated[list[int], typer.Option(min=1, help="repeatable")] = WORKERS,
    rate: Annotated[list[float], typer.Option(min=0.1, help="of all, without the flood; repeatable")] = RATES,
    overload: Annotated[float, typer.Option(help="rate at which all tenants ask for too much")] = 100,
    adapters: Annotated[int | None, typer.Option(min=16, help="default: 64")] = None,
    weight: Annotated[list[str], typer.Option(help="t1=2, for the overload; repeatable")] = NONE,
    priority: Annotated[list[str], typer.Option(help="t1=0 (high) to 2 (low); repeatable")] = NONE,
    seeds: Annotated[list[int], typer.Option(help="repeatable")] = SEEDS,
    json: Annotated[Path | None, typer.Option(help="write all figures to this file")] = None,
    plot: Annotated[Path | None, typer.Option(help="write an SVG")] = None,
) -> None:
    """What a flood of one of 16 tenants, 20 times its share for 60 s, does to the others, without and with
    the fair queue; and how evenly tenants are served that all ask for too much."""
    _check([policy], [], engine_model)
    scheduling, hardware = contestant(policy), Hardware.of(engine_model, max_sequences=seats)
    levels = tuple((tenant, int(level)) for tenant, level in map(_pair, priority))
    weights = tuple(map(_pair, weight))
    floods: dict[str, dict[str, list[Flooded]]] = defaultdict(lambda: defaultdict(list))
    backlogs: dict[str, dict[str, list[Backlogged]]] = defaultdict(lambda: defaultdict(list))
    for number in workers:
        base = Site(engines, slots, workers=number, hardware=hardware, levels=levels)
        for seed in seeds:
            where = f"{number} worker{'s' * (number > 1)}"
            for name, site in zip(("no queue", "fair queue"), both(base), strict=True):
                for each in rate:
                    flooded = flood(site, scheduling, each, seed, adapters=adapters)
                    floods[f"{each:g} requests/s, {where}"][name].append(flooded)
                weighted = replace(site, weights=weights)
                over = backlog(weighted, scheduling, overload, seed, adapters=adapters)
                backlogs[f"{overload:g} requests/s, {where}"][name].append(over)
    report.show_floods(_console, floods)
    report.show_backlogs(_console, backlogs)
    if json:
        document = {"floods": floods, "backlogs": backlogs}
        json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if plot:
        plot.write_text(report.floods_plot(floods))


def _pair(text: str) -> tuple[str, float]:
    tenant, _, value = text.partition("=")
    try:
        return tenant, float(value)
    except ValueError:
        raise _stop(f"{text!r} is not TENANT=NUMBER") from None


def _check(policies: list[str], workloads: list[str], engine_model: str) -> None:
    if engine_model not in ENGINE_MODELS:
        raise _stop(f"no engine model {engine_model!r}; there are {', '.join(ENGINE_MODELS)}")
    try:
        for each in policies:
            contestant(each)
    except ValueError as error:
        raise _stop(str(error)) from error
    for name in workloads:
        if name not in NAMES:
            raise _stop(f"no workload {name!r}; there are {', '.join(NAMES)}")


def _stop(message: str) -> typer.Exit:
    _errors.print(message, style="red", highlight=False, soft_wrap=True)
    return typer.Exit(2)


def _all(plans: list[Job], processes: int, *, find_capacity: bool) -> dict[Job, Any]:
    run = _capacity if find_capacity else _measured
    with _bar() as bar:
        task = bar.add_task("", total=len(plans))
        if processes == 1:
            done = {}
            for job in plans:
                bar.update(task, description=f"{job.policy}: {job.case}")
                done[job] = run(job)
                bar.advance(task)
            return done
        with ProcessPoolExecutor(processes) as pool:
            futures = {pool.submit(run, job): job for job in plans}
            for future in as_completed(futures):
                job = futures[future]
                bar.update(task, description=f"{job.policy}: {job.case}", advance=1)
            return {job: future.result() for future, job in futures.items()}


def _capacity(job: Job) -> float:
    return capacity(job.site, contestant(job.policy), job.made())


def _measured(job: Job) -> Measured:
    return measured(Simulation(job.site, contestant(job.policy), job.made()), job.site)


def _bar() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=_errors, transient=True)


if __name__ == "__main__":
    app()
