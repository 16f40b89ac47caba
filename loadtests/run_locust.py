"""`make loadtest`: runs locustfile.py against the demo for a fixed time and checks the results.

Starts and stops `florin demo`, or uses a running one with `--env-file`. Locust runs in its own process,
because it patches the standard library. Exits with 1 if a request failed or the ledger disagrees with the
clients.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from loadtests.tally import Tally, Tokens, disagreements, percentile

HERE = Path(__file__).resolve().parent
DEMO_PATIENCE = 1800.0
"""Seconds; the first demo on a machine builds the engines' environment."""
LEDGER_PATIENCE = 15.0
"""Seconds within which usage must be in the ledger."""
console = Console(width=max(Console().width, 110))


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="florin-loadtest-") as name:
        directory = Path(name)
        with _demo(options.env_file, directory) as env:
            url = env["FLORIN_BASE_URL"].removesuffix("/").removesuffix("/v1")
            before = _ledger(url, env)
            tally = _run(options, url, env, directory / "tally.json")
            _print_tally(tally, options.seconds)
            differ = _compare(tally, before, url, env)
    return 1 if tally.failures or differ else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.run_locust", description=__doc__)
    parser.add_argument("--env-file", type=Path, help="env file of a running demo; default: start one")
    parser.add_argument(
        "--users", type=int, default=11, help="concurrent conversations, divided 6:3:2 among customers"
    )
    parser.add_argument("--seconds", type=int, default=30)
    return parser.parse_args()


@contextmanager
def _demo(env_file: Path | None, directory: Path) -> Iterator[dict[str, str]]:
    """The demo's variables by name."""
    if env_file is not None:
        yield read_env(env_file)
        return
    env_file, log = directory / "env", directory / "demo.log"
    florin = str(Path(sys.executable).with_name("florin"))
    with log.open("wb") as output:
        process = subprocess.Popen(
            [florin, "demo", "--env-file", str(env_file)], stdout=output, stderr=subprocess.STDOUT
        )
    try:
        with console.status("Starting the demo …"):
            deadline = time.monotonic() + DEMO_PATIENCE
            while not env_file.exists():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"the demo did not start:\n{log.read_text(errors='replace')[-3000:]}")
                time.sleep(0.5)
        yield read_env(env_file)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def read_env(path: Path) -> dict[str, str]:
    """Shell lines `NAME=value` or `export NAME='value'`."""
    lines = (line.removeprefix("export ") for line in path.read_text().splitlines() if "=" in line)
    pairs = (line.split("=", 1) for line in lines if not line.startswith("#"))
    return {name.strip(): value.strip().strip("'\"") for name, value in pairs}


def _run(options: argparse.Namespace, url: str, env: dict[str, str], result: Path) -> Tally:
    command = [sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--headless", "--host", url]
    command += ["--users", str(options.users), "--spawn-rate", str(options.users), "--only-summary"]
    command += ["--run-time", f"{options.seconds}s", "--stop-timeout", "60", "--exit-code-on-error", "0"]
    variables = os.environ | env | {"FLORIN_LOADTEST_RESULT": str(result), "PYTHONPATH": str(HERE.parent)}
    with console.status(f"{options.users} conversations for {options.seconds} s …"):
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if not result.exists():
        raise SystemExit(
            f"locust exited with {done.returncode}:\
{done.stderr[-3000:]}"
        )
    return Tally.load(json.loads(result.read_text()))


def _ledger(url: str, env: dict[str, str]) -> dict[str, Tokens]:
    """The ledger's totals for these days, by tenant."""
    now = datetime.now(UTC)
    window = {"from": (now - timedelta(days=1)).isoformat(), "to": (now + timedelta(days=1)).isoformat()}
    answer = httpx2.get(
        f"{url}/finance/v1/costs",
        params={"by": "tenant", **window},
        headers={"authorization": f"Bearer {env['FLORIN_FINANCE_KEY']}"},
        timeout=30,
    )
    answer.raise_for_status()
    names = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens")
    return {row["tenant"]: Tokens(*(row[name] for name in names)) for row in answer.json()["rows"]}


def _added(before: dict[str, Tokens], after: dict[str, Tokens]) -> dict[str, Tokens]:
    added = {}
    for tenant, now in after.items():
        then = before.get(tenant, Tokens())
        delta = Tokens(
            now.requests - then.requests,
            now.prompt_tokens - then.prompt_tokens,
            now.cached_tokens - then.cached_tokens,
            now.completion_tokens - then.completion_tokens,
        )
        if delta != Tokens():
            added[tenant] = delta
    return added


def _compare(tally: Tally, before: dict[str, Tokens], url: str, env: dict[str, str]) -> list[str]:
    """Wait for the ledger to receive the last records; print and return the remaining differences."""
    deadline = time.monotonic() + LEDGER_PATIENCE
    while True:
        differ = disagreements(tally, _added(before, _ledger(url, env)))
        if not differ or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    if differ:
        console.print("The ledger disagrees with the clients:", *differ, sep="\n  ", style="red")
    else:
        console.print("The ledger agrees with the clients, to the token.", style="green")
    return differ


def _print_tally(tally: Tally, seconds: int) -> None:
    total, failed = sum(map(len, tally.latency.values())), sum(tally.failures.values())
    console.print(f"{total + failed:,} requests in {seconds} s, {failed} failed.")
    for what, often in sorted(tally.failures.items(), key=lambda item: -item[1])[:10]:
        console.print(f"  {often} x {what}", style="red", markup=False)
    table = Table(title="Times in ms", title_justify="left")
    for column in ("request", "count", "p50", "p90", "p99", "first token p50", "first token p99"):
        table.add_column(column, justify="left" if column == "request" else "right")
    for kind, times in sorted(tally.latency.items()):
        first = tally.first_token.get(kind, [])
        figures = [percentile(times, share) for share in (0.5, 0.9, 0.99)]
        firsts = [f"{percentile(first, share):.0f}" if first else "" for share in (0.5, 0.99)]
        table.add_row(kind, str(len(times)), *(f"{figure:.0f}" for figure in figures), *firsts)
    console.print(table)
    table = Table(title="Tokens reported in the answers", title_justify="left")
    for column in ("customer", "engine", "requests", "prompt", "cached", "completion"):
        table.add_column(column, justify="left" if column in {"customer", "engine"} else "right")
    for key, t in sorted(tally.tokens.items()):
        counts = (t.requests, t.prompt_tokens, t.cached_tokens, t.completion_tokens)
        table.add_row(*key.split(maxsplit=1), *(f"{count:,}" for count in counts))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
