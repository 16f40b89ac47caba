"""`python -m loadtests.fairness`: what a tenant that floods two real engines does to the others, with and
without the fair queue.

Three tenants call steadily. In every other phase a fourth keeps many callers going at once. Each contestant
has a gateway of its own, and each answer is checked. Exit code 1 if one was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel
from loadtests.placement.callers import ADAPTERS, TENANTS, TIMEOUT, Question, Run, ask, call
from loadtests.placement.installation import conclude, engines, in_turn, installed, parser
from loadtests.tally import percentile

NOISY, *QUIET = TENANTS
CONTESTANTS = {"fair queue": "true", "no queue": "false"}
SETTINGS = {"FLORIN_WORKERS": "1", "FLORIN_PLACEMENT_INTERVAL": "0", "FLORIN_SLOW_START": "0"}
SEATS = 8
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
Figures = dict[str, float]


def main() -> int:
    options = _options()
    rounds: dict[str, list[Figures]] = {name: [] for name in CONTESTANTS}
    errors: list[str] = []
    with engines(console, EngineOptions(slots=4, max_num_seqs=SEATS)) as (fleet, folder):
        for number, name in in_turn(list(CONTESTANTS), options.rounds):
            directory = folder / f"{name.replace(' ', '-')}-{number}"
            figures, wrong = _measure(fleet, directory, CONTESTANTS[name], options, number)
            rounds[name].append(figures)
            errors += [f"{name}: {error}" for error in wrong]
            console.print(f"round {number + 1}: {name} {figures}", style="dim")
    medians = {
        name: {figure: statistics.median(r[figure] for r in measured) for figure in measured[0]}
        for name, measured in rounds.items()
    }
    _show(medians)
    shape = {"seconds": options.seconds, "noisy_callers": options.callers, "seats": SEATS}
    return conclude(console, options.json, errors, **shape, medians=medians, rounds=rounds)


def _options() -> argparse.Namespace:
    arguments = parser("loadtests.fairness", __doc__, rounds=3, callers=60)
    arguments.add_argument("--seconds", type=float, default=60, help="of each phase (60)")
    arguments.add_argument(
        "--rate", type=float, default=1.0, help="requests a second of each steady tenant (1)"
    )
    return arguments.parse_args()


def _measure(
    fleet: Fleet, directory: Path, fair: str, options: argparse.Namespace, number: int
) -> tuple[Figures, list[str]]:
    """One contestant's round, and what went wrong."""
    with installed(fleet, directory, SETTINGS | {"FLORIN_FAIR_QUEUE": fair}) as (gateway, keys):
        warming = [Question(tenant, name, "Hello!") for tenant, name in ADAPTERS]
        uvloop.run(call(gateway.url, keys, fleet.model, warming, 4))
        seed = options.seed + number
        alone, _ = uvloop.run(_phase(gateway.url, keys, fleet.model, options, seed, callers=0))
        others, noisy = uvloop.run(
            _phase(gateway.url, keys, fleet.model, options, seed, callers=options.callers)
        )
    p99 = [percentile(run.first_token, 0.99) * 1000 for run in (alone, others)]
    figures = {
        "alone_p50_ms": round(percentile(alone.first_token, 0.5) * 1000, 1),
        "alone_p99_ms": round(p99[0], 1),
        "flood_p50_ms": round(percentile(others.first_token, 0.5) * 1000, 1),
        "flood_p99_ms": round(p99[1], 1),
        "p99_ratio": round(p99[1] / p99[0], 2),
        "answers_per_second": round((others.engines.total() + noisy.engines.total()) / others.seconds, 2),
        "noisy_answers": noisy.engines.total(),
        "others_answers": others.engines.total(),
    }
    return figures, alone.errors + others.errors + noisy.errors


async def _phase(
    url: str, keys: dict[str, str], model: DemoModel, options: argparse.Namespace, seed: int, *, callers: int
) -> tuple[Run, Run]:
    """The steady tenants' answers and those of the one with so many callers."""
    others, noisy = Run(), Run()
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(url, timeout=timeout, connector=connector, trust_env=False) as session:
        began = time.perf_counter()
        until = began + options.seconds
        async with asyncio.TaskGroup() as group:
            for n in range(callers):
                draw = random.Random(f"{seed} caller {n}")
                group.create_task(_flood(session, keys, model, draw, until, noisy))
            for tenant in QUIET:
                arrivals = _arrivals(random.Random(f"{seed} {tenant}"), options.rate, options.seconds)
                group.create_task(_steady(session, keys, model, tenant, arrivals, others))
        others.seconds = noisy.seconds = time.perf_counter() - began
    return others, noisy


def _arrivals(draw: random.Random, rate: float, seconds: float) -> Iterator[tuple[float, random.Random]]:
    """Poisson arrivals: seconds from the start, and a source of choices."""
    arrival = draw.expovariate(rate)
    while arrival < seconds:
        yield arrival, draw
        arrival += draw.expovariate(rate)


async def _steady(
    session: aiohttp.ClientSession,
    keys: dict[str, str],
    model: DemoModel,
    tenant: str,
    arrivals: Iterator[tuple[float, random.Random]],
    run: Run,
) -> None:
    """Sends each request when it is due, whether or not the earlier ones are answered."""
    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for arrival, draw in arrivals:
            await asyncio.sleep(max(0.0, began + arrival - time.perf_counter()))
            group.create_task(_checked(session, keys, model, tenant, draw.choice(model.questions), run))


async def _flood(
    session: aiohttp.ClientSession,
    keys: dict[str, str],
    model: DemoModel,
    draw: random.Random,
    until: float,
    run: Run,
) -> None:
    while time.perf_counter() < until:
        await _checked(session, keys, model, NOISY, draw.choice(model.questions), run)


async def _checked(
    session: aiohttp.ClientSession, keys: dict[str, str], model: DemoModel, tenant: str, text: str, run: Run
) -> None:
    """One request, whose answer must be the adapter's, word for word."""
    question = Question(tenant, "support", text)
    try:
        answer = await ask(session, keys[tenant], question, run)
    except (TimeoutError, aiohttp.ClientError) as error:
        run.errors.append(repr(error))
        return
    if answer != model.adapters[tenant].answers[text]:
        run.errors.append(f"{question} was answered with {answer[:300]!r}")


def _show(medians: dict[str, Figures]) -> None:
    table = Table(
        title=f"A flood by {NOISY}: time to the first token of {', '.join(QUIET)}", title_justify="left"
    )
    headings: Sequence[str] = (
        *("", "alone p50, p99 ms", "flood p50, p99 ms", "p99 ratio"),
        *("answers /s", f"of {NOISY}", "of the others"),
    )
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for name, figures in medians.items():
        table.add_row(
            name,
            f"{figures['alone_p50_ms']:,.0f}, {figures['alone_p99_ms']:,.0f}",
            f"{figures['flood_p50_ms']:,.0f}, {figures['flood_p99_ms']:,.0f}",
            f"{figures['p99_ratio']:.2f}",
            f"{figures['answers_per_second']:.1f}",
            f"{figures['noisy_answers']:,.0f}",
            f"{figures['others_answers']:,.0f}",
        )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
