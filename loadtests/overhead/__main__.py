"""`make bench`: measures the cost of one Florin worker on one core, compared with bare relays.

The gateway runs on core 0, the mock engine and the load generator on core 1. Contestants alternate (ABCABC…),
so that noise affects all of them equally. See README.md here for how to read the results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
from rich.console import Console

from loadtests.mock_engine import MockProcess, text
from loadtests.overhead import adapter_files, contestants, cpu, report
from loadtests.overhead.contestants import Contestant
from loadtests.overhead.loadgen import Result

BENCH_CORE = 1
CONNECTIONS, STREAM_TOKENS, ANSWER_TOKENS = 16, 250, 8
MESSAGES = [{"role": "user", "content": "When will my card arrive?"}]
BUSY = 0.5
"""Load average above which other work is suspected."""
LOADS = ("plain", "streams")
CONTESTANTS = ("florin", "bare", "raw")
Rounds = dict[str, dict[str, list[Result]]]


def main() -> int:
    options = _options()
    load_before = os.getloadavg()[0]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-bench-")))
        with cpu.on_core(BENCH_CORE):
            engine = stack.enter_context(_mock())
        try:
            field = [_start(name, engine, directory, stack) for name in options.only]
        except (RuntimeError, TimeoutError) as problem:
            print(problem, *getattr(problem, "__notes__", ()), sep="\n", file=sys.stderr)
            return 2
        results = _all_rounds(options, field, engine)
    return _conclude(options, results, load_before)


def _all_rounds(options: argparse.Namespace, field: list[Contestant], engine: MockProcess) -> Rounds:
    """Load → contestant → one result per round. Disturbed rounds are repeated, at most doubling their
    number."""
    speaker = _speaker(engine)
    results: Rounds = {}
    for load in options.loads:
        engine.faults(event_delay=report.EVENT_DELAY if load == "streams" else 0.0)
        job = _streams(options, speaker) if load == "streams" else _plain(speaker)
        rounds = results[load] = {contestant.name: [] for contestant in field}
        for number in range(2 * options.rounds):
            if len(report.undisturbed(rounds)) >= options.rounds:
                break
            Console(stderr=True).print(f"{load}, round {number + 1}", style="dim")
            for contestant in field:
                result = _measure(contestant, engine, job | {"seconds": options.seconds}, speaker)
                rounds[contestant.name].append(result)
                if result.errors:
                    say = f"{contestant.name}: {result.errors} errors; the first: {result.first_error}"
                    print(say, file=sys.stderr)
    return results


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one short round for a first look, not a measurement"
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams")
    parser.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds = 1, 2.0
    return options


def _mock() -> MockProcess:
    return MockProcess(base=adapter_files.BASE, answer_tokens=ANSWER_TOKENS, log=0, check_paths="no")


def _start(name: str, engine: MockProcess, directory: Path, stack: ExitStack) -> Contestant:
    if name == "florin":
        contestant = contestants.florin(engine.url, directory)
    else:
        contestant = contestants.relay(name, f"loadtests.overhead.{name}_relay", engine.url, "")
    stack.callback(contestant.stop)
    return contestant


def _speaker(engine: MockProcess) -> str:
    """The engine-side name of the adapter that Florin loaded; without Florin, load one here."""
    cards = httpx.get(f"{engine.url}/v1/models").json()["data"]
    adapters: list[str] = [card["id"] for card in cards if card["parent"]]
    if not adapters:
        body = {"lora_name": "fl-bench", "lora_path": "/nowhere"}
        httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body).raise_for_status()
        return "fl-bench"
    return adapters[0]


def _plain(speaker: str) -> dict[str, Any]:
    return {
        "body": {"messages": MESSAGES},
        "expect": text(speaker, ANSWER_TOKENS, "stop"),
        "connections": CONNECTIONS,
        "warmup": 0.7,
    }


def _streams(options: argparse.Namespace, speaker: str) -> dict[str, Any]:
    return {
        "body": {"messages": MESSAGES, "stream": True, "max_tokens": STREAM_TOKENS, "ignore_eos": True},
        "expect": text(speaker, STREAM_TOKENS, "length"),
        "connections": options.streams,
        "warmup": 2.0,
    }


def _measure(contestant: Contestant, engine: MockProcess, job: dict[str, Any], speaker: str) -> Result:
    """`job`: the fields of Job that are not filled in here."""
    job |= {
        "host": "127.0.0.1",
        "port": contestant.port,
        "body": job["body"] | {"model": contestant.model or speaker},
        "pids": contestant.pids | {"mock": [engine.pid]},
        "authorization": contestant.key,
    }
    command = [sys.executable, "-m", "loadtests.overhead.loadgen"]
    with cpu.on_core(BENCH_CORE):
        done = subprocess.run(command, input=orjson.dumps(job), stdout=subprocess.PIPE, check=True)
    return Result(**orjson.loads(done.stdout))


def _conclude(options: argparse.Namespace, results: Rounds, load_before: float) -> int:
    """Show, write and judge the results; return the exit code."""
    figures, verdicts = [], []
    for load, rounds in results.items():
        clean = report.undisturbed(rounds)
        for name, all_rounds in rounds.items():
            figures.append(report.figures(name, load, [all_rounds[i] for i in clean] or all_rounds))
        verdict = report.verdict(load, rounds)
        verdicts += [verdict] if verdict else []
    failed = any(result.errors for rounds in results.values() for r in rounds.values() for result in r)
    report.show(figures, verdicts)
    if load_before > BUSY:
        print(f"The load average was {load_before:.1f} before the first round; other work interfered.")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        document = {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "load_average_before": load_before,
            "figures": [asdict(f) for f in figures],
            "verdicts": verdicts,
        }
        options.json.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    if failed:
        return 1
    return 1 if options.check and not all(v["met"] for v in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
