"""What the gateway's image installs: the packages of requirements.lock that Florin needs at run time, with
their hashes, and the same as an SBOM (CycloneDX 1.6); and what builds its wheel.
`python -m tests.tools.image_contents` writes them.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Set as AbstractSet
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "images"
REQUIREMENTS: Final = FOLDER / "requirements.txt"
BUILD: Final = FOLDER / "build-requirements.txt"
SBOM: Final = FOLDER / "sbom.cdx.json"
LOCK: Final = ROOT / "requirements.lock"
PROJECT: Final = ROOT / "pyproject.toml"
OWN: Final = "florin-gateway"
EXTRAS: Final = ("otel", "parquet", "postgres")
PYTHONS: Final = ("3.11.0", "3.11.99", "3.12.99")
"""Between them, what a package needs on any Python 3.11, and on the 3.12 of vLLM's image. Debian 12 has
3.11.2, on which redis needs more."""
_HEAD = "# What {what} of requirements.lock. Made by `python -m tests.tools.image_contents`.\n"
_PIN = re.compile(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^ ;\\]+)")


def pins(lock: str) -> dict[str, tuple[str, str]]:
    """Normalized name → (version, the entry with its hashes) of a lock file."""
    pinned: dict[str, tuple[str, str]] = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", lock):
        if (pin := _PIN.match(entry)) is not None:
            lines = [line for line in entry.splitlines() if not line.lstrip().startswith("#")]
            pinned[_normal(pin[1])] = (pin[2], "\n".join(lines).strip() + "\n")
    return pinned


def closure(root: str, extras: tuple[str, ...]) -> dict[str, set[str]]:
    """Normalized name → what it requires on any of PYTHONS, for all that `root` with `extras` needs: as
    installed, and what is not installed here has no requirements of its own."""
    from packaging.requirements import Requirement  # a developer's

    requirements: dict[str, set[str]] = {}
    waiting = [(root, frozenset(extras))]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, chosen = waiting.pop()
        if (name, chosen) in seen:
            continue
        seen.add((name, chosen))
        needed = requirements.setdefault(_normal(name), set())
        for text in _requires(name):
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate(where) for where in _environments(chosen)):
                needed.add(_normal(requirement.name))
                waiting.append((requirement.name, frozenset(requirement.extras)))
    return requirements


def _requires(name: str) -> list[str]:
    if name == OWN:  # as written: what an older installation here says may be out of date
        return _own_requirements()
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:  # another Python needs it; its version is in the lock file
        return []


def _own_requirements() -> list[str]:
    project: dict[str, Any] = tomllib.loads(PROJECT.read_text())["project"]
    optional = {extra: project["optional-dependencies"][extra] for extra in EXTRAS}
    needed: list[str] = project["dependencies"]
    return needed + [
        f'{requirement}; extra == "{extra}"' for extra, own in optional.items() for requirement in own
    ]


def _environments(extras: frozenset[str]) -> list[dict[str, str]]:
    return [
        {"extra": extra, "python_full_version": python, "python_version": python.rpartition(".")[0]}
        for extra in {"", *extras}
        for python in PYTHONS
    ]


def requirements() -> str:
    return _locked("the images install", closure(OWN, EXTRAS).keys() - {OWN})


def build_requirements() -> str:
    return _locked("builds Florin's wheel", closure("hatchling", ()).keys())


def _locked(what: str, names: AbstractSet[str]) -> str:
    locked = pins(LOCK.read_text())
    return _HEAD.format(what=what) + "".join(locked[name][1] for name in sorted(names))


def sbom() -> str:
    """Without a time or a serial number, so that the same lock file makes the same bytes."""
    needed = closure(OWN, EXTRAS)
    locked = pins(LOCK.read_text())
    own = distribution(OWN).version
    refs = {name: f"pkg:pypi/{name}@{locked[name][0] if name in locked else own}" for name in needed}
    components: list[dict[str, Any]] = [
        {
            "type": "library",
            "bom-ref": refs[name],
            "name": name,
            "version": locked[name][0],
            "purl": refs[name],
            **({"scope": "optional"} if "python_full_version" in locked[name][1] else {}),
            "hashes": [
                {"alg": "SHA-256", "content": digest}
                for digest in re.findall(r"sha256:([0-9a-f]{64})", locked[name][1])
            ],
        }
        for name in sorted(needed.keys() - {OWN})
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": refs[OWN],
                "name": OWN,
                "version": own,
                "purl": refs[OWN],
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": components,
        "dependencies": [
            {"ref": refs[name], "dependsOn": sorted(refs[other] for other in needed[name])}
            for name in sorted(needed)
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    REQUIREMENTS.write_text(requirements())
    BUILD.write_text(build_requirements())
    SBOM.write_text(sbom())
    sys.stdout.write(f"{REQUIREMENTS} {BUILD} {SBOM}\n")
