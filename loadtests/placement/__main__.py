"""`python -m loadtests.placement`: scheduling policies on two real engines of two slots, with eight adapters.

Each round sends the same requests through each policy, with a gateway of its own, one policy after the other.
Exit code 1 if an answer was wrong.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import uvloop
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from deploy.demo.engines import Fleet
from deploy.demo.gateway import Gateway
from loadtests.placement.callers import ADAPTERS, WORKLOADS, Question, call, questions
from loadtests.placement.installation import conclude, engines, in_turn, installed, parser
from loadtests.placement.report import MINE, figures, show, summary

LANDED = "landed"
"""The policy before there were replicas, on engines whose CPU memory is not used: that was new, too."""
CONTESTANTS = (MINE, "random", "consistent_hash", "bounded_hash", LANDED)
SETTINGS = {
    "FLORIN_WORKERS": "1",
    "FLORIN_PLACEMENT_INTERVAL": "0",  # the policies alone, without what the planner opens for any of them
    "FLORIN_SLOW_START": "0",
    "FLORIN_PLACEMENT_TIMEOUT": "60",
}
WARMING = [Question(tenant, name, "Hello!") for tenant, name in ADAPTERS]
console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
Results = dict[str, dict[str, list[dict[str, float]]]]
"""Workload → contestant → figures, round by round."""


def main() -> int:
    options = _options()
    results: Results = {workload: {name: [] for name in options.only} for workload in WORKLOADS}
    errors: list[str] = []
    with engines(console) as (fleet, folder):
        for number, name in in_turn(options.only, options.rounds):
            errors += _measure(fleet, folder / f"{name}-{number}", name, options, number, results)
            console.print(f"round {number + 1}: {name}", style="dim")
    medians = {workload: summary(rounds) for workload, rounds in results.items()}
    for workload, policies in medians.items():
        show(console, workload, policies)
    shape = {"callers": options.callers, "requests": options.requests}
    return conclude(console, options.json, errors, **shape, medians=medians, rounds=results)


def _options() -> argparse.Namespace:
    arguments = parser("loadtests.placement", __doc__, rounds=5, callers=24)
    arguments.add_argument("--requests", type=int, default=200, help="of each workload (200)")
    arguments.add_argument("--only", nargs="+", choices=CONTESTANTS, default=CONTESTANTS, metavar="POLICY")
    options = arguments.parse_args()
    if MINE not in options.only:
        options.only = [MINE, *options.only]
    return options


def _measure(
    fleet: Fleet, directory: Path, name: str, options: argparse.Namespace, number: int, results: Results
) -> list[str]:
    """One contestant's round. Returns what went wrong."""
    settings = SETTINGS if name == LANDED else SETTINGS | {"FLORIN_SCHEDULING_POLICY": name}
    entry = "loadtests.placement.landed_gateway" if name == LANDED else "gateway.cli"
    cpu_slots = fleet.options.slots if name == LANDED else None
    errors = []
    with installed(fleet, directory, settings, entry=entry, cpu_slots=cpu_slots) as (gateway, keys):
        uvloop.run(call(gateway.url, keys, fleet.model, WARMING, len(WARMING)))
        for workload in WORKLOADS:
            todo = questions(fleet.model, workload, options.requests, options.seed + number)
            loads, (evictions, undone) = _loads(fleet), _churn(gateway)
            run = uvloop.run(call(gateway.url, keys, fleet.model, todo, options.callers))
            evictions_then, undone_then = _churn(gateway)
            churn = evictions_then - evictions, undone_then - undone
            results[workload][name].append(figures(run, _loads(fleet) - loads, *churn))
            errors += [f"{name}, {workload}: {error}" for error in run.errors]
    return errors


def _loads(fleet: Fleet) -> int:
    """Loads that the engines were asked for."""
    return sum(e.log.read_text(errors="replace").count("POST /v1/load_lora_adapter") for e in fleet.engines)


def _churn(gateway: Gateway) -> tuple[float, float]:
    """Evictions, and loads and evictions undone within a minute; a contestant takes less than the ten minutes
    of which the latter tells."""
    samples = [
        sample for family in text_string_to_metric_families(gateway.metrics()) for sample in family.samples
    ]
    evictions = sum(s.value for s in samples if s.name == "florin_evictions_total")
    undone = sum(
        s.value for s in samples if s.name == "florin_placement_changes" and s.labels["kind"] == "undone"
    )
    return evictions, undone


if __name__ == "__main__":
    sys.exit(main())
