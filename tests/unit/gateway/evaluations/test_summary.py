from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.evaluations.answers import Answer, judged, scored
from gateway.evaluations.cases import Case
from gateway.evaluations.documents import EvaluationPlan, Metric
from gateway.evaluations.requests import AGAINST, CANDIDATE, answer_lines, judge_line
from gateway.evaluations.summary import summarize

EXACT = EvaluationPlan(Metric.EXACT)


def cases(count: int) -> list[Case]:
    return [Case(n, {"messages": [{"role": "user", "content": f"q{n}"}]}, "x") for n in range(1, count + 1)]


def found(
    own: list[Answer | float | None], other: list[Answer | float | None] | None = None
) -> dict[Any, Answer]:
    made = {}
    for which, values in ((CANDIDATE, own), (AGAINST, other or [])):
        for line, value in enumerate(values, 1):
            made[line, which] = value if isinstance(value, Answer) else Answer(value, f"{which} {line}")
    return made


NOTHING = Answer(None, error="engine_failed")


def test_no_answer_is_a_wrong_answer():
    plan = EvaluationPlan(Metric.EXACT, threshold=0.9)
    summary, passed = summarize(plan, cases(4), found([1, 1, 1, NOTHING]), compared=False)
    assert (summary["score"], summary["scored"], summary["unanswered"], passed) == (0.75, 4, 1, False)
    assert summary["errors"] == {"engine_failed": 1}
    assert summary["examples"][0]["error"] == "engine_failed"
    assert summarize(plan, cases(4), {}, compared=False)[0]["score"] == 0.0


def test_silence_of_the_other_is_nobody_s_merit():
    plan = EvaluationPlan(Metric.EXACT, no_worse_than=0.1)
    summary, passed = summarize(plan, cases(4), found([1, 0, 1, 1], [NOTHING, NOTHING, 1, 1]), compared=True)
    assert (summary["scored"], summary["left_out"], summary["difference"]) == (2, 2, 0.0)
    assert passed is False  # two of four are too many to leave out
    many = found([1.0] * 40, [NOTHING, *[1.0] * 39])
    assert summarize(plan, cases(40), many, compared=True)[1] is True


def test_what_is_to_be_passed():
    own, other = [1.0] * 90 + [0.0] * 10, [1.0] * 95 + [0.0] * 5
    both = found(own, other)

    def passes(**plan: Any) -> bool | None:
        return summarize(EvaluationPlan(Metric.EXACT, **plan), cases(100), both, compared=True)[1]

    assert passes() is None
    assert passes(threshold=0.9) is True
    assert passes(threshold=0.91) is False
    assert passes(no_worse_than=0.02) is False
    assert passes(no_worse_than=0.2) is True
    assert passes(no_worse_than=0.2, threshold=0.95) is False
    summary, _ = summarize(EXACT, cases(100), both, compared=True)
    assert (summary["better"], summary["worse"], summary["p_value"]) == (0, 5, pytest.approx(0.0625))
    assert summary["difference_interval"]["low"] < -0.05 < summary["difference_interval"]["high"]
    assert [e["line"] for e in summary["examples"]] == [91, 92, 93, 94, 95]


def test_perplexity_is_better_when_lower():
    plan = EvaluationPlan(Metric.PERPLEXITY, threshold=3.0, no_worse_than=0.05)
    summary, passed = summarize(plan, cases(3), found([-1.0] * 3, [-1.01] * 3), compared=True)
    assert (summary["perplexity"], passed) == (pytest.approx(2.71828, abs=1e-4), True)
    summary, passed = summarize(plan, cases(3), found([-1.2] * 3, [-1.0] * 3), compared=True)
    assert (len(summary["reasons"]), passed) == (2, False)
    summary, passed = summarize(plan, cases(2), found([NOTHING, -1.0], [-1.0, -1.0]), compared=True)
    assert (summary["scored"], passed) == (1, False)  # there is no worst likelihood to score it with


def test_nothing_scored_passes_nothing():
    plan = EvaluationPlan(Metric.JUDGE, threshold=0.0)
    summary, passed = summarize(plan, cases(2), found([None, None]), compared=False)
    assert (summary["score"], summary["reasons"], passed) == (None, ["No case has a score."], False)


def line(place: str, body: Any, status: int = 200) -> bytes:
    return json.dumps(
        {"custom_id": place, "response": {"status_code": status, "body": body}, "error": None}
    ).encode()


def said(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


def test_answers_are_read_from_a_batch_s_files():
    known = {case.line: case for case in cases(3)}
    error = {"error": {"code": "context_length"}}
    expired = {"custom_id": "3/candidate", "response": None, "error": {"code": "batch_expired"}}
    lines = [
        line("1/candidate", said("x")),
        line("1/against", said("y" * 500)),
        line("2/candidate", error, 400),
        line("2/against", "rubbish", 502),
        json.dumps(expired).encode(),
    ]
    read = scored(lines, known, EXACT)
    assert read[1, CANDIDATE] == Answer(1.0, "x")
    assert (read[1, AGAINST].score, len(read[1, AGAINST].text)) == (0.0, 401)
    codes = [read[place].error for place in ((2, CANDIDATE), (2, AGAINST), (3, CANDIDATE))]
    assert codes == ["context_length", "status_502", "batch_expired"]


def test_a_judge_scores_what_was_answered_only():
    answers = found([None, NOTHING])
    lines = [line("1/candidate", said("8")), line("2/candidate", said("9")), line("7/candidate", said("9"))]
    assert judged(answers, lines) == {(1, CANDIDATE): Answer(0.8, "candidate 1"), (2, CANDIDATE): NOTHING}


def test_the_requests():
    plan = EvaluationPlan(Metric.EXACT, max_tokens=9)
    asked = [
        json.loads(raw) for raw in answer_lines(cases(2), [(CANDIDATE, "a/b@v2"), (AGAINST, "base")], plan)
    ]
    assert [a["custom_id"] for a in asked] == ["1/candidate", "1/against", "2/candidate", "2/against"]
    assert asked[1]["body"] == {
        "messages": [{"role": "user", "content": "q1"}], "max_tokens": 9, "model": "base", "temperature": 0,
        "metadata": {"tag": "evaluation"},
    }  # fmt: skip
    prompt = Case(1, {"prompt": "1+1="}, "2")
    [scoring] = [
        json.loads(r) for r in answer_lines([prompt], [(CANDIDATE, "m")], EvaluationPlan(Metric.PERPLEXITY))
    ]
    body = scoring["body"]
    assert (scoring["url"], body["prompt"], body["echo"], body["max_tokens"]) == (
        "/v1/completions",
        "1+1=2",
        True,
        1,
    )
    judge = json.loads(
        judge_line(
            (1, AGAINST), prompt, "z" * 9000, EvaluationPlan(Metric.JUDGE, judge="a/j@v1", judge_prompt="!")
        )
    )
    assert (judge["custom_id"], judge["body"]["model"]) == ("1/against", "a/j@v1")
    assert len(json.loads(judge["body"]["messages"][1]["content"])["answer"]) == 8000
