"""What a request costs on each Python: `python -m loadtests.overhead.pythons ENVIRONMENT…`

The first environment, a folder with Florin and the locked packages, is the one that the others are compared
with. All gateways run at the same time and get the load in turn. Only the ratio of neighbouring measurements
counts: other work on the machine hits all of them.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from loadtests import result_file
from loadtests.mock_engine import MockProcess
from loadtests.overhead import contestants, cpu, report
from loadtests.overhead.__main__ import loaded_adapter, measure
from loadtests.overhead.contestants import ROOT, Contestant
from loadtests.overhead.loadgen import BENCH_CORE
from loadtests.overhead.loads import LOADS

START = "from florin_gateway import main; main()"
_VERSION = (
    "import sys, sysconfig; print('%d.%d.%d' % sys.version_info[:3], sysconfig.get_config_var('CONFIG_ARGS'))"
)


def main() -> int:
    options = _options()
    programs, builds = _programs(options.environments)
    with ExitStack() as stack:
        field: dict[str, tuple[Contestant, MockProcess]] = {}
        for name, program in programs.items():
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-pythons-")))
            with cpu.on_core(BENCH_CORE):
                engine = stack.enter_context(contestants.ThinMockProcess())
            settings = {"PYTHONPATH": str(ROOT)}
            gateway = contestants.florin(engine.url, directory, settings, program=program)
            stack.callback(gateway.stop)
            gateway.name, gateway.speaker = name, loaded_adapter(engine)
            field[name] = gateway, engine
        gateways = [gateway for gateway, _ in field.values()]

        def cost(name: str, load: str, seconds: float) -> float:
            gateway, engine = field[name]
            result = measure(gateway, LOADS[load], engine, seconds, gateways)
            if result.errors:
                raise RuntimeError(f"{name}: {result.errors} errors; the first: {result.first_error}")
            return report.figures(load, name, {name: [result]})["cpu_us"].median

        costs: dict[str, list[dict[str, float]]] = {}
        for load in options.loads:
            for name in field:  # so that all its processes run, and its code is specialized
                cost(name, load, options.seconds)
            costs[load] = []
            for number in range(options.rounds):
                order = list(field)[:: 1 if number % 2 == 0 else -1]
                costs[load].append({name: cost(name, load, options.seconds) for name in order})
                print(load, *(f"{name}: {costs[load][-1][name]:.1f}" for name in field), flush=True)
    first = next(iter(programs))
    ratios = {
        load: {name: sorted(each[name] / each[first] for each in rounds if each[first]) for name in programs}
        for load, rounds in costs.items()
    }
    for load, by_name in ratios.items():
        for name, each in by_name.items():
            low, _, high = statistics.quantiles(each, n=4)
            least, median = min(c[name] for c in costs[load]), statistics.median(c[name] for c in costs[load])
            print(
                f"{load}, {name}: {statistics.median(each):.3f} ({low:.3f} to {high:.3f}) of {first}; "
                f"{median:.1f} µs, the least {least:.1f}"
            )
    result_file.write(options.json, builds=builds, costs_us=costs)
    return 0


def _programs(environments: list[Path]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Name → what starts `florin`, and name → how that Python was built."""
    programs, builds = dict[str, list[str]](), dict[str, str]()
    for environment in environments:
        python = str(environment / "bin" / "python")
        answer = subprocess.check_output([python, "-c", _VERSION], text=True)
        version, _, built = answer.strip().partition(" ")
        builds[version] = built
        programs[version] = [python, "-c", START]
    return programs, builds


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead.pythons", description=__doc__)
    parser.add_argument("environments", nargs="+", type=Path, metavar="ENVIRONMENT")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.5, help="length of a measurement")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["plain", "streams"])
    result_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
