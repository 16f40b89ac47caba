"""Engines' error messages, as vLLM 0.32 sent them unless noted, and what clients get."""

from __future__ import annotations

import pytest

from gateway.routing.engine_messages import LONGEST_MESSAGE, LONGEST_REASON, OTHERWISE, reason, refusal

CONTEXT = "context_length_exceeded"
LONG_PROMPT = (
    "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=513)"
)
LONG_TEXT = (
    "This model's maximum context length is 512 tokens. However, your prompt contains 90000 characters (more than 2048 "
    "characters, which is the upper bound for 512 input tokens). Please reduce the length of the input prompt. "
    "(parameter=input_text, value=90000)"
)
LONG_ANSWER = (
    "This model's maximum context length is 512 tokens. However, you requested 600 output tokens and your prompt "
    "contains 7 input tokens, for a total of 607 tokens. (parameter=input_tokens, value=7)"
)
TOO_MANY = (
    "max_tokens=600 cannot be greater than max_model_len=max_total_tokens=512. Please request fewer output tokens. "
    "(parameter=max_tokens, value=600)"
)
OLDER = (  # 0.8
    "'max_tokens' or 'max_completion_tokens' is too large: 600. This model's maximum context length is 512 tokens and "
    "your request has 5 input tokens (600 > 512 - 5)."
)
OLDEST = "The decoder prompt (length 600) is longer than the maximum model length of 512."  # 0.9
REPORTED = (
    "1 validation error:\n  {'type': 'value_error', 'loc': 'body', 'msg': 'Value error, You can only use one kind of "
    "structured outputs constraint but multiple are specified: {\\'json\\': {\\'secret\\': 1}}', 'input': {'messages': "
    "[{'role': 'user', 'content': 'my secret'}]}, 'ctx': {'error': ValueError('…')}}"
)
REPORTED_FIELD = (
    "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.messages.0.content', 'msg': 'Input should be a valid "
    "string', 'input': 5}\n  {'type': 'missing', 'loc': 'body.x', 'msg': 'Field required', 'input': '<dict of 3 items>'}"
)
REPORTED_TUPLE = (
    "[{'type': 'json_invalid', 'loc': ('body', 0), 'msg': 'JSON decode error', 'ctx': {'error': 'secret'}}]"
)
PRINTED = (
    "1 validation error for ChatCompletionRequest\nreasoning_effort\n  Input should be 'low', 'medium' or 'high' "
    "[type=literal_error, input_value='secret', input_type=str]\n    For further information visit "
    "https://errors.pydantic.dev/2.12/v/literal_error"
)
UNION = (
    "8 validation errors for ValidatorIterator\n0.ChatCompletionContentPartTextParam.text\n  Field required [type=missing, "
    "input_value={'type': 'secret'}, input_type=dict]\n    For further information visit "
    "https://errors.pydantic.dev/2.14/v/missing\n0.ChatCompletionContentPartTextParam.type\n  Input should be 'text' …"
)
TOO_MANY_STOPS = (
    "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
    "'input': '<list of 5 items>'}\n  {'type': 'too_long', 'loc': 'body.stop', 'msg': 'List should have at most 4 items "
    "after validation, not 5', 'input': '<list of 5 items>', 'ctx': {'field_type': 'List', 'max_length': 4}}"
)
OTHER_ROLES = (
    "4 validation errors:\n  {'type': 'literal_error', 'loc': 'body.messages.2.ChatCompletionSystemMessageParam.role', "
    "'msg': \"Input should be 'system'\", 'input': 'developer', 'ctx': {'expected': \"'system'\"}}\n  {'type': "
    "'string_type', 'loc': 'body.messages.2.ChatCompletionSystemMessageParam.content', 'msg': 'Input should be a valid "
    "string', 'input': 5}\n  {'type': 'string_type', 'loc': "
    "'body.messages.2.ChatCompletionDeveloperMessageParam.content', 'msg': 'Input should be a valid string', 'input': 5}"
    "\n  {'type': 'iterable_type', 'loc': 'body.messages.2.ChatCompletionDeveloperMessageParam.content', 'msg': 'Input "
    "should be iterable', 'input': 5}"
)
OTHER_TOOL_CALLS = (
    "3 validation errors:\n  {'type': 'missing', 'loc': 'body.0.ChatCompletionMessageCustomToolCallParam.custom', 'msg': "
    "'Field required', 'input': '<dict of 3 items>'}\n  {'type': 'literal_error', 'loc': "
    "'body.0.ChatCompletionMessageCustomToolCallParam.type', 'msg': \"Input should be 'custom'\", 'input': 'function', "
    "'ctx': {'expected': \"'custom'\"}}\n  {'type': 'string_type', 'loc': "
    "'body.0.ChatCompletionMessageFunctionToolCallParam.function', 'msg': 'Input should be a valid string', 'input': "
    "'<dict of 1 items>'}"
)
NO_TOOLS = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
TOOLS_ARE_OFF = (
    "Tool calling is not switched on in this deployment's engine for the model. Leave `tools` out, or ask the operator to "
    "switch it on."
)
NO_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
NO_PARSER = (
    "thinking_token_budget is set but reasoning_config is not configured. Please set --reasoning-parser and/or "
    "--reasoning-config to use thinking_token_budget."
)
QUOTED = (
    "1 validation error:\n  {'type': 'literal_error', 'loc': 'body.reasoning_effort', 'msg': \"Input should be 'none', "
    "'low' or 'max'\", 'input': 'secret', 'ctx': {'expected': \"'none', 'low' or 'max'\"}}"
)
GRAMMAR = (
    'Grammar error: at 1(8): invalid regex "(a" (in regex): regex parse error:\n    (a\n    ^\nerror: unclosed group\n'
    "   1 | start: /(a/\n              ^"
)
MORE = "max_tokens=600 cannot be greater than max_model_len=512. Please request fewer output tokens."
TEMPLATE = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. Refused request with untrusted "
    "chat template."
)

