"""vLLM's own bench client against an engine, direct and through Florin: `python -m loadtests.vllm_bench`.

One real engine on the CPU, one adapter, prompts of 64 random tokens and answers of 64, streamed. The client
tells when each event came; where events come together, the time between tokens falls and that to the first
one rises, so its figures show whether a gateway delivers them as they are made.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from deploy.demo.engine_env import EngineEnv, engine_environ, ensure_engine_env
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.gateway import Gateway
from deploy.demo.model import ensure_demo_model
from loadtests import result_file
from loadtests.placement.callers import ADAPTERS
from loadtests.placement.installation import register

FIGURES = (
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "median_itl_ms", "p99_itl_ms", "output_throughput",
)  # fmt: skip
TOKENS = 64
CLIENT = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""
"""`vllm bench serve`, whose own command fails with the CPU build, which has another name."""
console = Console(stderr=True, width=None if sys.stderr.isatty() else 160)
Rounds = dict[str, list[dict[str, float]]]
"""`direct` or `florin` → the client's figures, round by round."""


def main() -> int:
    options = _options()
    env = ensure_engine_env(console)
    model = ensure_demo_model(env, console)
    results: dict[int, Rounds] = {callers: {"direct": [], "florin": []} for callers in options.callers}
    with (
        tempfile.TemporaryDirectory(prefix="florin-bench-") as folder,
        Fleet(
            env, model, logs=Path(folder), count=1, own_sessions=True, options=EngineOptions(slots=8)
        ) as fleet,
        Gateway(Path(folder, "state"), Path(folder, "log"), settings={"FLORIN_WORKERS": "1"}) as gateway,
    ):
        fleet.start()
        gateway.launch()
        gateway.wait()
        keys = register(gateway, fleet, cpu_slots=8)
        tenant, name = ADAPTERS[0]
        florin = Target(gateway.url, name, keys[tenant])
        florin.ask()
        direct = Target(fleet.engines[0].url, _loaded(fleet.engines[0].url, model.served_name), "none")
        for callers, rounds in results.items():
            for number in range(-1, options.rounds):  # the first warms up
                for kind, target in (("direct", direct), ("florin", florin)):
                    figures = target.bench(env, model.base, callers, options.requests, Path(folder))
                    if number >= 0:
                        rounds[kind].append(figures)
                console.print(f"{callers} callers, round {number + 1}", style="dim")
    for callers, rounds in results.items():
        console.print(_table(callers, rounds))
    result_file.write(options.json, requests=options.requests, rounds=results)
    return 0


class Target:
    """A server of OpenAI's API, and what to ask it for."""

    def __init__(self, url: str, model: str, key: str) -> None:
        self.url = url
        self.model = model
        self.key = key

    def ask(self) -> None:
        """One request, which loads the adapter."""
        body = {"model": self.model, "prompt": "Hello!", "max_tokens": 1}
        headers = {"authorization": f"Bearer {self.key}"}
        answer = httpx2.post(f"{self.url}/v1/completions", json=body, headers=headers, timeout=120)
        answer.raise_for_status()

    def bench(
        self, env: EngineEnv, tokenizer: Path, callers: int, requests: int, folder: Path
    ) -> dict[str, float]:
        """What the client reports of one run. Raises if a request failed."""
        result = folder / "result.json"
        command = [
            str(env.python), "-c", CLIENT, "--backend", "openai",
            "--base-url", self.url, "--endpoint", "/v1/completions", "--model", self.model,
            "--tokenizer", str(tokenizer), "--dataset-name", "random", "--ignore-eos",
            "--random-input-len", str(TOKENS), "--random-output-len", str(TOKENS),
            "--num-prompts", str(requests), "--max-concurrency", str(callers), "--temperature", "0",
            "--header", f"Authorization=Bearer {self.key}", "--disable-tqdm",
            "--save-result", "--result-dir", str(folder), "--result-filename", result.name,
        ]  # fmt: skip
        done = subprocess.run(command, env=engine_environ(), check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        report: dict[str, Any] = json.loads(result.read_text())
        assert report["completed"] == requests, report
        return {name: float(report[name]) for name in FIGURES}


def _loaded(url: str, base: str) -> str:
    """The engine's name of the one adapter that it has loaded."""
    listed = httpx2.get(f"{url}/v1/models", timeout=60).raise_for_status().json()["data"]
    [name] = [card["id"] for card in listed if card["id"] != base]
    return str(name)


def _table(callers: int, rounds: Rounds) -> Table:
    table = Table("", "direct", "through Florin", "ratio", title=f"{callers} callers, medians of the rounds")
    for figure in FIGURES:
        direct, florin = (statistics.median(r[figure] for r in rounds[kind]) for kind in ("direct", "florin"))
        table.add_row(figure, f"{direct:.1f}", f"{florin:.1f}", f"{florin / direct:.2f}")
    return table


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.vllm_bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=64, help="of each run (64)")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 8], help="at once (1 8)")
    result_file.add_option(parser)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
