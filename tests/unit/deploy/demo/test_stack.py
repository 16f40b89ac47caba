"""The env file: what scripts read once the demo is up."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from deploy.demo.stack import Customer, Installation

NAMES = [
    "FLORIN_BASE_URL",
    "FLORIN_OPERATOR_KEY",
    "FLORIN_FINANCE_KEY",
    "FLORIN_KEY_ACME",
    "FLORIN_KEY_BOLT",
    "FLORIN_KEY_CORGI",
    "FLORIN_MODEL_ACME",
    "FLORIN_MODEL_BOLT",
    "FLORIN_MODEL_CORGI",
    "FLORIN_BASE_MODEL",
    "FLORIN_ENGINE_URLS",
    "FLORIN_ENGINE_PIDS",
    "FLORIN_STATE_DIR",
]


def installation(state_dir: str = "/tmp/x") -> Installation:
    gateway = SimpleNamespace(url="http://127.0.0.1:1", operator_key="o p", state_dir=Path(state_dir))
    fleet = SimpleNamespace(engines=[SimpleNamespace(url=f"http://e{i}", pid=10 + i) for i in range(2)])
    customers = tuple(
        Customer(name, f"key-{name}", f"{name}/support", "sha256:0", cast("Any", None))
        for name in ("acme", "bolt", "corgi")
    )
    model = SimpleNamespace(served_name="tiny-llama")
    return Installation(*cast("Any", (gateway, fleet, model, "finance", customers)))


def test_a_shell_reads_every_name_back(tmp_path: Path):
    path = tmp_path / "env"
    installation("/tmp/it's here").write_env(path)
    script = f'. "{path}"; for name in {" ".join(NAMES)}; do printf "%s\\n" "${{!name}}"; done'
    said = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    values = dict(zip(NAMES, said.splitlines(), strict=True))
    assert values["FLORIN_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert values["FLORIN_OPERATOR_KEY"] == "o p"
    assert values["FLORIN_MODEL_BOLT"] == "bolt/support"
    assert values["FLORIN_ENGINE_PIDS"].split() == ["10", "11"]
    assert values["FLORIN_STATE_DIR"] == "/tmp/it's here"


def test_only_the_owner_may_read_it_and_no_half_stays(tmp_path: Path):
    path = tmp_path / "env"
    path.write_text("old")
    installation().write_env(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["env"]
