"""A room of the gateway holds what concerns one noun: its model and decisions, and beside them what the API takes
and answers (`schemas`), what an operator can do (`operations`), and the two ways to ask for it (`routes`, `commands`).
Across all rooms these import one way. import-linter holds the order of everything else; it cannot say "whatever
is none of these"."""

from __future__ import annotations

import grimp
import pytest

MODEL = "model"
ABOVE = {
    MODEL: set(),
    "schemas": {MODEL},
    "operations": {MODEL, "schemas"},
    "routes": {MODEL, "schemas", "operations"},
    "commands": {MODEL, "schemas"},
}
ASSEMBLY = ("api", "app", "cli", "composition", "console", "serving")
"""They put the rooms together."""
WITHOUT_A_GATEWAY = ("gateway.installation.backup.", "gateway.declarative.", "gateway.kubernetes.")
"""Commands that do the work themselves: `florin backup`, `florin restore`, `florin fleet-file`, `florin
controller`."""


def kind(module: str) -> str:
    return next((part for part in module.split(".") if part in ABOVE), MODEL)


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("adapters", "gateway", "deploy", cache_dir=None)


def test_rooms_import_one_way(graph):
    rooms = [
        module
        for module in graph.modules
        if module.startswith("gateway.")
        and module.split(".")[1] not in ASSEMBLY
        and module != "gateway.commands.tree"
    ]
    assert {kind(module) for module in rooms} == set(ABOVE)
    wrong = [
        f"{module} -> {imported}"
        for module in rooms
        for imported in graph.find_modules_directly_imported_by(module)
        if kind(imported) not in {kind(module), *ABOVE[kind(module)]}
        and not (
            module.startswith(WITHOUT_A_GATEWAY)
            and kind(module) == "commands"
            and kind(imported) == "operations"
        )
    ]
    assert wrong == []


def test_no_file_imports_itself_by_way_of_others(graph):
    """Of rooms, import-linter sees only what lies below the kinds."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while leaves := {module for module, imported in imports.items() if not imported}:
        imports = {module: imported - leaves for module, imported in imports.items() if module not in leaves}
    assert imports == {}
