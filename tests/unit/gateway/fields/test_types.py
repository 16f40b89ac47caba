"""No value of another JSON type passes for true, false or an object of options. Python and vLLM would take
"false" for true, and 0 for false."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.dataplane.request import CHAT, COMPLETIONS, Endpoint
from gateway.fields.checks import switch
from gateway.fields.rule import FieldPolicy, FieldReading, Table, WrongError, read
from gateway.fields.tables import TABLES
from tests.unit.gateway.fields.test_tables import ask, refusal

NO_SWITCH: tuple[Any, ...] = ("false", "true", "", 0, 1, 0.0, [], {}, [True], {"a": True})
NO_OBJECT: tuple[Any, ...] = ("", "x", 0, 1, True, False, [], [{}], ["x"])

SWITCHES = [
    (where, name) for where, table in TABLES.items() for name, rule in table.items() if rule.check is switch
]
OBJECTS = [
    "stream_options",
    "repetition_detection",
    "structured_outputs",
    "response_format",
    "chat_template_kwargs",
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


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=["chat", "completions"])
@pytest.mark.parametrize("name", OBJECTS)
def test_options_are_an_object(endpoint: Endpoint, name: str):
    if name in endpoint.fields:
        for value in NO_OBJECT:
            assert refusal(endpoint, stream=True, **{name: value}).param == name, value


@pytest.mark.parametrize(
    "options", [{"include_usage": "false"}, {"include_usage": 0}, {"continuous_usage_stats": "no"}]
)
def test_stream_options_of_the_wrong_type(options: dict[str, Any]):
    (name,) = options
    error = refusal(CHAT, stream=True, stream_options=options)
    assert (error.code, error.param) == ("invalid_value", f"stream_options.{name}")
    assert not ask(CHAT, stream=True, stream_options={"include_usage": False}).include_usage


@pytest.fixture
def reading() -> FieldReading:

    return FieldReading(FieldPolicy())
