"""No value of another JSON type passes for true or false. Python and vLLM would take "false" for true, and 0 for
false."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.fields.checks import switch
from gateway.fields.rule import FieldPolicy, FieldReading, Table, WrongError, read
from gateway.fields.tables import TABLES

NO_SWITCH: tuple[Any, ...] = ("false", "true", "", 0, 1, 0.0, [], {}, [True], {"a": True})

SWITCHES = [
    (where, name) for where, table in TABLES.items() for name, rule in table.items() if rule.check is switch
]


@pytest.mark.parametrize(("where", "name"), SWITCHES)
def test_a_switch_is_true_or_false(where: str, name: str, reading: FieldReading):
    table: Table = TABLES[where]
    for value in (True, False):
        read({name: table[name]}, {name: value}, reading)
    for value in NO_SWITCH:
        with pytest.raises(WrongError, match="be true or false"):
            read({name: table[name]}, {name: value}, reading)


def test_there_are_switches():
    assert len(SWITCHES) > 25
    assert {("stream_options", "include_usage"), ("chat", "stream"), ("completions", "echo")} <= set(SWITCHES)


@pytest.fixture
def reading() -> FieldReading:
    return FieldReading(FieldPolicy())