MESSAGES: list[tuple[str, str | None, str, str | None, str]] = [
    (LONG_PROMPT, "input_tokens", "This model's maximum context length is 512 tokens, but the prompt has 513 tokens.",
     None, CONTEXT),
    (LONG_TEXT, "input_text", "This model's maximum context length is 512 tokens, but the prompt has 90000 characters.",
     None, CONTEXT),
    (LONG_ANSWER, "input_tokens", ("This model's maximum context length is 512 tokens, but the prompt has 7 tokens and "
     "600 tokens were requested for the answer."), None, CONTEXT),
    (TOO_MANY, "max_tokens", "`max_tokens` is 600, but this model's maximum context length is 512 tokens.",
     "max_tokens", CONTEXT),
    (OLDER, None, ("This model's maximum context length is 512 tokens, but the prompt has 5 tokens and 600 tokens were "
     "requested for the answer."), None, CONTEXT),
    (OLDEST, None, "This model's maximum context length is 512 tokens, but the prompt has 600 tokens.", None, CONTEXT),
    (REPORTED, "body", "You can only use one kind of structured outputs constraint but multiple are specified.",
     None, "request_refused"),
    (REPORTED_FIELD, "body.messages.0.content", "`messages.0.content`: Input should be a valid string.",
     "messages.0.content", "request_refused"),
    (REPORTED_TUPLE, None, "JSON decode error.", None, "request_refused"),
    (PRINTED, None, "`reasoning_effort`: Input should be 'low', 'medium' or 'high'.", "reasoning_effort",
     "request_refused"),
    (UNION, None, "`text`: Field required.", "text", "request_refused"),
    (TOO_MANY_STOPS, "body.stop", "`stop`: List should have at most 4 items after validation, not 5.", "stop",
     "request_refused"),
    (OTHER_ROLES, "body.messages.2.ChatCompletionDeveloperMessageParam.content",
     "`messages.2.content`: Input should be a valid string.", "messages.2.content", "request_refused"),
    (OTHER_TOOL_CALLS, None, "`function.arguments`: Input should be a valid string.", "function.arguments",
     "request_refused"),
    (NO_TOOLS, None, TOOLS_ARE_OFF, "tools", "feature_disabled"),
    ('tool_choice="required" requires --tool-call-parser to be set', None, TOOLS_ARE_OFF, "tools", "feature_disabled"),
    ('tool_choice=function "secret" requires --tool-call-parser to be set', None, TOOLS_ARE_OFF, "tools",
     "feature_disabled"),
    (NO_TEMPLATE, None, ("The model has no chat template, so it answers no chats: call /v1/completions, or ask the "
     "operator to give its engine a template."), "messages", "feature_disabled"),
    (NO_PARSER, None, ("This deployment's engine does not tell the model's thoughts from its answer. Leave "
     "`thinking_token_budget` out, or ask the operator to switch a reasoning parser on."), "thinking_token_budget",
     "feature_disabled"),
    (QUOTED, "body.reasoning_effort", "`reasoning_effort`: Input should be 'none', 'low' or 'max'.", "reasoning_effort",
     "request_refused"),
    (GRAMMAR, None, ('Grammar error: at 1(8): invalid regex "(a" (in regex): regex parse error: (a ^ error: unclosed group '
     "1 | start: /(a/ ^."), None, "request_refused"),
    (MORE, "max_tokens", "`max_tokens` is 600, but this model's maximum context length is 512 tokens.", "max_tokens",
     CONTEXT),
    ("Token id 1000000 is out of vocabulary", None, "Token id 1000000 is out of vocabulary.", None, "request_refused"),
    ("You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').", None,
     "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').", None,
     "request_refused"),
    (TEMPLATE, None, ("This deployment's engine takes no chat template from requests. Leave `chat_template` out, or ask "
     "the operator to allow it."), "chat_template", "feature_disabled"),
    ("temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)", "temperature",
     "temperature must be in [0, 2], got 2.5.", "temperature", "request_refused"),
    ("n must be at most 8, got 9. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable.", "n",
     "n must be at most 8, got 9.", "n", "request_refused"),
    ("stop_token_ids must contain only integers, got ['my', 'secret'].", None,
     "stop_token_ids must contain only integers.", None, "request_refused"),
    ("top_k must be an integer, got <class 'str'>. Sorry.", None, "top_k must be an integer.", None, "request_refused"),
    ("ValueError: The request is empty.", None, "The request is empty.", None, "request_refused"),
    ("vllm.exceptions.VLLMValidationError: `n` is odd.", None, "`n` is odd.", None, "request_refused"),
    ("Failed to load /home/florin/models/adapter/config.json", "model", "The engine rejected `model`.", "model",
     "request_refused"),
    ("Traceback (most recent call last):\n  in vllm.engine.core", None, OTHERWISE, None, "request_refused"),
    ("UndefinedError: 'dict object' has no attribute 'x'", None, "'dict object' has no attribute 'x'.", None,
     "request_refused"),
    ("Failed to convert the grammar: https://docs.vllm.ai/grammars. It is wrong at line 3.", "structured_outputs",
     "It is wrong at line 3.", "structured_outputs", "request_refused"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "param", "message", "shown", "code"), MESSAGES, ids=[m[0][:40] for m in MESSAGES]
)
def test_a_message_in_words_for_clients(
    text: str, param: str | None, message: str, shown: str | None, code: str
):
    found = refusal({"message": text, "param": param})
    assert (found.message, found.param, found.code) == (message, shown, code)


