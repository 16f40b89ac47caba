"""The tests of tools (simulator, mock engine, chaos, this suite's own parts…) run when a tool or they themselves have
changed since they last passed: what they show depends on nothing else. The long form runs them always.

Each folder of tests/tools/ with tests in it is a tool's. tests/tools/verified.json has a digest of each, as `make
tools-verified` wrote it after all of them passed. What guards a promise of the product has no place there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from deploy.demo.cache import digest

ROOT = Path(__file__).parents[2]
TOOLS = Path("tests/tools")
VERIFIED = TOOLS / "verified.json"
SOURCES = {
    "chaos": ("loadtests/chaos", "loadtests/mock_engine"),
    "ledger": ("loadtests/ledger",),
    "loads": ("loadtests/tally.py", "loadtests/placement", "loadtests/soak"),
    "mock_engine": ("loadtests/mock_engine", "loadtests/overhead/thin_mock.py"),
    "overhead": ("loadtests/overhead", "loadtests/mock_engine"),
    "prometheus": (
        *("deploy/prometheus", "deploy/grafana", "docs/incidents.md"),
        *("gateway/errors", "gateway/observability/metric_names.py"),
    ),
    "sim": ("loadtests/sim", "gateway/planning", "gateway/admission/fair_queue", "adapters/placement/scheduling"),
    "suite": (
        *("tests/support/alerting.py", "tests/support/empty_ledgers.py"),
        *("tests/support/fork_server.py", "tests/support/forking.py", "tests/support/forms.py"),
        *("tests/support/own_home.py", "tests/support/search.py", "gateway/metering/ledger/migrations"),
        *("deploy/demo/cache.py", "deploy/demo/engine_env.py", "deploy/torch-requirements.txt", "requirements.lock"),
    ),
}  # fmt: skip
"""Tool → what its tests read besides themselves."""


def digests(root: Path = ROOT) -> dict[str, str]:
    """Of each tool: its sources and its tests."""
    return {
        tool: digest(*(part for path in (str(TOOLS / tool), *sources) for part in _contents(root, path)))
        for tool, sources in sorted(SOURCES.items())
    }


def _contents(root: Path, path: str) -> list[bytes]:
    start = root / path
    if not start.exists():
        raise FileNotFoundError(f"{start}, which SOURCES names")
    files = sorted(start.rglob("*")) if start.is_dir() else [start]
    return [
        part
        for file in files
        if file.is_file() and "__pycache__" not in file.parts
        for part in (str(file.relative_to(root)).encode(), file.read_bytes())
    ]


def unchanged(root: Path = ROOT) -> list[str]:
    """Tools whose tests have passed as they and the tools are now."""
    verified = json.loads((root / VERIFIED).read_text())
    return [tool for tool, current in digests(root).items() if verified.get(tool) == current]


def main() -> int:
    (ROOT / VERIFIED).write_text(json.dumps(digests(), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
