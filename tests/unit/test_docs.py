"""The documentation tells the truth: what it names exists, and every link leads somewhere.

What is generated (docs/reference/) has its own test, tests/unit/deploy/test_reference.py. Links between the
pages are `make docs`'s to check, which `make check` runs; here are those that lead in and out of docs/."""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.commands.tree import loaded_tree
from gateway.metering.ledger.audit_log import ACTIONS
from gateway.observability.metric_names import METRICS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "loadtests/README.md")]
WRITTEN = [*OUTSIDE, *sorted(DOCS.glob("*.md"))]
TOP = ("adapters", "gateway", "deploy", "docs", "loadtests", "tests")

named = pytest.mark.parametrize("path", WRITTEN, ids=lambda path: str(path.relative_to(ROOT)))
florin = cache(loaded_tree)


def code(text: str) -> Iterator[str]:
    """Code spans, and the lines of code blocks; a line that ends in a backslash is joined to the next."""
    blocks = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for block in blocks.findall(text):
        yield from block.replace("\\\n", " ").splitlines()
    for span in re.findall(r"`([^`]+)`", blocks.sub("", text)):
        yield " ".join(span.split())


def calls(path: Path) -> list[str]:
    """What the page has of `florin` command lines."""
    found = []
    for text in code(path.read_text()):
        line = re.sub(r"^[$(]? ?(umask 077; )?", "", text).partition(" #")[0].partition("    (its")[0]
        if line.startswith("florin ") and not re.match(r"florin: |florin (listens|\w+:)", line):
            found.append(line)
    return found


def resolve(line: str) -> tuple[Any, list[str]]:
    """The command, and the words that follow it."""
    words = shlex.split(line.partition(" -- ")[0].replace("…", "").rstrip("&()> "))[1:]
    command: Any = florin()
    while words and getattr(command, "commands", None) is not None:
        assert words[0] in command.commands, f"{line!r}: there is no {words[0]!r}"
        command = command.commands[words.pop(0)]
    return command, words


@named
def test_each_command_that_is_named_exists_with_its_options(path: Path):
    for line in calls(path):
        command, words = resolve(line)
        options = {o for p in command.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        given = {word.partition("=")[0] for word in words if word.startswith("-")}
        assert given <= options, line


def test_enough_commands_are_looked_at():
    assert len({line for path in WRITTEN for line in calls(path)}) > 60
    with pytest.raises(AssertionError, match="there is no 'nonsense'"):
        resolve("florin adapter nonsense")


@named
def test_each_metric_that_is_named_exists(path: Path):
    found = set(re.findall(r"\bflorin_[a-z_]+[a-z]\b", path.read_text()))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in found} - METRICS.keys() <= {
        "florin_adapter"  # with an ellipsis: all that begin so
    }


@named
def test_each_file_that_is_named_exists(path: Path):
    spans = re.findall(r"`([\w./-]+)`", path.read_text())
    files = [span for span in spans if span.split("/")[0] in TOP and "/" in span]
    assert not [name for name in files if not (ROOT / name).exists()]


def test_the_tree_names_each_folder():
    tree = (DOCS / "architecture.md").read_text().partition("\n## The tree\n")[2]
    folders = {
        f"{path.parent.name}/{path.name}"
        for top in ("adapters", "gateway")
        for path in (ROOT / top).iterdir()
        if (path / "__init__.py").exists()
    }
    assert len(folders) > 15
    assert not [name for name in folders if f"| `{name}/" not in tree]


def test_the_pages_for_contributors_name_files():
    for name in ("architecture.md", "contributing.md"):
        assert len(set(re.findall(r"`(?:adapters|gateway)/[\w./-]*`", (DOCS / name).read_text()))) > 15


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.name)
def test_each_link_from_outside_the_site_leads_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        if ":" not in name:
            assert page.exists(), target
            assert not anchor or anchor in anchors(page), target


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@named
def test_no_page_links_out_of_the_site(path: Path):
    """There is nothing to link to there: the site holds docs/ only."""
    if path.parent == DOCS:
        assert not re.search(r"\]\(\.\./", path.read_text())


def test_the_site_has_each_page_once():
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        for inner in entry.values() if isinstance(entry, dict) else entry if isinstance(entry, list) else ():
            yield from pages(inner)

    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert sorted(pages(nav)) == sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 200


def test_what_the_demo_shows_is_labelled_where_it_is_shown():
    for path in (ROOT / "README.md", DOCS / "getting-started.md"):
        text = " ".join(path.read_text().split())
        assert re.search(r"prices are made up", text)
        assert re.search(r"patched", text)
    assert "The patch is in `deploy/demo/engine_env.py`" in (DOCS / "vllm.md").read_text()


def test_every_action_that_is_noted_is_listed_and_no_other():
    """In the code an action is a text of two words of this form, and nothing else is."""
    kinds = "|".join(sorted({name.partition(".")[0] for name in ACTIONS}))
    sources = [path for side in ("adapters", "gateway") for path in (ROOT / side).rglob("*.py")]
    noted = {
        name
        for path in sources
        if path.name != "audit_log.py"
        for name in re.findall(rf'"((?:{kinds})\.(?!(?:csv|json)")[a-z_]+)"', path.read_text())
    }
    assert noted == ACTIONS.keys(), "ACTIONS in gateway/metering/ledger/audit_log.py has each action"


def test_the_hooks_run_the_tools_of_the_environment():
    """As `make check` does: no other versions, nothing downloaded."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    [repository] = hooks["repos"]
    assert repository["repo"] == "local"
    makefile = (ROOT / "Makefile").read_text()
    for hook in repository["hooks"]:
        tool = hook["entry"].split()[0]
        assert tool.startswith(".venv/bin/")
        assert f"$(BIN)/{tool.removeprefix('.venv/bin/')}" in makefile
        assert hook["language"] == "system"
