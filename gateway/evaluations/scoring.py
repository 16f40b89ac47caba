"""Scores single answers. Pure.

Patterns and schemas are strangers' programs. Regular expressions run on Rust's `regex`, through
jsonschema-rs, whose time is linear in the text, whatever the expression; what such an engine cannot do
(look-around, back-references) is refused. Schemas fetch nothing, and their work is bounded (`schemas`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import jsonschema_rs
import orjson

from gateway.evaluations.documents import EvaluationPlan, Metric
from gateway.evaluations.schema_bounds import BadSchemaError, size_of

MOST_PATTERN: Final = 1000
"""Characters."""
MOST_SCHEMA: Final = 64 * 1024
"""Bytes."""
_REGEX_BYTES: Final = 2 * 1024 * 1024
"""Limit on all compiled expressions of a plan together: compiling takes 8 ms for a megabyte."""

Check = Callable[[str, str | None], float]
"""Score of an answer, given what was expected."""


class BadPlanError(Exception):
    """The message says what must change."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def check_of(plan: EvaluationPlan) -> Check | None:
    """None: the metric does not look at the answer's text alone. Raises BadPlanError."""
    if plan.metric is Metric.EXACT:
        return exact
    if plan.metric is Metric.REGEX:
        return regex(plan.pattern)
    if plan.metric is Metric.JSON_SCHEMA:
        return json_schema(plan.json_schema)
    return None


def exact(answer: str, expected: str | None) -> float:
    """Around both, white space does not count."""
    return float(expected is not None and answer.strip() == expected.strip())


def regex(pattern: str) -> Check:
    """Whether the pattern is found anywhere in the answer. Raises BadPlanError."""
    if not 0 < len(pattern) <= MOST_PATTERN:
        raise BadPlanError("pattern", f"`pattern` must have 1 to {MOST_PATTERN:,} characters.")
    try:
        validator = _validator({"pattern": pattern}, expressions=1)
    except ValueError:
        raise BadPlanError(
            "pattern",
            "`pattern` is not a regular expression of an engine that is linear in time: it may be wrong, too "
            "large, or have look-around or back-references.",
        ) from None
    return lambda answer, _: float(validator.is_valid(answer))


def json_schema(text: str) -> Check:
    """Whether the answer is JSON that the schema accepts. Raises BadPlanError."""
    if len(text.encode()) > MOST_SCHEMA:
        raise BadPlanError("json_schema", f"`json_schema` must have at most {MOST_SCHEMA:,} bytes.")
    try:
        schema = orjson.loads(text)
        if type(schema) not in (dict, bool):
            raise BadPlanError("json_schema", "`json_schema` must be a JSON Schema: an object.")
        validator = _validator(schema, expressions=size_of(schema).expressions)
    except BadSchemaError as error:
        raise BadPlanError("json_schema", f"`json_schema` cannot be used: {error}.") from None
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BadPlanError("json_schema", f"`json_schema` cannot be used: {reason[:300]}") from None

    def check(answer: str, _: str | None) -> float:
        try:
            parsed = orjson.loads(answer)
        except orjson.JSONDecodeError:
            return 0.0
        return float(validator.is_valid(parsed))

    return check


def _validator(schema: Any, *, expressions: int) -> jsonschema_rs.Validator:
    """Raises ValueError, ReferencingError."""
    options = jsonschema_rs.RegexOptions(size_limit=_REGEX_BYTES // max(1, expressions))
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=options)


def answer_text(body: Any) -> str | None:
    """The text of a chat's or completion's answer; None: it has none, as when tools are called."""
    try:
        choice = body["choices"][0]
        text = choice["message"]["content"] if "message" in choice else choice["text"]
    except (KeyError, IndexError, TypeError):
        return None
    return text if type(text) is str else None


def log_likelihood(body: Any, completion: str) -> tuple[float, int] | None:
    """Sum of the natural logarithms of the probabilities of the completion's tokens, and their number, from
    the answer to a request with `echo` and `logprobs` for prompt and completion. None: the answer does not
    tell.

    The completion's tokens are counted from the end, because what an engine puts before a prompt (the token
    that begins a text) has no characters in it. A token that reaches back into the prompt counts whole.
    """
    try:
        known = body["choices"][0]["logprobs"]
        tokens, scores = known["tokens"], known["token_logprobs"]
        end = len(tokens) - body["usage"]["completion_tokens"]
        left, total, count = len(completion), 0.0, 0
        while left > 0:
            end -= 1
            if end < 0:
                return None
            score = scores[end]
            if type(score) not in (float, int) or not math.isfinite(score):
                return None
            left -= len(tokens[end])
            total, count = total + score, count + 1
    except (KeyError, IndexError, TypeError):
        return None
    return (total, count) if count else None
