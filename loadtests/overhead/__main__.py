"""`make bench` and `make bench-peers`: what one worker of Florin costs on one core, beside relays that only
forward and other gateways, in the same run.

The gateway runs on core 0, the mock engine and the load generator on core 1. Contestants take turns in every
round, so that noise affects all of them equally. Disturbed rounds are repeated, at
most half as many as planned.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx2
from rich.console import Console

from loadtests import result_file
from loadtests.mock_engine import MockProcess
from loadtests.overhead import contestants, cpu, plots, report
from loadtests.overhead.contestants import Contestant
from loadtests.overhead.loadgen import BENCH_CORE, Ask, Result, generate
from loadtests.overhead.loads import LOADS, Load, half
from loadtests.overhead.peers import PEERS, PeerUnavailableError

RELAYS = ("bare", "raw")
SLOW_ROUNDS, SLOW_STREAMS = 2, 10
CROWD = {"FLORIN_MAX_KEY_REQUESTS": "4096", "FLORIN_MAX_TENANT_REQUESTS": "4096"}
"""All streams use one key; its limit is 1,024."""
Results = dict[str, dict[str, list[Result]]]
"""Load → contestant → one result per round."""
progress = Console(stderr=True, style="dim")


def main() -> int:
    options = _options()
    begun = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-bench-")))
        with cpu.on_core(BENCH_CORE):
            engine = stack.enter_context(contestants.ThinMockProcess())
        try:
            field = _field(options, engine, directory, stack)
        except (RuntimeError, TimeoutError) as problem:
            print(problem, *getattr(problem, "__notes__", ()), sep="\n", file=sys.stderr)
            return 2
        results = _all_rounds(options, field, engine)
    report.show(results)
    print(f"{time.monotonic() - begun:.0f} s in all")
    _write(options, field, results)
    failed = any(r.errors for by_name in results.values() for r in by_name.get(report.FLORIN, ()))
    missed = options.check and not all(verdict["met"] for verdict in report.verdicts(results))
    return 1 if failed or missed else 0


def _options() -> argparse.Namespace:
    names = (report.FLORIN, *RELAYS, *PEERS)
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead", description=__doc__)
    parser.add_argument("--peers", action="store_true", help=f"measure {', '.join(PEERS)}, too")
    parser.add_argument("--quick", action="store_true", help="one short round, for a first look")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    result_file.add_option(parser)
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the figures as SVG")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a measurement")
    parser.add_argument("--only", nargs="+", choices=names, help="the contestants")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 1.0
    options.only = options.only or (report.FLORIN, *((report.RAW, *PEERS) if options.peers else RELAYS))
    return options


def _field(
    options: argparse.Namespace, engine: MockProcess, directory: Path, stack: ExitStack
) -> list[Contestant]:
    """All contestants, started. A peer that does not work here is left out; the relays and Florin raise."""
    field = []
    if report.FLORIN in options.only:
        progress.print("starting florin")
        field.append(contestants.florin(engine.url, directory, CROWD))
        stack.callback(field[0].stop)
    speaker = loaded_adapter(engine)
    for contestant in field:
        contestant.speaker = speaker
    for name in options.only:
        try:
            if name in RELAYS:
                field.append(contestants.relay(name, engine.url, speaker, directory))
            elif name in PEERS:
                progress.print(f"starting {name}")
                field.append(contestants.peer(name, engine.url, speaker, directory))
            else:
                continue
        except PeerUnavailableError as problem:
            print(f"Left out: {problem}", file=sys.stderr)
        else:
            stack.callback(field[-1].stop)
    return [*field, Contestant(report.DIRECT, engine.port, speaker, speaker)]


def loaded_adapter(engine: MockProcess) -> str:
    """The engine-side name of the adapter that Florin loaded; without Florin, load one here."""
    cards = httpx2.get(f"{engine.url}/v1/models").json()["data"]
    adapters: list[str] = [card["id"] for card in cards if card["parent"]]
    if not adapters:
        body = {"lora_name": "fl-bench", "lora_path": "/nowhere"}
        httpx2.post(f"{engine.url}/v1/load_lora_adapter", json=body).raise_for_status()
        return "fl-bench"
    return adapters[0]


def _all_rounds(options: argparse.Namespace, field: list[Contestant], engine: MockProcess) -> Results:
    for contestant in field:  # so that all its processes run
        measure(contestant, LOADS["plain"], engine, 0.5, field)
    results: Results = {}
    for name in (load for load in LOADS if load in options.loads):
        crowd = name == "crowd"
        takes_part = [c for c in field if not crowd or (c.process and not c.slow)]
        if LOADS[name].kind:  # an API that Florin translates
            takes_part = [c for c in field if c.name == report.FLORIN]
        rounds = results[name] = {contestant.name: [] for contestant in takes_part}
        for number in range(1 if crowd else options.rounds + (options.rounds + 1) // 2):
            if all(
                len(report.undisturbed(rounds[c.name])) >= options.rounds for c in takes_part if not c.slow
            ):
                break
            progress.print(f"{name}, round {number + 1}")
            for contestant in takes_part:
                if contestant.slow and number >= SLOW_ROUNDS:
                    continue
                load = _for(contestant, LOADS[name], field, results)
                result = measure(contestant, load, engine, options.seconds, field)
                rounds[contestant.name].append(result)
                if result.errors:
                    say = f"{contestant.name}: {result.errors} errors; the first: {result.first_error}"
                    print(say, file=sys.stderr)
    return results


def _for(contestant: Contestant, load: Load, field: list[Contestant], results: Results) -> Load:
    """The load with as many streams as this contestant is to have."""
    if load.connections:
        return replace(load, connections=SLOW_STREAMS) if contestant.slow and load.stream else load
    name = (contestant if contestant.process else field[0]).name  # the engine has as many as the first
    costs = [
        report.figures(other, name, results[other])["cpu_us"].median
        for other in ("plain", "streams")
        if results.get(other, {}).get(name)
    ]
    if len(costs) < 2:
        return replace(load, connections=SLOW_STREAMS if contestant.slow else LOADS["streams"].connections)
    return half(load, *costs)


def measure(
    contestant: Contestant, load: Load, engine: MockProcess, seconds: float, field: list[Contestant]
) -> Result:
    """`field`: all contestants; the CPU time of those that wait is no other work's."""
    for each in field:
        each.find_processes()
    engine.faults(event_delay=load.event_delay)
    others = [pid for each in field if each is not contestant for some in each.pids.values() for pid in some]
    ask = Ask(load.body(contestant.model), load.expect(contestant.speaker), contestant.key)
    pids = contestant.pids | {"mock": [engine.pid], "waiting": others}
    return generate(load.job(contestant.port, [ask], seconds, pids))


def _write(options: argparse.Namespace, field: list[Contestant], results: Results) -> None:
    result_file.write(
        options.json,
        versions={contestant.name: contestant.version for contestant in field if contestant.version},
        figures={
            load: {name: report.figures(load, name, rounds) for name in rounds}
            for load, rounds in results.items()
        },
        verdicts=report.verdicts(results),
        rounds=results,
    )
    if options.plot:
        options.plot.parent.mkdir(parents=True, exist_ok=True)
        options.plot.write_text(plots.dots(results))


if __name__ == "__main__":
    sys.exit(main())
