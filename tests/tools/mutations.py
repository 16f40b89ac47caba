"""Would the tests notice? Forty faults of one line each, put into the product one after the other.

    python -m tests.tools.mutations [--area routing] [--json RESULTS]

For each fault, the tests nearest to the line run first, then the rest of the fast ones, until one fails: the fault is
caught. Run it by hand, in a clean checkout, before and after a change that makes the suite lighter; a fault that was
caught before must be caught afterwards. It takes a minute for each fault that is caught, and as long as the whole
suite for each that is not. The files are changed in place, and put back.

A fault whose line has changed is `stale`: write it anew.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAST = ("tests/unit", "tests/contract", "tests/property", "tests/integration", "tests/field")


@dataclass(frozen=True, slots=True)
class Fault:
    area: str
    path: str
    line: str
    """Occurs once in the file."""
    instead: str
    near: tuple[str, ...] = ()
    """Tests to try first, besides those that mirror the file's folder."""


@dataclass(frozen=True, slots=True)
class Result:
    area: str
    path: str
    instead: str
    verdict: str
    """`caught`, `missed` or `stale`."""
    by: str = ""
    """The test that failed."""
    seconds: float = 0.0


RETRIES = "gateway/routing/retries.py"
BUDGET = "gateway/routing/retry_budget.py"
STATE = "gateway/routing/routing_state.py"
DELIVERY = "gateway/delivery.py"
ATTEMPT = "gateway/metering/attempt.py"
CLAIM = "adapters/store/redis/lua/claim.lua"
ACCOUNT = "gateway/tenants/limits/subject_account.py"
ATTRIBUTION = "gateway/costs/rollups/attribution.py"
REQUEST = "gateway/transport/http_request.py"
CLIENT = "gateway/transport/client_connection.py"
ENGINE = "gateway/transport/engine_connection.py"
CONTRACT = ("tests/contract/test_placement.py",)
LIMITS = (
    "tests/unit/gateway/tenants/test_limits.py",
    "tests/property/test_limits.py",
    "tests/integration/test_limits.py",
)
CLOSING = (
    "tests/unit/gateway/costs/verification",
    "tests/unit/gateway/costs/closing",
    "tests/unit/gateway/costs/reports",
)

