"""What a start of `florin` loads. Time cannot be asserted; what takes it can: the modules that are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import typer

from gateway.commands.lazy_groups import Command, Group
from gateway.commands.tree import _LOADED_WHEN_ASKED, tree

ROOT = Path(__file__).parents[4]
HEAVY = {
    "aiohttp", "alembic", "botocore", "cryptography", "fastapi", "huggingface_hub", "jinja2", "numpy",
    "prometheus_client", "pydantic_settings", "pynvml", "redis", "obstore", "sqlalchemy", "starlette", "uvicorn", "yarl",
    "gateway.config", "gateway.metering", "gateway.operations.state", "adapters.checks.validate",
}  # fmt: skip
"""None of these may be loaded for help, or for a command that asks the gateway something."""
TYPER = {"annotated_doc", "shellingham", "typer"}
VALUES = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
"""Typer converts values of options with pydantic, once a command line is parsed."""
MAIN = "from florin_gateway import main\ntry:\n    main()\nexcept SystemExit as end:\n    code = end.code\n"
TELL = "\nimport json, os, sys\nos.write(2, b'\\0' + json.dumps([code, list(sys.modules)]).encode())\n"


def loaded(code: str, *words: str) -> tuple[Any, set[str]]:
    """Exit code, and all modules at the end."""
    environ = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("FLORIN_", "COV"))},
        "PYTHONPATH": str(ROOT),
        "FLORIN_URL": "http://127.0.0.1:1",  # nothing listens there
        "FLORIN_OPERATOR_KEY": "fl_a_key",
    }
    command = [sys.executable, "-c", f"code = None\n{code}{TELL}", *words]
    done = subprocess.run(command, env=environ, capture_output=True, check=True)
    exit_code, modules = json.loads(done.stderr.rpartition(b"\0")[2])
    return exit_code, set(modules)


def foreign(modules: set[str]) -> set[str]:
    """The distributions' packages, without Python's own and ours."""
    own = {"adapters", "deploy", "florin_gateway", "gateway", "__main__"}
    tops = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - own
    return {name for name in tops if not name.startswith(("_", "cython_runtime", "sitecustomize"))}


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] in {"adapters", "deploy", "gateway"}}


def command_modules(modules: set[str]) -> set[str]:
    """Without packages that only hold them."""
    return {
        name for name in ours(modules) if "commands" in name.split(".")[:-1] or name.endswith("keys.commands")
    }


def test_the_list_of_commands_loads_no_command():
    codes, modules = loaded(f"{EACH}    codes.append(code)\ncode = codes\n", "--help", "-h", "")
    assert codes == [0, 0, 2]  # 2: no command was given
    assert foreign(modules) == TYPER
    assert ours(modules) == {
        "adapters", "adapters.engine_agent", "adapters.engine_agent.key_protection", "gateway", "gateway.cli",
        "gateway.commands", "gateway.commands.lazy_groups", "gateway.commands.tree", "gateway.runtime",
        "gateway.runtime.unknown_variables",
    }  # fmt: skip
    assert "asyncio" not in modules


def test_help_of_a_command_loads_its_group_alone():
    code, modules = loaded(MAIN, "tenant", "add", "--help")
    assert code == 0
    assert foreign(modules) == TYPER | VALUES | {"orjson", "rich"}
    names = ("client", "lazy_groups", "options", "output", "session", "tree")
    shared = {f"gateway.commands.{name}" for name in names}
    assert command_modules(modules) == shared | {
        "gateway.tenants.commands.page",
        "gateway.tenants.commands.tenants",
        "gateway.tenants.keys.commands",
    }


ASKING = (
    "engine list", "tenant list", "adapter show acme/support", "key list", "price list", "cost report", "placement",
    "explain acme/support", "export", "registry show", "audit list", "doctor",
)  # fmt: skip  # a command each
EACH = f"import sys\ncodes = []\nfor words in sys.argv[1:]:\n    sys.argv[1:] = words.split()\n{indent(MAIN, '    ')}"


def test_commands_that_ask_the_gateway_load_a_client_and_no_gateway():
    codes, modules = loaded(f"{EACH}    codes.append(code)\ncode = codes\n", *ASKING)
    assert codes == [3] * (len(ASKING) - 1) + [1], "nobody answers"
    assert "httpx2" in modules
    assert not modules & HEAVY


@pytest.mark.parametrize("name", _LOADED_WHEN_ASKED)
def test_the_list_says_of_a_command_what_its_own_help_says(name):
    entry = _LOADED_WHEN_ASKED[name]
    root = typer.main.get_command(tree())
    with typer.Context(root) as context:
        listed, made = root.commands[name], root.get_command(context, name)
    assert isinstance(entry, Command | Group)
    assert made.name == name
    assert made.get_short_help_str(200) == listed.get_short_help_str(200)


def test_every_module_with_commands_is_in_the_tree():
    entries = [entry.load() for entry in _LOADED_WHEN_ASKED.values()]
    loaded = {id(app) for apps in entries for app in (apps if isinstance(apps, tuple) else (apps,))}
    names = (
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in ROOT.joinpath("gateway").rglob("*.py")
    )
    modules = [import_module(name) for name in names if "commands" in name.split(".")]
    made = {m.__name__: m.app for m in modules if isinstance(getattr(m, "app", None), typer.Typer)}
    assert len(made) > 20
    forgotten = [name for name, app in made.items() if id(app) not in loaded]
    assert not forgotten, f"no command of {forgotten} can be run: add them to gateway/commands/tree.py"


def test_no_command_of_a_group_hides_another():
    for name, entry in _LOADED_WHEN_ASKED.items():
        if isinstance(entry, Group):
            apps = entry.load()
            made = typer.main.get_command(tree()).get_command(None, name)
            registered = sum(len(app.registered_commands) + len(app.registered_groups) for app in apps)
            assert len(made.commands) == registered > 1, name
