"""Runs focus-validator on an export: `python -m deploy.focus.validate FILE …`.

The validator needs Python 3.12 and packages that Florin does not use. Its environment is built once, in the
user's cache, under a name with the hash of its requirements. Results are read from its report, because it
always exits with 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.cache import built, digest
from deploy.demo.pythons import pythons

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
OLDEST = 12

CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "COMMITMENT_DISCOUNT_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "REGION_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
"""The parts of FOCUS that apply to Florin. It has no availability zones, capacity reservations, account types
or second currencies, so rules about those are skipped."""
TENANT_CRITERIA = tuple(
    name
    for name in CRITERIA
    if name
    not in {
        "COMMITMENT_DISCOUNT_SUPPORTED",
        "NEGOTIATED_PRICING_SUPPORTED",
        "PUBLIC_PRICE_LIST_SUPPORTED",
        "UNIT_PRICING_SUPPORTED",
    }
)
"""Those that apply to a tenant's own file, which does not show what a GPU-hour costs the operator."""


class ValidatorUnavailableError(Exception):
    """The validator cannot run here; the message says why."""


@dataclass(frozen=True, slots=True)
class Report:
    passed: int
    skipped: int
    failed: tuple[str, ...]
    """Rule and reason."""


def validate(file: Path, *, environment: Path | None = None, criteria: Iterable[str] = CRITERIA) -> Report:
    """`criteria`: which rules apply. Raises ValidatorUnavailableError."""
    place = environment or build()
    [packages] = place.glob(
        "lib/python3.*/site-packages"
    )  # it looks for its files relative to this directory
    with tempfile.TemporaryDirectory() as scratch:
        report, logging = Path(scratch) / "report.xml", Path(scratch) / "logging.yaml"
        logging.write_text("version: 1\n")  # otherwise it writes a log to the working directory
        command = [
            *(
                str(place / "bin" / "python"),
                "-m",
                "focus_validator.main",
                "--data-file",
                str(file.resolve()),
            ),
            *("--validate-version", "1.2", "--block-download"),
            *("--applicability-criteria", ",".join(criteria)),
            *("--output-type", "unittest", "--output-destination", str(report)),
        ]
        done = subprocess.run(  # noqa: S603  # our own command
            command,
            cwd=packages,
            env={**os.environ, "LOGGING_CONFIG": str(logging)},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        if not report.exists():
            raise ValidatorUnavailableError(
                f"The validator wrote no report: {(done.stderr or done.stdout)[-800:]}"
            )
        return _read(report)


def _read(report: Path) -> Report:
    passed = skipped = 0
    failed = []
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314  # written by our own child
        failure = case.find("failure")
        failure = case.find("error") if failure is None else failure
        if failure is not None:
            failed.append(f"{case.get('name')}: {failure.get('message')}")
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += 1
    return Report(passed, skipped, tuple(sorted(failed)))


def build() -> Path:
    """The environment's directory, built if necessary. Raises ValidatorUnavailableError."""
    return built(f"focus-validator-{digest(REQUIREMENTS.read_bytes())}", _install)


def _install(directory: Path) -> None:
    python = next(pythons(OLDEST), None)
    if python is None:
        raise ValidatorUnavailableError(f"No Python 3.{OLDEST} or newer on this machine.")
    _run([python, "-m", "venv", str(directory)])
    pip = [str(directory / "bin" / "python"), "-m", "pip", "install", "-q", "--no-deps", "--require-hashes"]
    _run([*pip, "-r", str(REQUIREMENTS)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # our own command
    if done.returncode:
        raise ValidatorUnavailableError(f"{' '.join(command[:4])} failed: {done.stderr[-800:]}")


def main() -> int:
    status = 0
    for name in sys.argv[1:]:
        report = validate(Path(name))
        print(f"{name}: {report.passed} passed, {report.skipped} skipped, {len(report.failed)} failed")  # noqa: T201  # its output
        for line in report.failed:
            print(f"  {line}")  # noqa: T201  # its output
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
