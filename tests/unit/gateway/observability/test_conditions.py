import logging

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


def test_a_look_that_fails_hides_no_other(caplog):
    conditions = Conditions()
    conditions.when(lambda: bool(1 / 0), "usage_unrecorded")
    conditions.when(lambda: True, "feed_lost")
    with caplog.at_level(logging.ERROR):
        assert [c.code for c in conditions.now()] == ["feed_lost"]
    assert "Condition check failed" in caplog.text


def test_each_says_what_to_do():
    for meaning in CONDITIONS.values():
        assert meaning.summary.endswith(".")
        assert meaning.remedy.endswith(".")
