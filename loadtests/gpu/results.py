"""The results of all calls in one file, which is replaced after each round: whatever ends the process, what
was measured is there."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

COMMITTED = Path(__file__).with_name("measured")
"""One file a GPU, named after the engine model that is fitted to it."""
Status = Literal["complete", "cut", "failed"]


@dataclass
class Measured:
    """One attempt at a stage."""

    run: int
    """Index into `runs`: the machine, its versions and the time."""
    status: Status = "cut"
    """Until it ends otherwise."""
    seconds: float = 0.0
    error: str = ""
    rounds: list[dict[str, Any]] = field(default_factory=list)


@dataclass
class Results:
    """Mutable: grows while measuring."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    stages: dict[str, Measured] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Empty if there is no such file."""
        if not path.exists():
            return cls()
        document = json.loads(path.read_text())
        return cls(document["runs"], {name: Measured(**stage) for name, stage in document["stages"].items()})

    def write(self, path: Path) -> None:
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(asdict(self), separators=(",", ":")) + "\n")
        partial.replace(path)

    def rounds(self, stage: str) -> list[dict[str, Any]]:
        return self.stages[stage].rounds if stage in self.stages else []

    def run_of(self, stage: str) -> dict[str, Any]:
        """The machine and versions of a stage that was measured."""
        run: dict[str, Any] = self.runs[self.stages[stage].run]
        return run


def committed(model: str) -> Results:
    return Results.read(COMMITTED / f"{model}.json")


def continues(earlier: Results, machine: dict[str, Any]) -> bool:
    """Whether results of this machine may stand beside the earlier ones: the same GPU, engine and scale."""
    keys = ("gpu", "engine", "scale")
    return all(all(run.get(key) == machine.get(key) for key in keys) for run in earlier.runs)


def remaining(earlier: Results, stages: Sequence[str]) -> Iterator[str]:
    """The stages to run, in order: first those without any result, then those that failed or were cut."""
    states = {name: earlier.stages[name].status if name in earlier.stages else None for name in stages}
    yield from (name for name in stages if states[name] is None)
    yield from (name for name in stages if states[name] in ("cut", "failed"))


def better(earlier: Measured | None, attempt: Measured) -> Measured:
    """The one to keep: a complete one, else the one with more rounds, else the later."""
    if earlier is None or attempt.status == "complete" or len(attempt.rounds) >= len(earlier.rounds):
        return attempt
    return earlier
