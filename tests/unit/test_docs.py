"""The README tells the truth: settings, error codes, metrics, checks and commands are all there, as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer

from adapters.findings import CODES as FINDINGS
from gateway.command_tree import tree
from gateway.conditions import CONDITIONS
from gateway.config import RELOADABLE, Settings
from gateway.errors import CODES
from gateway.metering.audit import ACTIONS
from gateway.metrics import METRICS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
UPGRADING = (ROOT / "docs" / "upgrading.md").read_text()
INCIDENTS = (ROOT / "docs" / "incidents.md").read_text()


def settings_rows() -> list[str]:
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default.get_secret_value() if name == "operator_key" else field.default
        shown = f"`{default}`" if default not in {"", None} else "none"
        rows.append(f"| `FLORIN_{name.upper()}` | {shown} | {field.description} |")
    return rows


def error_rows() -> list[str]:
    return [f"| `{name}` | {c.status} | {c.cause} | {c.cure} |" for name, c in CODES.items()]


def metric_rows() -> list[str]:
    return [f"| `{name}` | {text} |" for name, text in METRICS.items()]


def finding_rows() -> list[str]:
    return [f"| `{name}` | {c.severity} | {c.meaning} | {c.remedy} |" for name, c in FINDINGS.items()]


def action_rows() -> list[str]:
    return [f"| `{name}` | {text} |" for name, text in ACTIONS.items()]


def commands() -> list[str]:
    root = typer.main.get_command(tree())
    found = []
    with typer.Context(root) as context:
        loaded = [(name, root.get_command(context, name)) for name in root.list_commands(context)]  # type: ignore[attr-defined]
    for name, command in loaded:
        inner = getattr(command, "commands", None)
        found += [f"florin {name} {i}" for i in inner] if inner else [f"florin {name}"]
    return found


@pytest.mark.parametrize(
    "row", [*settings_rows(), *error_rows(), *metric_rows(), *finding_rows(), *action_rows()]
)
def test_each_row_stands_in_the_readme(row: str):
    assert row in README


def test_the_settings_that_need_no_restart_are_listed_and_no_others():
    section = UPGRADING.partition("## Settings that need no restart")[2].partition("\n## ")[0]
    assert set(re.findall(r"`FLORIN_(\w+)`", section)) == {name.upper() for name in RELOADABLE}


def test_the_conditions_are_listed_and_no_others():
    rows = [f"| `{code}` | {c.severity} | {c.summary} | {c.remedy} |" for code, c in CONDITIONS.items()]
    table = INCIDENTS.partition("## Conditions\n")[2].partition("\n\n")[0]
    assert table.splitlines()[2:] == rows


@pytest.mark.parametrize("command", commands())
def test_each_command_stands_in_the_readme(command: str):
    assert command in README


def test_every_action_that_is_noted_is_listed_and_no_other():
    """In the code an action is a text of two words of this form, and nothing else is."""
    kinds = "|".join(sorted({name.partition(".")[0] for name in ACTIONS}))
    sources = [path for side in ("adapters", "gateway") for path in (ROOT / side).rglob("*.py")]
    noted = {
        name
        for path in sources
        if path.name != "audit.py"
        for name in re.findall(rf'"((?:{kinds})\.[a-z_]+)"', path.read_text())
    }
    assert noted == ACTIONS.keys()


def test_the_readme_names_nothing_that_is_gone():
    listed = {line.split("`")[1] for line in README.splitlines() if line.startswith("| `")}
    known = {f"FLORIN_{name.upper()}" for name in Settings.model_fields} | CODES.keys() | METRICS.keys()
    assert not {
        name
        for name in listed - known - FINDINGS.keys()
        if name.startswith(("FLORIN_", "florin_")) or (name.islower() and "_" in name)
    }


def test_the_incidents_name_tests_that_exist():
    named = re.findall(r"`((?:integration|engine)/test_\w+\.py)`", INCIDENTS)
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "tests" / name).exists()]


def test_the_threat_model_names_tests_that_exist():
    text = (ROOT / "SECURITY.md").read_text()
    named = {
        part
        for part in re.findall(r"`([\w/.-]+)`", text)
        if part.startswith(("unit/", "integration/", "engine/", "test_"))
    }
    assert len(named) > 15
    for name in named:
        assert (ROOT / "tests" / name).exists() or (ROOT / "tests" / "integration" / name).exists(), name
