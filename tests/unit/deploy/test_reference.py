"""docs/reference/ is what the code says, all of it: `python -m tests.tools.docs` writes it."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from gateway.dialects.endpoints import ENDPOINTS
from gateway.errors import CODES
from tests.tools.docs.http_api import objects, openapi, operations
from tests.tools.docs.markdown import linked
from tests.tools.docs.pages import DIRECTORY, PAGES
from tests.tools.figures import untyped_routes

ROOT = Path(__file__).parents[3]


def rows(page: str) -> dict[str, list[str]]:
    """Of all its tables: the first cell's code → the other cells."""
    lines = [line for line in (DIRECTORY / page).read_text().splitlines() if line.startswith("| `")]
    cells = [re.split(r"(?<!\\) \| ", line[2:-2]) for line in lines]
    return {first.split("`")[1]: rest for first, *rest in cells}


@pytest.mark.parametrize("name", PAGES)
def test_each_page_is_current(name: str):
    assert (DIRECTORY / name).read_text() == PAGES[name](), "run `make docs`"


def test_nothing_else_lies_among_them():
    assert {path.name for path in DIRECTORY.iterdir()} == PAGES.keys()


@pytest.mark.parametrize("page", ["settings.md", "checks.md", "conditions.md", "audit.md", "metrics.md"])
def test_each_row_has_a_meaning(page: str):
    assert not [name for name, cells in rows(page).items() if not cells[-1].strip()]


def test_an_error_has_its_status_type_cause_and_remedy():
    for name, (status, kind, cause, remedy) in rows("errors.md").items():
        code = CODES[name]
        assert (status, kind) == (str(code.status), f"`{code.type}`")
        assert (cause, remedy) == (linked(code.cause), linked(code.remedy))


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
