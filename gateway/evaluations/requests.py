"""The lines of an evaluation's batches. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from gateway.batches.lines import METHOD
from gateway.evaluations.cases import Case
from gateway.evaluations.documents import EvaluationPlan, Metric
from gateway.evaluations.judging import MAX_TOKENS, judge_messages

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
CANDIDATE: Final = "candidate"
AGAINST: Final = "against"
TAG: Final = "evaluation"
"""Label of these requests in reports by tag: evaluations are billed, and can be told apart."""
MOST_JUDGED: Final = 8000
"""Characters of an answer that a judge sees."""

AnswerKey = tuple[int, str]
"""A case's line in the data, and CANDIDATE or AGAINST."""


def endpoint_of(cases: Sequence[Case]) -> str:
    return CHAT if cases[0].chat else COMPLETIONS


def answer_lines(
    cases: Iterable[Case], models: Iterable[tuple[str, str]], plan: EvaluationPlan
) -> Iterator[bytes]:
    """`models`: CANDIDATE or AGAINST → what it is called. A case's requests follow each other, so that both
    models are asked under the same load."""
    targets = list(models)
    for case in cases:
        for which, model in targets:
            body = _scored(case) if plan.metric is Metric.PERPLEXITY else _asked(case, plan)
            yield _line((case.line, which), CHAT if case.chat else COMPLETIONS, model, body)


def judge_line(key: AnswerKey, case: Case, answer: str, plan: EvaluationPlan) -> bytes:
    messages = judge_messages(plan.judge_prompt, case.question, case.expected, answer[:MOST_JUDGED])
    return _line(key, CHAT, plan.judge, {"messages": messages, "max_tokens": MAX_TOKENS})


def answer_key(custom_id: str) -> AnswerKey:
    line, _, which = custom_id.partition("/")
    return int(line), which


def _asked(case: Case, plan: EvaluationPlan) -> dict[str, Any]:
    return {**case.request, "max_tokens": plan.max_tokens}


def _scored(case: Case) -> dict[str, Any]:
    """Nothing is to be generated, but engines generate at least one token."""
    prompt = f"{case.request['prompt']}{case.expected}"
    return {"prompt": prompt, "max_tokens": 1, "echo": True, "logprobs": 1}


def _line(key: AnswerKey, endpoint: str, model: str, body: dict[str, Any]) -> bytes:
    sent = {**body, "model": model, "temperature": 0, "metadata": {"tag": TAG}}
    line = {"custom_id": f"{key[0]}/{key[1]}", "method": METHOD, "url": endpoint, "body": sent}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)
