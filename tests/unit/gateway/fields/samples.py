"""For each field: values that are sent, and values that are not. A field without samples fails a test."""

from __future__ import annotations

from typing import Any

_SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _SCHEMA}}
_SWITCH = ([True], [0, 1, 0.0, "", "yes", "false", [], [True], {}])
_NO_OBJECT: list[Any] = ["", "x", 0, 1, True, False, [], [{}]]
_COUNT = ([1, 2**31 - 1], [-2, 1.5, "1", True, 2**31])

Samples = tuple[list[Any], list[Any]]

SHARED: dict[str, Samples] = {
    "add_special_tokens": _SWITCH,
    "ignore_eos": _SWITCH,
    "include_stop_str_in_output": _SWITCH,
    "return_token_ids": _SWITCH,
    "return_tokens_as_token_ids": _SWITCH,
    "skip_special_tokens": _SWITCH,
    "spaces_between_special_tokens": _SWITCH,
    "stream": ([True, False], [1, "yes"]),
    "truncation_side": (["left", "right"], ["up", 1]),
    "allowed_token_ids": ([[0, 5], [7] * 4096], [5, [-1], ["1"], [True], [2**31], [1] * 4097]),
    "bad_words": ([["a"], ["a"] * 64], ["a", [""], [1], ["a" * 257], ["a"] * 65]),
    "frequency_penalty": ([-2, 0.5, 2], [-2.1, 2.1, "1", True, "NaN", "Infinity"]),
    "presence_penalty": ([-2, 0.5, 2], [-2.1, 2.1, "1", True]),
    "repetition_penalty": ([0.01, 1, 100], [0, -1, 1e-30, 101, 1e308, "1"]),
    "temperature": ([0, 0.7, 2], [-0.1, 2.1, 1e308, "hot", True, "nan"]),
    "top_p": ([0, 0.5, 1], [-0.1, 1.1, "1"]),
    "min_p": ([0, 1], [-0.1, 1.1, True]),
    "top_k": ([-1, 0, 50], [-2, 1.5, 2**31, "5"]),
    "seed": ([-(2**63), 0, 2**63 - 1], [1.5, "1", True]),
    "n": ([1, 16], [0, 17, 1.5, True]),
    "logit_bias": (
        [{}, {"5": 100, "7": -0.5}, {str(i): 1 for i in range(1024)}],
        [[], {"a": 1}, {"-1": 1}, {"5": 101}, {"5": "1"}, {"5": True}, {"٣": 1}, {"1" * 11: 1},
         {str(i): 1 for i in range(1025)}],
    ),
    "stop": (["a", ["a"] * 16, []], ["", [""], 5, [1], "a" * 257, ["a"] * 17]),
    "stop_token_ids": ([[], [1] * 128], [[1] * 129, ["1"], [-1], 1]),
    "min_tokens": ([0, 5], [-1, "1", 2**31]),
    "truncate_prompt_tokens": _COUNT,
    "thinking_token_budget": _COUNT,
    "repetition_detection": (
        [{"max_pattern_size": 64, "min_pattern_size": 1, "min_count": 3}],
        [*_NO_OBJECT, {"max_pattern_size": 65}, {"min_count": 10**9}, {"min_pattern_size": -1}],
    ),
    "response_format": (
        [{"type": "text"}, {"type": "json_object"},
         {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}],
        [*_NO_OBJECT, {"type": "grammar"}, {"type": "structural_tag", "format": {"type": "any_text"}},
         {"type": "structural_tag", "structures": [], "triggers": []},
         {"type": "text", "format": {}}, {"type": "text", "structures": []}, {"type": "text", "triggers": []},
         {"type": "json_schema", "json_schema": {"schema": 5}},
         {"type": "json_schema", "json_schema": {"schema": {"enum": list(range(4001))}}}],
    ),
    "structured_outputs": (
        [{"json": _SCHEMA}, {"regex": "a+"}, {"choice": ["a", "b"]}, {"json_object": True},
         {"json": {}, "disable_any_whitespace": True, "disable_additional_properties": True}],
        [*_NO_OBJECT, {"json": "no json"}, {"json": 5}, {"regex": 5}, {"regex": "a?" * 9}, {"choice": []}, {"choice": [1]},
         {"choice": ["a"] * 1001}, {"choice": ["a" * 65_537]}, {"grammar": "root ::= 'a'"},
         {"structural_tag": "{}"}, {"whitespace_pattern": " *"}],
    ),
    "stream_options": ([], [*_NO_OBJECT, {"include_usage": 1}, {"continuous_usage_stats": "yes"}]),
    "model": ([], [7, ["a"], ""]),
    "user": ([], [7]),
    "safety_identifier": ([], [7]),
    "best_of": ([], [0, 17, "2"]),
    "prompt_logprobs": ([0, 20], [-1, 21, True, False, "5", "", []]),
}  # fmt: skip

