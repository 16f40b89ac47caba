"""For each field of the Messages API: values that are accepted, and values that are refused. A field without
samples fails a test. `None` for the refused: the field is dropped, whatever it holds."""

from __future__ import annotations

from typing import Any

_SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
_PNG = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
TOOL = {"name": "f", "description": "d", "input_schema": _SCHEMA}

Samples = tuple[list[Any], list[Any] | None]


def block(**fields: Any) -> list[Any]:
    """Messages with one block."""
    assistants = fields.get("type") in ("thinking", "redacted_thinking", "tool_use")
    return [{"role": "assistant" if assistants else "user", "content": [fields]}]


def result(**fields: Any) -> list[Any]:
    return block(type="tool_result", tool_use_id="t1", content=[fields])


def document(**source: Any) -> list[Any]:
    return block(type="document", source=source)


MESSAGES: dict[str, Samples] = {
    "model": (["support"], [5, "", None]),
    "messages": (
        [
            [{"role": "user", "content": "Hi"}],
            [{"role": "user", "content": []}],
            [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}],
            block(type="text", text="Hi", citations=[], cache_control={"type": "ephemeral"}),
            block(type="image", source=_PNG, transformations={}),
            document(type="text", media_type="text/plain", data="text"),
            document(type="content", content=[{"type": "text", "text": "a"}, {"type": "image", "source": _PNG}]),
            block(type="document", source={"type": "text", "data": "x"}, citations={"enabled": False}),
            block(type="search_result", title="t", source="s", content=[{"type": "text", "text": "x"}]),
            block(type="thinking", thinking="hm", signature="s"),
            block(type="redacted_thinking", data="xyz"),
            block(type="tool_use", id="t1", name="f", input={"a": 1}, caller={"type": "direct"}),
            block(type="tool_use", id="t1", name="f"),
            block(type="tool_result", tool_use_id="t1"),
            block(type="tool_result", tool_use_id="t1", content="42", is_error=False),
            result(type="image", source=_PNG),
            result(type="tool_reference", tool_name="f"),
            result(type="search_result", title="t", source="s", content=[]),
        ],
        [
            None, [], "Hi", {}, [5], [{}], [{"role": "user"}], [{"content": "Hi"}],
            [{"role": "tool", "content": "Hi"}], [{"role": ["user"], "content": "Hi"}],
            [{"role": "user", "content": None}], [{"role": "user", "content": 5}],
            [{"role": "user", "content": [5]}],
            block(), block(type=5), block(type="brand_new"), block(type="text"), block(type="text", text=5),
            block(type="image"), block(type="image", source=5), block(type="image", source={}),
            block(type="image", source={**_PNG, "media_type": "image/svg+xml"}),
            block(type="image", source={**_PNG, "media_type": "image/png;base64,AAAA,"}),
            block(type="image", source={**_PNG, "data": 5}),
            block(type="image", source={"type": "url", "url": "http://10.0.0.1/x.png"}),
            block(type="image", source={"type": "url"}), block(type="image", source={"type": "file", "file_id": "f"}),
            document(type="base64", media_type="application/pdf", data="AAAA"),
            document(type="url", url="http://a/"), document(type="text"), document(type="content", content=5),
            document(type="content", content=[{"type": "document"}]), document(), block(type="document", source=5),
            block(type="document", source={"type": "text", "data": "x"}, citations={"enabled": True}),
            block(type="search_result", title="t", source="s"),
            block(type="thinking", thinking=5), block(type="tool_use"), block(type="tool_use", id="a"),
            block(type="tool_use", id=5, name="f"), block(type="tool_use", id="a", name="f", input=[]),
            block(type="tool_result"), block(type="tool_result", tool_use_id=5),
            block(type="tool_result", tool_use_id="t", content=5),
            block(type="tool_result", tool_use_id="t", is_error="yes"),
            result(type="tool_result", tool_use_id="t"), result(type="tool_use", id="a", name="f"),
            result(type="tool_reference"),
            block(type="server_tool_use", id="a", name="web_search", input={}), block(type="container_upload"),
            [{"role": "assistant", "content": [{"type": "image", "source": _PNG}]}],
            [{"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "t"}]}],
            [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}],
        ],
    ),
    "system": (
        ["Be brief.", "", [], [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}]],
        [5, {}, [5], [{"type": "image", "source": _PNG}], [{"type": "text"}]],
    ),
    "max_tokens": ([1, 2**31 - 1], [None, 0, -1, 1.5, "5", True]),
    "stream": ([True, False], [1, "yes"]),
    "temperature": ([0, 0.5, 1], [-0.1, 1.1, "hot", True]),
    "top_p": ([0, 1.0], [-1, 1.1, "x"]),
    "top_k": ([0, 40], [-1, 1.5, True]),
    "stop_sequences": ([[], ["\n\nHuman:"], ["x"] * 16], ["x", [5], [""], ["x"] * 17, ["x" * 257]]),
    "tools": (
        [
            [], [TOOL], [{**TOOL, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}}],
            [{**TOOL, "eager_input_streaming": True, "defer_loading": True, "input_examples": [{}], "allowed_callers": []}],
            [{"name": "f", "input_schema": {"type": "object"}}] * 128,
        ],
        [
            5, {}, [5], [{}], [{"name": 5}], [{**TOOL, "type": 5}], [{**TOOL, "input_schema": 5}],
            [{**TOOL, "description": 5}], [{**TOOL, "name": "x" * 257}], [TOOL] * 129,
            [{"type": "web_search_20250305", "name": "web_search"}], [{"type": "bash_20250124", "name": "bash"}],
            [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"}],
            [{"type": "computer_20250124", "name": "computer", "display_width_px": 1, "display_height_px": 1}],
            [{**TOOL, "strict": True, "input_schema": {"type": "object", "properties": {"a": {"$ref": "http://a/"}}}}],
        ],
    ),
    "tool_choice": (
        [{"type": "auto"}, {"type": "any"}, {"type": "none"}, {"type": "tool", "name": "f", "disable_parallel_tool_use": True}],
        ["auto", {}, {"type": "required"}, {"type": "tool"}, {"type": "auto", "disable_parallel_tool_use": 1}],
    ),
    "thinking": (
        [{"type": "enabled", "budget_tokens": 1024}, {"type": "disabled"}, {"type": "adaptive", "display": "omitted"}, {}],
        ["on", {"type": "on"}, 5],
    ),
    "output_config": (
        [{"effort": "low"}, {"effort": "max"}, {}, {"format": {"type": "json_schema", "schema": _SCHEMA}}],
        [
            5, {"effort": "huge"}, {"format": 5}, {"format": {"type": "text"}}, {"format": {"type": "json_schema"}},
            {"format": {"type": "json_schema", "schema": 5}},
        ],
    ),
    "metadata": ([{"user_id": "u"}, {"user_id": None}, {"tag": "t"}, {}], ["u", {"user_id": 5}]),
    "mcp_servers": ([[], None], [[{"type": "url", "url": "http://a/", "name": "a"}], {}]),
    "container": ([None], ["c", {}]),
    "inference_geo": ([None], ["eu"]),
    "cache_control": ([{"type": "ephemeral"}], None),
    "context_management": ([{"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}], None),
    "diagnostics": ([{}], None),
    "speed": (["fast"], None),
    "service_tier": (["auto", "standard_only"], None),
    "user_profile_id": (["x"], None),
    "workspace_id": (["x"], None),
    "fallbacks": ([[]], None),
}  # fmt: skip
