"""What an operator can decide about fields."""

from __future__ import annotations

import pytest

from gateway.config import Settings, SettingsError, load_settings
from gateway.dataplane.request import policy
from gateway.errors import FlorinError
from gateway.fields.grammars import OPTIONAL
from gateway.fields.rule import NAMES_LOGGED, UnknownFields
from tests.unit.gateway.fields.test_tables import CHAT, COMPLETIONS, ask, refusal


def test_the_settings_become_the_policy():
    made = policy(Settings(max_n=3, media_hosts="a.com, b.com:8443", pass_fields=f"new, {OPTIONAL[0]}"))
    assert (made.max_n, made.media_hosts) == (3, {"a.com", "b.com:8443"})
    assert made.passed == {"new", "structured_outputs.grammar"}
    assert policy(Settings()).passed == policy(Settings()).media_hosts == frozenset()


@pytest.mark.parametrize(
    ("name", "value"),
    [("media_hosts", "https://a.com"), ("media_hosts", "*"), ("pass_fields", "cache_salt"), ("pass_fields", "echo"),
     ("pass_fields", "prompt_embeds"), ("pass_fields", "structured_outputs.json")],
)  # fmt: skip
def test_invalid_setting_is_named(name: str, value: str):
    with pytest.raises(SettingsError, match=f"FLORIN_{name.upper()}"):
        load_settings(**{name: value})


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def test_grammars_are_accepted_only_if_allowed():
    allowed = policy(Settings(pass_fields=",".join(OPTIONAL)))
    fields = (
        {"structured_outputs": {"grammar": "root ::= 'a'"}},
        {"structured_outputs": {"structural_tag": "{}"}},
    )
    for endpoint in (CHAT, COMPLETIONS):
        for asked in (*fields, {"response_format": TAG}):
            assert refusal(endpoint, **asked).code == "unsupported_parameter"
            call = ask(endpoint, policy=allowed, **asked)
            assert asked.items() <= call.body.items()


def test_allowed_grammar_is_bounded():
    allowed = policy(Settings(pass_fields=",".join(OPTIONAL)))
    deep: list = []
    for _ in range(500):
        deep = [deep]
    for asked in (
        {"structured_outputs": {"grammar": "a" * 16_385}},
        {"response_format": TAG | {"format": "a" * 16_385}},
    ):
        with pytest.raises(Exception, match=r"16,384 (characters|bytes)"):
            ask(CHAT, policy=allowed, **asked)


def test_chat_templates_are_accepted_only_if_allowed():
    allowed = policy(Settings(chat_templates=True))
    assert refusal(CHAT, chat_template="{{ messages }}").code == "unsupported_parameter"
    assert ask(CHAT, policy=allowed, chat_template="{{ messages }}").body["chat_template"] == "{{ messages }}"
    for wrong in (5, "x" * 65_537):
        with pytest.raises(FlorinError, match="65,536 characters"):
            ask(CHAT, policy=allowed, chat_template=wrong)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
LOOSE = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}}, "response_format"),
        ({"tools": [STRICT]}, "tools"),
        ({"tools": [LOOSE], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [LOOSE], "tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    ],
)
def test_an_operator_can_refuse_whatever_compiles_a_grammar(asked, param):
    assert ask(CHAT, **asked)
    with pytest.raises(FlorinError) as caught:
        ask(CHAT, policy=policy(Settings(structured_outputs=False)), **asked)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", param)
    assert ask(CHAT, policy=policy(Settings(structured_outputs=False)), response_format={"type": "text"})


def test_unknown_fields_are_logged_once_and_up_to_a_limit(caplog):
    unknown = UnknownFields()
    with caplog.at_level("DEBUG", "gateway.fields.rule"):
        for _ in range(2):
            unknown.note(("a\nb", "c"))
        assert [record.getMessage() for record in caplog.records] == [
            "Unknown request field 'a\\nb' was dropped", "Unknown request field 'c' was dropped",
        ]  # fmt: skip
        unknown.note(map(str, range(10_000)))
    assert len(caplog.records) == NAMES_LOGGED
