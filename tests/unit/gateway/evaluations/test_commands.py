"""florin adapter eval …"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.evaluations import commands as adapter_eval
from gateway.evaluations.schemas import Progress
from tests.support.samples import sample

PATH = "/admin/v1/adapters/acme/support"
RUNNING: dict[str, Any] = {
    "id": "eval_1", "adapter": "acme/support", "version": "v2", "digest": "sha256:00", "against": "acme/support@v1",
    "against_digest": "sha256:11", "metric": "exact", "pattern": None, "json_schema": None, "judge": None,
    "judge_prompt": None, "threshold": None, "no_worse_than": 0.02, "max_tokens": 256, "limit": None,
    "data_sha256": "ab" * 32, "cases": 40, "status": "answering", "passed": None, "created": 1_800_000_000_000_000,
    "ended": None, "by": "bootstrap", "result": None, "examples": [], "batch": "batch_1",
    "progress": sample(Progress, total=80, completed=12, failed=1),
}  # fmt: skip
RESULT: dict[str, Any] = {
    "scored": 40, "left_out": 0, "unanswered": 1, "errors": {"engine_failed": 1}, "level": 0.95, "score": 0.9,
    "interval": {"low": 0.769, "high": 0.96}, "perplexity": None,
    "against": {"score": 1.0, "interval": {"low": 0.912, "high": 1.0}, "unanswered": 0, "errors": {}},
    "difference": -0.1, "difference_interval": {"low": -0.2, "high": -0.025}, "better": 0, "worse": 4,
    "p_value": 0.125, "reasons": ["It may be worse by 0.200 (95% interval), which is more than 0.02."],
}  # fmt: skip
BAD = RUNNING | {
    "status": "completed", "passed": False, "result": RESULT,
    "examples": [{
        "line": 7, "prompt": "Where is\x1b[31m my order?" + " please" * 20, "expected": "On its way.",
        "answer": "", "error": "engine_failed", "score": 0.0, "against_answer": "On its way.", "against_score": 1.0,
    }],
}  # fmt: skip
GOOD = BAD | {"passed": True, "result": RESULT | {"reasons": []}, "examples": []}


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adapter_eval, "_POLL_SECONDS", 0.0)


@pytest.fixture
def held_out(tmp_path: Path) -> str:
    path = tmp_path / "held-out.jsonl"
    path.write_text('{"input": "Where is my order?", "expected": "On its way."}\n')
    return str(path)


def test_one_that_does_not_pass_exits_with_1(fake, held_out: str):
    fake.answer("POST", f"{PATH}/versions/v2/evaluations", RUNNING, 201)
    fake.answer("GET", f"{PATH}/evaluations/eval_1", BAD)
    args = (
        "adapter",
        "eval",
        "acme/support@v2",
        "--data",
        held_out,
        "--against",
        "v1",
        "--no-worse-than",
        "0.02",
    )
    done = fake.florin(*args)
    assert done.exit_code == 1, done.output
    assert "acme/support@v2 does not pass. It may be worse by 0.200" in done.output
    assert "-0.100 (-0.200 to -0.025)" in done.output
    assert "1 (engine_failed 1)" in done.output
    assert "\\x1b[31m my order?" in done.output
    assert "\x1b" not in done.output
    _, _, sent = fake.asked[0]
    assert sent == {"data": Path(held_out).read_text(), "against": "v1", "no_worse_than": 0.02}
    assert json.loads(fake.florin(*args, "--json").stdout)["passed"] is False


def test_it_goes_on_without_the_terminal(fake, held_out: str):
    fake.answer("POST", f"{PATH}/versions/v2/evaluations", RUNNING, 201)
    done = fake.florin("adapter", "eval", "acme/support@v2", "--data", held_out, "--no-wait")
    assert done.exit_code == 0, done.output
    assert "13 of 80" in done.output
    assert "florin adapter evals acme/support eval_1" in done.output


def test_files_are_sent_and_bad_ones_named(fake, held_out: str, tmp_path: Path):
    fake.answer("POST", f"{PATH}/versions/v2/evaluations", RUNNING, 201)
    prompt = tmp_path / "judge.txt"
    prompt.write_text("Is it polite?")
    start = ("adapter", "eval", "acme/support@v2", "--no-wait", "--data")
    judge = ("--metric", "judge", "--judge", "acme/judge", "--judge-prompt", str(prompt), "--limit", "5")
    assert fake.florin(*start, held_out, *judge).exit_code == 0
    _, _, sent = fake.asked[-1]
    assert (sent["judge"], sent["judge_prompt"], sent["limit"]) == ("acme/judge", "Is it polite?", 5)
    assert fake.florin(*start, str(tmp_path / "none")).exit_code == 2
    (tmp_path / "latin").write_bytes(b"\xe9")
    assert fake.florin(*start, str(tmp_path / "latin")).exit_code == 2
    assert fake.florin("adapter", "eval", "acme/support", "--data", held_out).exit_code == 2


def test_the_list_and_one_that_failed(fake):
    failed = RUNNING | {"status": "failed", "passed": False, "result": {"error": "Its batch was cancelled."}}
    fake.answer("GET", f"{PATH}/evaluations?limit=100", {"data": [GOOD, failed, RUNNING]})
    shown = fake.florin("adapter", "evals", "acme/support").output
    assert "passed: exact 0.900" in shown
    assert "answering" in shown
    fake.answer("GET", f"{PATH}/evaluations/eval_1", failed | {"progress": None})
    assert (
        "Its batch was cancelled."
        in fake.florin("adapter", "evals", "acme/support", "eval_1", "--wait").output
    )
    fake.answer("GET", f"{PATH}/evaluations?limit=100", {"data": []})
    assert "No evaluations yet" in fake.florin("adapter", "evals", "acme/support").output


def test_the_policy_and_a_promotion_that_requires_one(fake):
    answer = {"adapter": "acme/support", "require_eval": True, "data_sha256": "ab" * 32}
    fake.answer("PUT", f"{PATH}/evaluation-policy", answer)
    done = fake.florin("adapter", "require-eval", "acme/support", "--of", "ab" * 32)
    assert "only after a passing evaluation of abab" in done.output
    assert fake.asked[-1][2] == {"require_eval": True, "data_sha256": "ab" * 32}
    fake.answer("PUT", f"{PATH}/evaluation-policy", answer | {"require_eval": False, "data_sha256": None})
    assert "without evaluations" in fake.florin("adapter", "require-eval", "acme/support", "--off").output
    refusal = {
        "error": {"message": "It must pass.", "type": "", "param": None, "code": "evaluation_required"}
    }
    fake.answer("PUT", f"{PATH}/live", refusal, 409)
    done = fake.florin("adapter", "promote", "acme/support", "v2", "--require-eval-of", "cd" * 32)
    assert done.exit_code == 1
    assert fake.asked[-1][2] == {"version": "v2", "require_eval_of": "cd" * 32}
