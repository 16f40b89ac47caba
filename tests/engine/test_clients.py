"""Each example of docs/clients, run as it stands, prints what the page shows: real clients, real engines.

`make clients-newest` runs them with what the pages' install commands give today, and says which pages broke. It is no
part of CI: a client's release must not fail a build of Florin's."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from adapters.store.embedded import EmbeddedValkey
from deploy.demo.engines import Fleet
from tests.engine.conftest import add_customers, cleaned, serving
from tests.support.forms import some_of
from tests.support.harness import Gateway
from tests.support.missing import absent, missing
from tests.tools.clients.environments import (
    ClientsUnavailableError,
    newest_environment,
    node_environment,
    python_environment,
)

PAGES = sorted(
    page for page in (Path(__file__).parents[2] / "docs" / "clients").glob("*.md") if page.name != "index.md"
)
BY_HAND = {"claude-code", "codex"}
"""Programs of hundreds of megabytes. Tests of /v1/messages and /v1/responses repeat what they send."""
ADDRESS = "http://127.0.0.1:8080"
"""Florin's, as the pages write it."""
NEWEST = os.environ.get("FLORIN_CLIENTS") == "newest"
EXAMPLES = [page.stem for page in PAGES if page.stem not in BY_HAND]
SHORT = ("ai-sdk", "anthropic", "curl", "openai-node", "openai-python")
"""The short form leaves out those that ask through one of these: importing them takes most of what their examples do."""
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Example:
    """All of a page's code, which is one program, and all that it prints. `…` stands for anything."""

    language: str
    code: str
    shown: str
    install: str
    """What the page has its reader run first; empty: nothing."""


def read(page: Path) -> Example:
    blocks = _FENCE.findall(page.read_text())
    install = next((text.strip() for kind, text in blocks if kind == "console"), "")
    blocks = [block for block in blocks if block[0] != "console"]
    [language] = {language for language, _ in blocks if language != "text"}
    code, shown = (
        "\n".join(text for kind, text in blocks if kind == wanted) for wanted in (language, "text")
    )
    return Example(language, code, shown, install)


def command(example: Example, page: Path, place: Path) -> list[str]:
    """How to run the example's file in `place`. Skips the test if that is not possible here."""
    try:
        if example.language == "python":
            environment = (
                newest_environment(example.install, place / "newest")
                if NEWEST
                else python_environment("llama-index" if page.stem == "llamaindex" else "python")
            )
            return [str(environment / "bin" / "python"), "example.python"]
        if example.language == "js":
            environment = (
                newest_environment(example.install, place / "newest") if NEWEST else node_environment()
            )
            (place / "node_modules").symlink_to(environment / "node_modules")
            return ["node", "example.mjs"]
    except ClientsUnavailableError as error:
        missing(str(error))
    if shutil.which("curl") is None:
        absent("curl is not installed: apt-get install curl")
    return ["bash", "-euo", "pipefail", "example.bash"]


def pattern(shown: str) -> re.Pattern[str]:
    lines = [line.rstrip() for line in shown.splitlines() if line.strip()]
    return re.compile(".*".join(map(re.escape, "\n".join(lines).split("…"))), re.DOTALL)


def test_each_client_of_the_table_has_a_page() -> None:
    table = (PAGES[0].parent / "index.md").read_text()
    assert sorted(set(re.findall(r"\]\(([a-z-]+\.md)\) \|", table))) == [page.name for page in PAGES]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(
    fleet: Fleet, valkey: EmbeddedValkey, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Gateway]:
    state = tmp_path_factory.mktemp("clients") / "state"
    async with serving(cleaned(fleet), state, valkey.url, "clients") as running:
        await add_customers(running, fleet.model)
        yield running


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("client", EXAMPLES if NEWEST else some_of(EXAMPLES, *SHORT))
async def test_the_examples_print_what_the_page_shows(client: str, gateway: Gateway, tmp_path: Path) -> None:
    page = PAGES[0].with_stem(client)
    example = read(page)
    run = command(example, page, tmp_path)
    name = "example.mjs" if example.language == "js" else f"example.{example.language}"
    (tmp_path / name).write_text(example.code.replace(ADDRESS, gateway.url))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "FLORIN_API_KEY": gateway.keys["acme"],
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads a list of prices
    }
    child = await asyncio.create_subprocess_exec(
        *run,
        cwd=tmp_path,
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    assert child.returncode == 0, err.decode()[-4000:]
    printed = "\n".join(line.rstrip() for line in out.decode().splitlines() if line.strip())
    assert pattern(example.shown).fullmatch(printed), f"printed:\n{printed}\n\nshown:\n{example.shown}"
