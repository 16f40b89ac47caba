"""`python -m loadtests.gpu OUT`: measures this machine's GPU. See loadtests/README.md.

Results go to OUT/gpu.json, and both logs beside it. What `--resume` has, by default the committed results of
this GPU, is not measured again.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from adapters.engine_agent.gpus import type_of
from loadtests.gpu.measure import FILE, machine, measure
from loadtests.gpu.results import Results, committed, remaining
from loadtests.gpu.scale import GPU
from loadtests.gpu.site import EngineProgram, Site
from loadtests.gpu.stages import STAGES

ALL = [stage.name for stage in STAGES]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0, help="after which nothing runs")
    parser.add_argument("--engine-site", type=Path, help="folder with vLLM, beside this interpreter's torch")
    parser.add_argument("--model", type=Path, required=True, help="the demo's base model, for its tokenizer")
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL)
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    program = EngineProgram(Path(sys.executable), options.engine_site, "", {})
    facts = machine(GPU, program)
    if facts["gpu"] == "none":
        print("NVML finds no GPU. The dry run on the CPU is a test: tests/engine/test_gpu_kit.py.")
        return 1
    gpu = type_of(facts["gpu"])
    program = EngineProgram(program.python, program.site, gpu, {})
    here = options.out / FILE
    resumed = here if here.exists() else options.resume
    results = Results.read(resumed) if resumed else committed(gpu.casefold())
    options.out.mkdir(parents=True, exist_ok=True)
    stages = [stage for stage in STAGES if stage.name in options.only]
    names = [stage.name for stage in stages]
    with tempfile.TemporaryDirectory(prefix="florin-gpu-", ignore_cleanup_errors=True) as scratch:
        site = partial(Site, Path(scratch), options.out.resolve(), GPU, program, options.model)
        say = partial(print, flush=True)
        measuring = measure(site, results, facts, options.out, deadline=deadline, say=say, stages=stages)
        results = asyncio.run(measuring)
    return 1 if list(remaining(results, names)) else 0


if __name__ == "__main__":
    sys.exit(main())
