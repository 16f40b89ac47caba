"""The units: systemd's own checks, real commands, real settings, and times that fit Florin's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from adapters.engine_agent.state import HostConfig  # noqa: F401  # the agent, whose command the unit runs
from gateway.commands.tree import loaded_tree
from gateway.config import Settings
from gateway.runtime.unknown_variables import unknown
from tests.support.missing import absent

FOLDER = Path("deploy/systemd")
UNITS = sorted(FOLDER.glob("*.service")) + sorted(FOLDER.glob("*.timer"))
SERVICES = sorted(FOLDER.glob("*.service"))
EXPOSED = {"florin-gateway": 2.0, "florin-engine@": 4.0, "florin-backup": 4.0}
"""The most that `systemd-analyze security` may say, of 10."""


def values(unit: Path, name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A file system with what the units name."""
    if shutil.which("systemd-analyze") is None:
        absent("systemd-analyze is not installed: apt-get install systemd")
    made = tmp_path_factory.mktemp("root")
    units = made / "units"
    units.mkdir()
    florin = made / "florin"
    florin.write_text("#!/bin/sh\n")
    florin.chmod(0o755)
    for unit in UNITS:
        (units / unit.name).write_text(unit.read_text().replace("/opt/florin/bin/florin", str(florin)))
    return units


def analyze(*args: str) -> str:
    done = subprocess.run(
        ["systemd-analyze", *args],
        capture_output=True, text=True, timeout=60, check=False, env=os.environ | {"LC_ALL": "C"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_systemd_finds_nothing_wrong(root):
    said = analyze("verify", "--man=no", "--recursive-errors=no", *map(str, sorted(root.iterdir())))
    assert "florin" not in said


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_the_sandbox_is_tight(root, service):
    said = analyze("security", "--offline=yes", "--no-pager", str(root / service.name))
    exposure = re.search(r"exposure level for .*: ([0-9.]+)", said)
    assert exposure
    assert float(exposure[1]) <= EXPOSED[service.stem]


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_the_commands_exist_with_their_options(service):
    [line] = values(service, "ExecStart")
    words = shlex.split(line)
    if words[1] == "-c":
        words = words[2].removeprefix("exec ").split()
    command = loaded_tree()
    rest = words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command = command.commands[rest.pop(0)]
    known = {name for parameter in command.params for name in parameter.opts}
    own = rest[: rest.index("--")] if "--" in rest else rest
    assert {word for word in own if word.startswith("--")} <= known


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_the_variables_are_read(service):
    assert not list(unknown(line.partition("=")[0] for line in values(service, "Environment")))


def test_systemd_waits_longer_than_florin_needs_to_stop():
    [gateway] = values(FOLDER / "florin-gateway.service", "TimeoutStopSec")
    fields = Settings.model_fields
    assert float(gateway) >= fields["lame_duck"].default + fields["shutdown_grace"].default + 10
    engine = FOLDER / "florin-engine@.service"
    [stop], [line] = values(engine, "TimeoutStopSec"), values(engine, "ExecStart")
    drain = re.search(r"--drain-timeout (\d+)", line)
    assert drain
    assert float(stop) >= float(drain[1]) + 30


def test_the_directories_of_the_units_are_made():
    made = re.findall(r"^d (\S+)", (FOLDER / "florin.tmpfiles.conf").read_text(), re.MULTILINE)
    users = re.findall(r"^u (\S+)", (FOLDER / "florin.sysusers.conf").read_text(), re.MULTILINE)
    for service in SERVICES:
        assert values(service, "User")[0] in users
    assert {"/etc/florin", "/etc/florin-engine", "/var/backups/florin"} <= set(made)


@pytest.mark.parametrize("service", SERVICES, ids=lambda path: path.stem)
def test_what_a_unit_s_user_reads_is_in_a_directory_of_its_group(service):
    """systemd itself, as root, reads EnvironmentFile and LoadCredential; what the command names, the user does."""
    lines = (FOLDER / "florin.tmpfiles.conf").read_text()
    groups = dict(re.findall(r"^d (\S+) 07\d0 \S+ (\S+)", lines, re.MULTILINE))
    read = [word for word in values(service, "ExecStart")[0].split() if word.startswith("/etc/")]
    read += [f"{path}/any" for path in values(service, "WorkingDirectory") if path.startswith("/etc/")]
    reached = [groups[str(parent)] for path in read for parent in Path(path).parents if str(parent) in groups]
    assert len(reached) == len(read)
    assert set(reached) <= set(values(service, "Group"))
