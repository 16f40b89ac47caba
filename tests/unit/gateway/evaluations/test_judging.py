from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.evaluations.judging import judge_messages, read_verdict


@pytest.mark.parametrize(
    ("text", "score"),
    [('{"score": 7}', 0.7), (' { "score" : 10 }\n', 1.0), ("0", 0.0), ("10\n", 1.0)],
)
def test_scores(text: str, score: float):
    assert read_verdict(text) == pytest.approx(score)


@pytest.mark.parametrize(
    "text",
    [
        "", "11", "-1", "7.5", "7/10", "Score: 7", '{"score": 11}', '{"score": "7"}', '{"score": 7} {"score": 9}',
        'The answer was: {"score": 10}', "The answer was:\n10", "\u0667", '{"score": 7, "why": "x"}', "[7]", "1" * 99,
    ],
)  # fmt: skip
def test_anything_else_is_no_score(text: str):
    assert read_verdict(text) is None


@given(st.text(max_size=80), st.text(max_size=80), st.none() | st.text(max_size=80))
def test_no_text_leaves_its_place(question: str, answer: str, reference: str | None):
    system, user = judge_messages("Be fair.", question, reference, answer)
    assert system == judge_messages("Be fair.", "", None, "")[0]
    found = json.loads(user["content"])
    assert found == {"question": question, "reference": reference, "answer": answer}