CHAT: dict[str, Samples] = {
    **SHARED,
    "echo": ([True], [0, 1, "false", []]),
    "chat_template": ([], ["{{ messages }}", 5]),
    "add_generation_prompt": _SWITCH,
    "continue_final_message": _SWITCH,
    "include_reasoning": _SWITCH,
    "logprobs": _SWITCH,
    "parallel_tool_calls": _SWITCH,
    "return_prompt_text": _SWITCH,
    "chat_template_kwargs": (
        [{}, {"enable_thinking": False, "budget": 32_000, "names": ["a", 1, None]}],
        [*_NO_OBJECT, {"max_length": 5}, {"padding": "max_length"}, {"chat_template": "{{ 1 }}"}, {"tokenize": True},
         {"_messages_citations": 1}, {"a": 1_000_001}, {"a": 1e300}, {"a": "x" * 4097}, {"a": [[1]]}, {"a": {}},
         {"a": [1] * 33}, {"": 1}, {"a b": 1}, {f"a{i}": 1 for i in range(33)}],
    ),
    "documents": ([[], [{"title": "a", "text": "b"}]], [{}, ["a"], [{"a": 1}], [{}] * 1025]),
    "max_completion_tokens": ([1, 2**31 - 1], [0, -1, 2**31, "1", 1.5]),
    "max_tokens": ([1], [0, -1, 2**40, "10"]),
    "messages": (
        [[{"role": "user", "content": "Hi"}]],
        [[], "Hi", [{}], ["Hi"], [{"role": 1}], [{"role": "user", "content": 5}], {}],
    ),
    "reasoning_effort": (["low", "none"], ["x" * 33, 1]),
    "tool_choice": (
        ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}],
        ["all", 5, {"type": "allowed_tools"}, {"type": "function", "function": 5}],
    ),
    "tools": (
        [[], [_TOOL], [_TOOL] * 128],
        [{}, [_TOOL] * 129, ["f"], [{"type": "web_search"}], [{"type": "function", "function": "f"}],
         [{"type": "function", "function": {"name": "f", "parameters": {"enum": list(range(40_000))}}}]],
    ),
    "top_logprobs": ([0, 20], [-1, 21, 1.5, True]),
}  # fmt: skip

COMPLETIONS: dict[str, Samples] = {
    **SHARED,
    "echo": ([True], [0, 1, "false", []]),
    "suffix": (["a"], [1]),
    "logprobs": ([0, 20], [-1, 21, True, "5"]),
    "max_tokens": ([0, 16], [-1, 2**31, "1"]),
    "prompt": (
        ["Hi", ["a"], [1, 2], [[1], [2]]],
        [None, [], [[]], 5, {}, ["a", 5], [["a"]], [[1], "a"], [1.5], [[1.5]]],
    ),
}

DROPPED: list[Any] = [0, 1, -1, True, False, "", "x", [], [1], {}, {"a": {"b": [1]}}, 1e300]
"""For fields that are dropped unread."""
