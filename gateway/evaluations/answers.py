"""The answers to an evaluation's requests, reduced to what is needed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.evaluations.cases import Case
from gateway.evaluations.documents import EvaluationPlan, Metric
from gateway.evaluations.judging import read_verdict
from gateway.evaluations.requests import AnswerKey, answer_key
from gateway.evaluations.scoring import answer_text, check_of, log_likelihood

MOST_TEXT: Final = 400
"""Characters kept of an answer, for examples."""


@dataclass(frozen=True, slots=True)
class Answer:
    score: float | None
    """None: it has none, or none yet."""
    text: str = ""
    """Its beginning."""
    error: str = ""
    """Why there is no answer; empty: there is one."""


def read_results(lines: Iterable[bytes]) -> Iterator[tuple[AnswerKey, Any, str]]:
    """The bodies of the answers of a batch's output and error lines, and the error's code, if it is one."""
    for line in lines:
        entry = orjson.loads(line)
        key, response = answer_key(entry["custom_id"]), entry["response"]
        if response is None:
            yield key, None, entry["error"]["code"]
            continue
        body = response["body"]
        if response["status_code"] < 300:
            yield key, body, ""
        else:
            error = body.get("error") if type(body) is dict else None
            code = error.get("code") if type(error) is dict else None
            yield key, None, str(code or f"status_{response['status_code']}")


def scored(
    lines: Iterable[bytes], cases: Mapping[int, Case], plan: EvaluationPlan
) -> dict[AnswerKey, Answer]:
    """The answers, by key. With a judge, without scores: see `judged`."""
    score = _scorer(plan)
    answers: dict[AnswerKey, Answer] = {}
    for key, body, error in read_results(lines):
        if error:
            answers[key] = Answer(None, error=error)
            continue
        case = cases[key[0]]
        text = case.expected if plan.metric is Metric.PERPLEXITY else answer_text(body)
        if text is None:
            answers[key] = Answer(None, error="no_text")
        else:
            answers[key] = Answer(score(body, text, case), _clipped(text))
    return answers


def texts(lines: Iterable[bytes]) -> Iterator[tuple[AnswerKey, str]]:
    """The whole texts of answers, for the judge."""
    for key, body, error in read_results(lines):
        text = None if error else answer_text(body)
        if text is not None:
            yield key, text


def judged(answers: Mapping[AnswerKey, Answer], lines: Iterable[bytes]) -> dict[AnswerKey, Answer]:
    """The answers with the judge's scores."""
    scored_answers = dict(answers)
    for key, text in texts(lines):
        if key in scored_answers and not scored_answers[key].error:
            scored_answers[key] = Answer(read_verdict(text), scored_answers[key].text)
    return scored_answers


def _scorer(plan: EvaluationPlan) -> Callable[[Any, str, Case], float | None]:
    check = check_of(plan)

    def score(body: Any, text: str, case: Case) -> float | None:
        if check is not None:
            return check(text, case.expected)
        if plan.metric is Metric.JUDGE:
            return None  # not yet
        known = log_likelihood(body, text)
        return None if known is None else known[0] / known[1]

    return score


def _clipped(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"
