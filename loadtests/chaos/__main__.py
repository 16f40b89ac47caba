"""`make chaos`: injects faults of every kind, on a seeded schedule, into an installation under load, and then
checks invariants. Exits with 1 if one is violated, and prints the command that repeats the run."""

from __future__ import annotations

import argparse
import json
import logging
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadtests.chaos.report import document, show
from loadtests.chaos.run import Result, run
from loadtests.chaos.schedule import KINDS, Event, plan
from loadtests.chaos.world import ChaosCluster, stop_on_signals

KILLS = 50
QUICK = ("worker-kill", "engine-kill", "engine-cut", "redis-kill", "postgres-kill")
"""Faults of the short form, one of each."""
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def main() -> int:
    options = _options()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # the proxies reset connections all the time
    directory = options.keep or Path(tempfile.mkdtemp(prefix="florin-chaos-"))
    directory.mkdir(parents=True, exist_ok=True)
    try:
        result = uvloop.run(_run(options, directory.resolve()))
    except BaseException:
        console.print(f"To repeat: {again(options)}", markup=False, highlight=False)
        raise
    finally:
        if options.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    if options.json:
        text = json.dumps(document(result, again(options)), indent=2) + "\n"
        sys.stdout.write(text) if str(options.json) == "-" else options.json.write_text(text)
    show(console, result, again(options))
    return 1 if result.broken else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.chaos", description=__doc__)
    parser.add_argument(
        "--faults", default="", help=f"inject only these, comma-separated: {', '.join(KINDS)}"
    )
    parser.add_argument("--without", default="", help="inject all except these")
    parser.add_argument(
        "--kills", type=int, help=f"run until this many processes have been killed (default: {KILLS})"
    )
    parser.add_argument("--seconds", type=float, help="run the schedule for this many seconds")
    parser.add_argument("--quick", action="store_true", help="inject one each of a few faults, as in CI")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(2**32), help="seed of the schedule")
    parser.add_argument(
        "--real", action="store_true", help="use two real vLLM engines instead of three mock engines"
    )
    parser.add_argument("--customers", type=int, default=8, help="number of concurrent clients")
    parser.add_argument("--json", type=Path, help="write the report to this file; `-` for stdout")
    parser.add_argument("--keep", type=Path, help="new directory for logs and state, which is kept")
    options = parser.parse_args()
    chosen = _listed(parser, options.faults) or (list(QUICK) if options.quick else list(KINDS))
    without = _listed(parser, options.without)
    options.kinds = [kind for kind in chosen if kind not in without]
    if options.kills is None and options.seconds is None and not options.quick:
        options.kills = KILLS
    return options


def _listed(parser: argparse.ArgumentParser, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in KINDS:
            parser.error(f"unknown fault {name!r}; known: {', '.join(KINDS)}")
    return names


def again(options: argparse.Namespace) -> str:
    """The command that repeats the run."""
    words = ["python -m loadtests.chaos", f"--seed {options.seed}"]
    words += ["--quick"] if options.quick else []
    words += ["--real"] if options.real else []
    words += [f"--faults {options.faults}"] if options.faults else []
    words += [f"--without {options.without}"] if options.without else []
    words += [f"--kills {options.kills}"] if options.kills else []
    words += [f"--seconds {options.seconds:g}"] if options.seconds else []
    words += [f"--customers {options.customers}"] if options.customers != 8 else []
    return " ".join(words)


async def _run(options: argparse.Namespace, directory: Path) -> Result:
    stop = stop_on_signals()
    with _progress() as progress:
        bar = progress.add_task("starting", total=None)
        async with ChaosCluster(directory, engines=2 if options.real else 3, real=options.real) as world:
            skipped = world.skipped()
            for kind in options.kinds:
                if kind in skipped:
                    console.print(f"Skipping {kind}: {skipped[kind]}.")
            schedule = _schedule(options, world, [k for k in options.kinds if k not in skipped])

            def report(doing: str, done: int) -> None:
                progress.update(bar, description=f"{doing:<24}", completed=done, total=len(schedule))

            return await run(
                world, schedule, seed=options.seed, customers=options.customers, progress=report, stop=stop
            )


def _schedule(options: argparse.Namespace, world: ChaosCluster, kinds: list[str]) -> list[Event]:
    return plan(
        options.seed,
        world.counts(),
        kinds=kinds,
        kills=options.kills or 0,
        seconds=options.seconds or 0.0,
        once=options.quick,
    )


def _progress() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, disable=not console.is_terminal)


if __name__ == "__main__":
    sys.exit(main())
