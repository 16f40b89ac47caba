"""Runs the checks of a version's files where they can hold up nothing: no event loop, and no other
registration for longer than their deadline."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from adapters.checks.file_kinds import WEIGHTS_FILE
from adapters.checks.findings import Findings
from adapters.checks.validate import AdapterFacts, validate
from adapters.checks.weights import CHECKING
from adapters.child_process import UnfinishedError, call
from adapters.progress import Progress
from adapters.registry.change_context import FleetLimits

_SMALL = 16 * 1024
"""Bytes, without the weights. So little is checked in this process: that takes a tenth of a second at most,
whatever it holds, and starting a process takes longer."""
_SECONDS = 60.0
_BYTES_PER_SECOND = 10_000_000
"""What a slow disk reads: the deadline grows with the weights."""
_MEMORY = 1024 * 1024 * 1024
"""The largest header that passes takes a quarter of it."""


def check(
    directory: Path,
    fleet: FleetLimits,
    *,
    max_bytes: int,
    assume_base: bool,
    unverified_shapes: bool,
    adapter: str,
    progress: Progress,
) -> AdapterFacts:
    """`validate` for this fleet. Raises as it does, and RejectedError if the checks end at a limit; what
    `progress` raises ends them at once. Blocking."""
    work = partial(
        validate,
        directory,
        base=fleet.base,
        max_rank=fleet.ranks[-1],
        max_bytes=max_bytes,
        assume_base=assume_base,
        unverified_shapes=unverified_shapes,
        adapter=adapter,
        fleet_ranks=fleet.ranks,
        text_rank=fleet.text_rank,
    )
    parsed, total = _sizes(directory)
    if parsed <= _SMALL:
        return work(progress=progress)
    try:
        seconds = _SECONDS + total / _BYTES_PER_SECOND
        return call(work, CHECKING, seconds=seconds, memory=_MEMORY, progress=progress)
    except UnfinishedError as error:
        findings = Findings()
        findings.add(
            "checks_unfinished",
            "The adapter's checks did not finish.",
            found=str(error),
            expected="an ordinary adapter, whose checks take seconds",
        )
        findings.refuse_if_any(adapter)
        raise


def _sizes(directory: Path) -> tuple[int, int]:
    """Bytes of all that the checks parse, and of all files."""
    sizes = {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}
    total, weights = sum(sizes.values()), sizes.get(WEIGHTS_FILE, 0)
    if not weights:
        return total, total
    with (directory / WEIGHTS_FILE).open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
    return total - weights + min(header, weights), total
