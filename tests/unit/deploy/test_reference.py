"""docs/reference/ is what the code says, all of it: `python -m tests.tools.docs` writes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from adapters.checks.findings import CODES as CHECKS
from adapters.engine_agent.engine_flags import EXCEPT, ONLY, PASSED, REFUSED, REFUSED_ENVIRONMENT
from gateway.commands.tree import loaded_tree
from gateway.config import RELOADABLE, Settings
from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import CODES
from gateway.metering.ledger.audit_log import ACTIONS
from gateway.observability.conditions import CONDITIONS
from gateway.observability.metric_names import METRICS
from gateway.runtime.unknown_variables import CLIENTS
from tests.tools.docs.http_api import objects, openapi, operations
from tests.tools.docs.markdown import linked
from tests.tools.docs.pages import DIRECTORY, PAGES
from tests.tools.figures import untyped_routes

SETTINGS = {f"FLORIN_{name.upper()}" for name in Settings.model_fields}

ROOT = Path(__file__).parents[3]


def rows(page: str) -> dict[str, list[str]]:
    """Of all its tables: the first cell's code → the other cells."""
    lines = [line for line in (DIRECTORY / page).read_text().splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines]
    return {first.split("`")[1]: rest for first, *rest in cells}


def commands(command: Any, name: str) -> list[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(name, command)]
    return [found for word, below in inner.items() for found in commands(below, f"{name} {word}")]


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_current(name: str):
    assert (DIRECTORY / name).read_text() == PAGES[name](), "run `make docs`"


def test_nothing_else_lies_among_them():
    assert {path.name for path in DIRECTORY.iterdir()} == PAGES.keys()


@pytest.mark.parametrize(
    ("page", "names"),
    [
        ("settings.md", SETTINGS | {name for name, text in CLIENTS.items() if text}),
        ("errors.md", CODES.keys()),
        ("checks.md", CHECKS.keys()),
        ("conditions.md", CONDITIONS.keys()),
        ("audit.md", ACTIONS.keys()),
        ("metrics.md", METRICS.keys()),
        (
            "engine-flags.md",
            {f"--{n}" for n in (*REFUSED, *ONLY, *EXCEPT, *PASSED)} | REFUSED_ENVIRONMENT.keys(),
        ),
    ],
)
def test_a_table_has_a_row_for_each_name_and_no_other(page: str, names: set[str]):
    found = rows(page)
    assert found.keys() == names
    assert not [name for name, cells in found.items() if not cells[-1].strip()]


def test_the_settings_say_their_defaults_and_which_need_no_restart():
    found = rows("settings.md")
    assert found["FLORIN_PORT"][:2] == ["`8080`", ""]
    assert found["FLORIN_ACCESS_LOG"][:2] == ["`false`", "yes"]
    assert found["FLORIN_REDIS_URL"][0] == "none"
    marked = {name for name, cells in found.items() if cells[1:2] == ["yes"]}
    assert marked == {f"FLORIN_{name.upper()}" for name in RELOADABLE}


def test_an_error_has_its_status_type_cause_and_remedy():
    for name, (status, kind, cause, remedy) in rows("errors.md").items():
        code = CODES[name]
        assert (status, kind) == (str(code.status), f"`{code.type}`")
        assert (cause, remedy) == (linked(code.cause), linked(code.remedy))


def test_every_command_is_there_with_every_option():
    text = (DIRECTORY / "cli.md").read_text()
    found = commands(loaded_tree(), "florin")
    assert len(found) > 40
    common = text.partition("## Gateway options\n")[2].partition("\n## ")[0]
    for name, command in found:
        assert f"[`{name}`](#{name.replace(' ', '-')})" in text
        section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        assert section, name
        for parameter in command.params:
            shown = parameter.opts[0] if parameter.param_type_name == "option" else parameter.metavar
            assert f"`{shown or parameter.name.upper()}`" in section + common, (name, parameter.name)


def test_every_operation_is_there_with_its_roles():
    text = (DIRECTORY / "http-api.md").read_text()
    description = openapi()
    found = list(operations(description))
    assert len(found) > 50
    for method, path, operation in found:
        made_up = operation["operationId"].startswith(operation["summary"].lower().replace(" ", "_"))
        assert operation.get("description") or not made_up, f"{method} {path} has no docstring"
        section = text.partition(f"\n### {method} {path}\n")[2].partition("\n### ")[0]
        assert "*Roles:* " in section, (method, path)
    assert all(f"`POST {path}`" in text for path in ENDPOINTS)
    assert all(f"\n### {name}\n" in text for name in objects(description))
    create = text.partition("\n### POST /admin/v1/keys\n")[2].partition("\n### ")[0]
    assert "*Roles:* `operator`, `tenant-admin`." in create
    costs = text.partition("\n### GET /finance/v1/costs\n")[2].partition("\n### ")[0]
    assert "*Roles:* `auditor`, `finance`, `operator`, `tenant`, `tenant-admin`." in costs


def test_every_answer_has_a_type():
    untyped = list(untyped_routes(openapi()))
    assert not untyped, f"declare what these answer: {untyped}"


def test_every_object_has_a_name_of_its_own():
    """Generated clients have a class of that name. FastAPI puts the module before names that are not unique,
    and `-Input` behind those that mean two things."""
    names = openapi()["components"]["schemas"]
    assert not [name for name in names if "__" in name or not name.isidentifier()]


def test_no_router_of_the_api_is_forgotten():
    served = [(method, path) for method, path, _ in operations(openapi())]
    files = (path.relative_to(ROOT).with_suffix("").parts for path in (ROOT / "gateway").rglob("*.py"))
    for module in (".".join(parts) for parts in files if "routes" in parts):
        router = getattr(import_module(module), "router", None)
        for route in router.routes if router else ():
            assert any(method in route.methods and path.endswith(route.path) for method, path in served), (
                f"{route.path} is not served: include the router of {module}"
            )


def test_environment_does_not_affect_reference_pages(tmp_path: Path):
    (tmp_path / "florin.yaml").write_text("port: 1\nmax_adapter_bytes: 1\n")
    script = (
        "from tests.tools.docs.pages import DIRECTORY, PAGES\n"
        "for name, page in PAGES.items(): assert page() == (DIRECTORY / name).read_text(), name\n"
    )
    environ = os.environ | {"FLORIN_PORT": "2", "FLORIN_URL": "http://x", "COLUMNS": "40", "HOME": "/nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
