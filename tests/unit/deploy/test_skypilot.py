"""The SkyPilot example: its variables are read, its files exist, and its scripts start what they should.

SkyPilot's own schema was run by hand: docs/deployment/skypilot.md.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands.tree import loaded_tree
from gateway.runtime.unknown_variables import unknown

FOLDER = Path("deploy/skypilot")
TASKS: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) for path in sorted(FOLDER.glob("*.yaml"))
}
BUILT = {"./dist"}
"""By the operator, as the page says."""


@pytest.mark.parametrize("name", TASKS)
def test_variables_are_read_and_files_exist(name):
    task = TASKS[name]
    given = {**task["envs"], **task["secrets"]}
    assert not list(unknown(given))
    assert all(
        value is None or isinstance(value, str) for value in given.values()
    )  # SkyPilot takes no numbers
    assert all(value is None for value in task["secrets"].values())
    assert all(source in BUILT or Path(source).exists() for source in task["file_mounts"].values())


def ran(task: dict[str, Any], home: Path, **environ: str) -> list[str]:
    """The arguments with which the script starts `florin`, and the token that it hands over."""
    fake = home / "florin" / "bin" / "florin"
    fake.parent.mkdir(parents=True)
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$FLORIN_ENGINE_TOKEN|$HOST_TOKENS" "$@"\n')
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", "-eu", "-c", task["run"]],
        env={"PATH": os.environ["PATH"], "HOME": str(home), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_each_host_has_its_own_token_and_name(tmp_path):
    task = TASKS["engines"]
    run = loaded_tree().commands["engine"].commands["run"]
    for rank in range(task["num_nodes"]):
        token, *words = ran(
            task, tmp_path / str(rank), HOST_TOKENS="t0 t1 t2", SKYPILOT_NODE_RANK=str(rank), MODEL="m/a"
        )
        assert token == f"t{rank}|"  # and not those of the others
        assert words[:2] == ["engine", "run"]
        made = run.make_context("run", words[2:])  # raises for unknown options
        assert made.params["name"] == f"gpu{rank}"
        assert words[words.index("--") + 1 :][:3] == ["vllm", "serve", "m/a"]
        assert made.params["gpu_type"] == task["resources"]["accelerators"].partition(":")[0]


def test_the_gateway_serves_and_no_port_is_open_to_the_world(tmp_path):
    task = TASKS["gateway"]
    assert ran(task, tmp_path, FLORIN_ENGINE_TOKEN="", HOST_TOKENS="") == ["|", "serve"]
    assert "ports" not in task["resources"]


@pytest.mark.parametrize("name", TASKS)
def test_setup_is_a_script(name):
    subprocess.run(["bash", "-n", "-c", TASKS[name]["setup"]], check=True)