FAULTS = (
    Fault("routing", RETRIES, "if routing_state.failures >= MAX_ATTEMPTS:", "if False:"),
    Fault("routing", RETRIES, "if state.outages > lease.outages:", "if False:"),
    Fault(
        "routing", RETRIES, "state.deadline = min(state.deadline, state.answer_by)", "pass",
        ("tests/integration/test_deadline.py",),
    ),
    Fault("routing", BUDGET, "if self._room() < 1:", "if self._room() < 0:"),
    Fault("routing", STATE, ">= REQUEST_DEATHS", "> REQUEST_DEATHS", ("tests/integration/test_query_of_death.py",)),
    Fault("routing", "gateway/routing/outlier_ejection.py", "if ejection.silent >= patience and not ejection.probed:",
          "if ejection.silent >= patience:", ("tests/property/test_ejection.py",)),
    Fault("routing", "gateway/call_plans.py", 'if target is None or not covers(key, target.version.adapter if target.version else ""):',
          "if target is None:", ("tests/integration/test_tenants.py",)),
    Fault("metering", ATTEMPT, "billable = self.first != 0  # otherwise nothing was delivered", "pass",
          ("tests/integration/test_resume.py",)),
    Fault("metering", ATTEMPT, "if not worked:", "if worked:"),
    Fault("metering", ATTEMPT, "if self._exact and not self._refused:", "if self._exact:"),
    Fault("metering", ATTEMPT, "while due <= now:", "while due < now:"),
    Fault("metering", DELIVERY, "await record.logged()  # before the engine hears of it", "pass",
          ("tests/integration/test_metering_under_fire.py", "tests/integration/test_cancellation.py")),
    Fault("metering", "gateway/metering/token_counts.py", "and 0 <= reasoning <= completion <=", "and 0 <= reasoning and completion <="),
    Fault("metering", "gateway/metering/wal/shipper.py", "elif (earlier := still.get(record.id)) is None or earlier.seq <= record.seq:",
          "else:"),
    Fault("placement", CLAIM, "if redis.call('HEXISTS', KEYS[8], held) == 0 or elsewhere(held)[1] then", "if true then", CONTRACT),
    Fault("placement", CLAIM, "elseif state ~= 'loading' and not used[held] then", "elseif state ~= 'loading' then", CONTRACT),
    Fault("placement", CLAIM, "local enough = max_replicas > 0 and count >= max_replicas", "local enough = false", CONTRACT),
    Fault("placement", "adapters/placement/scheduling/filters.py", "if ask.rank > view.max_rank:", "if False:"),
    Fault("placement", "adapters/placement/scheduling/view.py", "self.pending -= prompt_tokens\n        if version:",
          "if version:",
          ("tests/unit/gateway/routing",)),
    Fault("placement", "adapters/placement/scheduling/view.py", "return cost + self.costs.evict if len(self.held) >= self.cpu_slots else cost", "return cost",
          ("tests/unit/adapters/placement/scheduling",)),
    Fault("placement", "adapters/placement/scheduling/scheduler.py", "return replicas < ask.max_replicas", "return True"),
    Fault("limits", ACCOUNT, "if now >= self.expires:", "if False:", LIMITS),
    Fault("limits", ACCOUNT, "holding.free += amount - spent", "holding.free += amount", LIMITS),
    Fault("limits", ACCOUNT, "return self.slots < 0 or self.held > self.running", "return True", LIMITS),
    Fault("limits", ACCOUNT, "if self.budgets and self.near(need.worst):", "if False:", LIMITS),
    Fault("limits", "gateway/tenants/limits/needs.py", "if room < 1 or (requested or 0) > room:", "if room < 1:", LIMITS),
    Fault("limits", "gateway/admission/in_flight.py", "if counts[level].bytes + size > limit.bytes:", "if counts[level].bytes > limit.bytes:"),
    Fault("closing", ATTRIBUTION, "parts = [part + 1 if rest > least else part for part, rest in zip(parts, rests, strict=True)]",
          "parts = [part + 1 if rest >= least else part for part, rest in zip(parts, rests, strict=True)]"),
    Fault("closing", ATTRIBUTION, "total = nano_gpu_hours(elapsed, pool.gpus) - given", "total = nano_gpu_hours(provisioned_us, pool.gpus)"),
    Fault("closing", ATTRIBUTION, "ready = union((*pool.up, *busy))", "ready = union(pool.up)"),
    Fault("closing", "gateway/costs/closing/checks.py", "if latest is not None and latest > month:", "if False:", CLOSING),
    Fault("closing", "gateway/costs/closing/coverage.py", "table.batch <= cutoff_batch,", "table.batch < cutoff_batch,", CLOSING),
    Fault("closing", "gateway/costs/closing/closing.py", "closed_at=now,", "closed_at=0,", CLOSING),
    Fault("closing", "gateway/costs/closing/settlement.py", "if entry.key.kind not in UNUSED:", "if True:", CLOSING),
    Fault("transport", REQUEST, 'if head.count(b"\\n") != len(lines):', "if False:"),
    Fault("transport", REQUEST, "if linger or (self.more and self._expects_continue):  # it may or may not send the body",
          "if linger:"),
    Fault("transport", CLIENT, "if len(self._waiting) > _MAX_PIPELINED:", "if False:"),
    Fault("transport", CLIENT, "self._transport.abort()  # what it has not read is lost", "self._transport.close()"),
    Fault("transport", ENGINE, "if self._overhead > MAX_HEAD_BYTES and not self.complete:", "if False:"),
    Fault("transport", "gateway/transport/repeated_bytes.py", "return body if len(body) == int(digits) else None", "return body"),
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--area", help="only faults of this area")
    parser.add_argument("--near", action="store_true", help="only the tests nearest to each line")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    if subprocess.run(["git", "diff", "--quiet"], cwd=ROOT, check=False).returncode:
        print("The working tree has changes; commit them first.", file=sys.stderr)
        return 2
    faults = [fault for fault in FAULTS if options.area in {None, fault.area}]
    results: list[Result] = []
    for number, fault in enumerate(faults, start=1):
        results.append(result := try_fault(fault, near_only=options.near))
        print(f"{number}/{len(faults)} {result.verdict:6} {result.seconds:4.0f} s {fault.path}: {fault.instead} {result.by}",
              flush=True)  # fmt: skip
        if options.json:
            options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    caught = sum(result.verdict == "caught" for result in results)
    print(f"{caught} of {len(results)} faults were caught.")
    return 0


def try_fault(fault: Fault, *, near_only: bool) -> Result:
    file = ROOT / fault.path
    text = file.read_text()
    if text.count(fault.line) != 1:
        return Result(fault.area, fault.path, fault.instead, "stale")
    begun = time.monotonic()
    file.write_text(text.replace(fault.line, fault.instead))
    try:
        failed = next(filter(None, map(first_failure, rounds(fault, near_only=near_only))), "")
    finally:
        file.write_text(text)
    verdict = "caught" if failed else "missed"
    return Result(fault.area, fault.path, fault.instead, verdict, failed, time.monotonic() - begun)


def rounds(fault: Fault, *, near_only: bool) -> Iterator[Sequence[str]]:
    """What to run, one after the other: paths of tests."""
    mirror = Path("tests/unit") / Path(fault.path).parent
    file = mirror / f"test_{Path(fault.path).stem}.py"
    top = Path(fault.path).parent == Path("gateway")  # whose mirror has nearly all
    folder = () if top else (str(mirror),)
    for near in ((str(file),), folder, fault.near):
        present = [path for path in near if (ROOT / path).exists()]
        if present:
            yield present
    if not near_only:
        yield FAST


def first_failure(paths: Sequence[str]) -> str:
    """The first test that fails, or that cannot be collected; empty: none."""
    workers = ["-n", "2", "--dist", "worksteal"] if paths is FAST else []
    command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rfE", *workers, *paths]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode in {0, 5}:
        return ""
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" - ")[0] if lines else f"pytest ended with {done.returncode}"


if __name__ == "__main__":
    raise SystemExit(main())
