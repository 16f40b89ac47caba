"""The lock files: everything pinned, everything hashed, nobody's index named."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.tools.lock import LOCKS

ROOT = Path(__file__).parents[3]
_PINNED = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==\S+")
_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def requirements(path: str) -> list[str]:
    """Each with its hashes, on one line."""
    text = (ROOT / path).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.mark.parametrize("path", [lock.output for lock in LOCKS])
def test_every_requirement_is_pinned_and_hashed(path: str):
    found = requirements(path)
    assert found
    assert [line for line in found if not (_PINNED.match(line) and _HASH.search(line))] == []


@pytest.mark.parametrize("path", [lock.output for lock in LOCKS] + ["deploy/torch-requirements.txt"])
def test_no_lock_file_names_an_index(path: str):
    text = (ROOT / path).read_text()
    assert "://" not in text
    assert "--index-url" not in text
    assert "--find-links" not in text


def test_the_lock_holds_what_the_project_asks_for():
    """What a branch adds to pyproject.toml goes into the lock, too: `make lock`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(r for rs in project["optional-dependencies"].values() for r in rs)]
    pinned = {}
    for line in requirements("requirements.lock"):
        name, _, version = line.split()[0].partition("==")
        pinned[canonicalize_name(name)] = version
    for requirement in map(Requirement, asked):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{requirement.name} is not in requirements.lock: run `make lock`"
        assert requirement.specifier.contains(version), (
            f"{requirement} does not allow {version}: run `make lock`"
        )


def test_what_installs_the_locks_requires_the_hashes():
    recipe = (ROOT / "deploy" / "install.sh").read_text()
    assert "--require-hashes -r requirements.lock" in recipe
    assert "--no-build-isolation -e ." in recipe  # hatchling is the lock's, not one fetched on the way
