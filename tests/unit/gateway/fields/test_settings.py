"""What an operator can decide about fields."""

from __future__ import annotations

import pytest

from gateway.config import Settings, SettingsError, load_settings
from gateway.dataplane.request import policy
from gateway.fields.exposure import media_exposure
from gateway.fields.grammars import OPTIONAL
from gateway.fields.unknown import MAX_NAMES, UnknownFields
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
def test_a_wrong_setting_is_named(name: str, value: str):
    with pytest.raises(SettingsError, match=f"FLORIN_{name.upper()}"):
        load_settings(**{name: value})


TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def test_grammars_are_taken_only_where_they_are_allowed():
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


def test_an_allowed_grammar_has_a_bound():
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


def test_unknown_names_are_logged_once_and_not_without_end(caplog):
    unknown = UnknownFields()
    with caplog.at_level("DEBUG"):
        for _ in range(2):
            unknown.note(("a\nb", "c"))
        assert [record.getMessage() for record in caplog.records] == [
            "Request field 'a\\nb' is unknown and was left out", "Request field 'c' is unknown and was left out",
        ]  # fmt: skip
        unknown.note(map(str, range(10_000)))
    assert len(caplog.records) == MAX_NAMES


def test_the_doctor_can_say_where_engines_fetch_from():
    (only,) = media_exposure((), {"a": False})
    assert (only.check, only.status) == ("media_policy", "ok")
    (only,) = media_exposure({"cdn.example.com"}, {"a": True})
    assert only.status == "ok"
    (only,) = media_exposure({"cdn.example.com:8443"}, {"a": True, "b": False})
    assert (only.status, only.subject) == ("warning", "b")
    assert "--allowed-media-domains cdn.example.com." in only.remedy
