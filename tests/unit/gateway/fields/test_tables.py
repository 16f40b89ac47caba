"""Every row of the tables, with values that are sent and values that are not; and the tables against vLLM's
and OpenAI's own lists of fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as CompletionParams

from gateway.dataplane.request import CHAT, COMPLETIONS, Call, Endpoint, parse
from gateway.errors import FlorinError
from gateway.fields.registry import without_rule
from gateway.fields.rule import FieldAction, FieldPolicy
from gateway.fields.tables import TABLES
from tests.support.search import examples
from tests.unit.gateway.fields import samples

HERE = Path(__file__).parent
SNAPSHOT = json.loads((HERE / "vllm_fields.json").read_text())
NEXT = {"chat": ["return_weight_versions"], "completions": ["return_weight_versions"]}
"""What vLLM 0.33.0 adds to 0.32.0."""
BODIES = {
    CHAT.path: {"model": "support", "messages": [{"role": "user", "content": "Hi"}]},
    COMPLETIONS.path: {"model": "support", "prompt": "Hi"},
}
SAMPLES = {CHAT.path: samples.CHAT, COMPLETIONS.path: samples.COMPLETIONS}
SENDING = (FieldAction.PASS, FieldAction.BOUND)


def ask(endpoint: Endpoint, *, policy: FieldPolicy | None = None, **fields: Any) -> Call:
    return parse(endpoint, orjson.dumps(BODIES[endpoint.path] | fields), policy or FieldPolicy())


def refusal(endpoint: Endpoint, **fields: Any) -> FlorinError:
    with pytest.raises(FlorinError) as caught:
        ask(endpoint, **fields)
    assert caught.value.status == 400
    return caught.value


def rows(*actions: FieldAction) -> list[Any]:
    return [
        pytest.param(endpoint, name, id=f"{endpoint.path[4:]}-{name}")
        for endpoint in (CHAT, COMPLETIONS)
        for name, rule in endpoint.fields.items()
        if rule.action in actions
    ]


@pytest.mark.parametrize(("endpoint", "name"), rows(*SENDING))
def test_a_field_is_sent_within_its_bounds_only(endpoint: Endpoint, name: str):
    good, bad = SAMPLES[endpoint.path][name]
    for value in good:
        body = ask(endpoint, **{name: value}).body
        assert body.get(name, False) == value
    for value in bad:
        error = refusal(endpoint, **{name: value})
        assert error.param.partition(".")[0].partition("[")[0] == name, value
        assert error.code in {"invalid_value", "unsupported_parameter"}
        assert len(error.message) < 600
    if name != endpoint.required:
        assert name not in ask(endpoint, **{name: None}).body


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldAction.DROP, FieldAction.REPLACE))
def test_a_field_is_dropped(endpoint: Endpoint, name: str):
    rule = endpoint.fields[name]
    if rule.check is None:
        for value in samples.DROPPED:
            call = ask(endpoint, **{name: value})
            assert name not in call.body
            assert not call.unknown
    else:
        for value in SAMPLES[endpoint.path][name][1]:
            assert refusal(endpoint, **{name: value}).param == name
    sent = orjson.loads(ask(endpoint).payload("fl-1", "salt"))
    assert {k for k in sent if k in ("model", "cache_salt")} == {"model", "cache_salt"}
    assert (sent["model"], sent["cache_salt"]) == ("fl-1", "salt")


@pytest.mark.parametrize(("endpoint", "name"), rows(FieldAction.REFUSE))
def test_a_field_is_refused_with_the_reason(endpoint: Endpoint, name: str):
    rule = endpoint.fields[name]
    for value in [*samples.DROPPED, None, ["text", "audio"], {"name": "f"}, "none", "auto"]:
        if value is None or any(type(v) is type(value) and v == value for v in rule.harmless):
            assert name not in ask(endpoint, **{name: value}).body
        else:
            error = refusal(endpoint, **{name: value})
            assert (error.code, error.param) == ("unsupported_parameter", name)
            assert rule.why in error.message


def test_no_field_of_vllm_is_without_a_rule():
    assert SNAPSHOT["vllm"].startswith("0.32.")
    assert without_rule(SNAPSHOT["fields"]) == []
    assert without_rule(NEXT) == []
    assert without_rule({"chat": ["brand_new"]}) == ["chat: brand_new"]


def test_no_field_of_openais_client_is_without_a_rule():
    theirs = {
        "chat": sorted(ChatParams.__annotations__),
        "completions": sorted(CompletionParams.__annotations__),
    }
    assert without_rule(theirs) == []


# -- nothing else reaches an engine

_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_NAMES = (
    st.sampled_from(sorted({*CHAT.fields, *COMPLETIONS.fields} - {"messages", "prompt", "model"})) | st.text()
)


def sent_or_refused(endpoint: Endpoint, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return orjson.loads(ask(endpoint, **fields).payload("fl-1", "salt"))
    except FlorinError as error:
        if error.status != 400:
            raise
        return {}


@examples(80)
@given(st.sampled_from([CHAT, COMPLETIONS]), st.dictionaries(_NAMES, _VALUES, max_size=4))
def test_whatever_is_asked_only_rows_that_send_are_sent(endpoint: Endpoint, fields: dict[str, Any]):
    sent = sent_or_refused(endpoint, fields)
    ours = {"model": "fl-1", "cache_salt": "salt"}
    if sent.get("stream"):
        ours["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    for name, value in sent.items():
        if name in ours:
            assert value == ours[name]
        else:
            assert endpoint.fields[name].action in SENDING
            assert value is not None


_PART = st.fixed_dictionaries(
    {},
    optional={name: _VALUES | st.sampled_from(["http://10.0.0.1/", "file:///etc/passwd", {"url": "http://a/"}])
              for name in TABLES["parts"]} | {"type": st.sampled_from(sorted(TABLES["part_types"])) | _VALUES},
)  # fmt: skip
_MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "developer", "system"])},
    optional={name: _VALUES for name in TABLES["messages"] if name not in ("role", "content")}
    | {"content": st.lists(_PART, max_size=3) | _VALUES},
)


@examples(50)
@given(st.lists(_MESSAGE, min_size=1, max_size=2))
def test_whatever_a_message_holds_no_url_but_data_is_sent(messages: list[Any]):
    for message in sent_or_refused(CHAT, {"messages": messages}).get("messages", ()):
        assert message.keys() <= {n for n, rule in TABLES["messages"].items() if rule.action in SENDING}
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                assert "uuid" not in part
                assert len(part) == 2
                url = part.get("image_url") or part.get("audio_url") or part.get("video_url")
                assert url is None or url["url"].startswith("data:")
