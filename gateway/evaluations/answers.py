"""What came back of an evaluation's requests, reduced to what is needed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from gateway.evaluations.cases import Case
from gateway.evaluations.documents import Metric, Plan
from gateway.evaluations.judging import read_verdict
from gateway.evaluations.requests import Place, place_of
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


def read_results(lines: Iterable[bytes]) -> Iterator[tuple[Place, Any, str]]:
    """The bodies of the answers of a batch's output and error lines, and the error's code, if it is one."""
    for line in lines:
        found = orjson.loads(line)
        place, response = place_of(found["custom_id"]), found["response"]
        if response is None:
            yield place, None, found["error"]["code"]
            continue
        body = response["body"]
        if response["status_code"] < 300:
            yield place, body, ""
        else:
            error = body.get("error") if type(body) is dict else None
            code = error.get("code") if type(error) is dict else None
            yield place, None, str(code or f"status_{response['status_code']}")


def scored(lines: Iterable[bytes], cases: Mapping[int, Case], plan: Plan) -> dict[Place, Answer]:
    """The answers, by place. With a judge, without scores: see `judged`."""
    score = _scorer(plan)
    found: dict[Place, Answer] = {}
    for place, body, error in read_results(lines):
        if error:
            found[place] = Answer(None, error=error)
            continue
        case = cases[place[0]]
        text = case.expected if plan.metric is Metric.PERPLEXITY else answer_text(body)
        if text is None:
            found[place] = Answer(None, error="no_text")
        else:
            found[place] = Answer(score(body, text, case), _clipped(text))
    return found


def texts(lines: Iterable[bytes]) -> Iterator[tuple[Place, str]]:
    """The whole texts of answers, for the judge."""
    for place, body, error in read_results(lines):
        text = None if error else answer_text(body)
        if text is not None:
            yield place, text


def judged(answers: Mapping[Place, Answer], lines: Iterable[bytes]) -> dict[Place, Answer]:
    """The answers with the judge's scores."""
    found = dict(answers)
    for place, text in texts(lines):
        if place in found and not found[place].error:
            found[place] = Answer(read_verdict(text), found[place].text)
    return found


def _scorer(plan: Plan) -> Callable[[Any, str, Case], float | None]:
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