NEVER = ("pydantic", "vllm", "http", "secret", "/home", "Error:", "<class", "{'", "['", "Traceback", "--")


def test_nothing_of_the_engines_insides_is_left():
    for text, *_ in MESSAGES:
        for wrapped in (text, f"RuntimeError: {text}", f"Bad request. {text}", text.replace("\n", " ")):
            said = refusal({"message": wrapped}).message
            assert not [word for word in NEVER if word in said], said


def test_a_message_that_quotes_another_is_not_taken_for_it():
    found = refusal({"message": f"Unknown part: {NO_TOOLS}"})
    assert (found.code, found.missing) == ("request_refused", "")


def test_the_engines_reason_ends_where_it_may_quote_the_request():
    for text, words in (
        ("Failed to load /home/florin/config.json: secret", "Failed to load /home/florin/config.json"),
        ("Unknown part type: secret", "Unknown part type"),
        ("vllm.exceptions.VLLMValidationError: Token 5 of secret", "Token"),
        ("'secret' is not of type 'object'", ""),
        (REPORTED, ""),
        ("x" * 10**5, "x" * LONGEST_REASON),
        (None, ""),
    ):
        assert reason({"message": text}) == words


@pytest.mark.parametrize("message", [None, 7, [], {"a": 1}, ""])
def test_messages_that_are_no_text(message: object):
    assert refusal({"message": message}).message == refusal({}).message == OTHERWISE


def test_a_message_is_of_bounded_length():
    assert len(refusal({"message": "x" * 10**6}).message) == LONGEST_MESSAGE + 1


@pytest.mark.parametrize("param", ["a b", "x" * 101, "é", "", "body", "{'a'}"])
def test_a_parameter_that_names_no_field_is_left_out(param: str):
    assert refusal({"message": "No.", "param": param}).param is None


@pytest.mark.parametrize("character", ["(", "[", "{", "'", "max_a=1 ", "/a", "A1Error", "'msg': '"])
def test_a_long_message_takes_no_time(character: str):
    refusal({"message": character * (LONGEST_MESSAGE // len(character))})
