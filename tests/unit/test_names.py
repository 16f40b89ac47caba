"""Names that fit everything say nothing of what they hold: no variable, loop target or parameter has one."""

from __future__ import annotations

import pytest

from tests.tools.figures import docstrings_that_begin_with_of, sources, vague_names

CODE = ("adapters", "deploy", "florin_gateway.py", "gateway", "loadtests")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return sources(CODE)


def test_variables_are_named_after_what_they_hold(texts):
    vague = [name for path, text in texts.items() for name in vague_names(path, text)]
    assert not vague, "\n".join(map(str, vague))


def test_docstrings_do_not_begin_with_of(texts):
    bare = [path for path, text in texts.items() if docstrings_that_begin_with_of(text)]
    assert not bare, "begin with a verb or the thing: " + ", ".join(bare)


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("found = 1", ["found"]),
        ("for one in (): pass", ["one"]),
        ("[said for said in ()]", ["said"]),
        ("with open('') as (at, line): pass", ["at"]),
        ("def asked(why, *, of): ...", ["why", "of"]),
        ("def refused(code, found, *, expected): ...", []),
        ("if (made := 1): pass", ["made"]),
        ("try: ...\nexcept ValueError as told: ...", ["told"]),
        ("class Asked:\n    at: int\n    of = 1", []),
        ("said.at = found(of=1)", []),
    ],
)
def test_what_is_a_vague_name(code: str, names: list[str]):
    assert [vague.name for vague in vague_names("module.py", code)] == names
