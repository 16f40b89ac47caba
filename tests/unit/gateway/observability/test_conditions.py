import logging
from pathlib import Path

from gateway.observability.conditions import CONDITIONS, Condition, Conditions


def test_the_worst_comes_first():
    conditions = Conditions()
    conditions.when(lambda: True, "feed_lost")
    conditions.when(lambda: True, "usage_unrecorded")
    assert [c.code for c in conditions.now()] == ["usage_unrecorded", "feed_lost"]


def test_a_condition_ends_with_its_cause():
    conditions, wrong = Conditions(), [True]
    conditions.when(lambda: wrong[0], "feed_lost")
    assert conditions.now() == [Condition("feed_lost")]
    wrong[0] = False
    assert conditions.now() == []


def test_failing_check_does_not_hide_others(caplog):
    conditions = Conditions()
    conditions.when(lambda: bool(1 / 0), "usage_unrecorded")
    conditions.when(lambda: True, "feed_lost")
    with caplog.at_level(logging.ERROR):
        assert [c.code for c in conditions.now()] == ["feed_lost"]
    assert "Condition check failed" in caplog.text


def test_every_condition_is_reported_and_has_a_remedy():
    folder = Path(__file__).parents[4] / "gateway"
    text = "".join(path.read_text() for path in folder.rglob("*.py") if path.name != "conditions.py")
    for code, meaning in CONDITIONS.items():
        assert f'"{code}"' in text, f"nothing reports {code}"
        assert meaning.summary.endswith(".")
        assert meaning.remedy.endswith(".")
