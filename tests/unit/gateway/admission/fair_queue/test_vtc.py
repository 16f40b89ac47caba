import pytest

from gateway.admission.fair_queue.vtc import FORGET_SECONDS, Counters, service


def test_output_counts_twice():
    assert service(10, 5) == 20


def test_a_counter_grows_by_service_over_weight():
    counters = Counters()
    counters.account("a", 2.0)
    counters.charge("a", 100, 0.0)
    assert (counters.account("a").counter, counters.account("a").given) == (50, 100)
    counters.charge("a", -40, 0.0)
    assert (counters.account("a").counter, counters.account("a").given) == (30, 60)


def test_who_comes_back_is_lifted_to_the_lowest_that_waits():
    counters = Counters()
    counters.charge("a", 500, 0.0)
    counters.charge("b", 100, 0.0)
    counters.lift("b", 1.0, lowest=400.0)
    assert counters.account("b").counter == 400
    counters.lift("a", 1.0, lowest=400.0)
    assert counters.account("a").counter == 500, "never lowered"


def test_while_nobody_waits_the_last_that_did_is_the_floor():
    counters = Counters()
    counters.charge("a", 700, 0.0)
    counters.emptied("a")
    counters.lift("b", 1.0, lowest=None)
    assert counters.account("b").counter == 700
    assert counters.account("new").counter == 700


def test_workers_add_what_the_others_served_however_often_they_hear_it():
    counters = Counters()
    counters.charge("a", 10, 0.0)
    counters.hear("w2", "a", 1.0, given=1000, counter=5000, now=1.0)
    assert counters.account("a").counter == 10, "where it began to listen"
    for given in (1100, 1100, 1250):  # one report twice, and one missed
        counters.hear("w2", "a", 1.0, given=given, counter=5000, now=2.0)
    assert counters.account("a").counter == 260
    counters.hear("w2", "a", 1.0, given=30, counter=0, now=3.0)  # restarted under the same name
    assert counters.account("a").counter == 290


def test_a_correction_by_another_worker_lowers_the_counter():
    counters = Counters()
    counters.hear("w2", "a", 1.0, given=1000, counter=1000, now=1.0)
    counters.hear("w2", "a", 1.0, given=900, counter=900, now=2.0)
    assert counters.account("a").counter == 900


def test_a_new_worker_takes_counters_over():
    counters = Counters()
    counters.hear("w2", "a", 2.0, given=10, counter=5000, now=1.0)
    assert counters.account("a").counter == 5000


def test_tenants_without_service_are_forgotten():
    counters = Counters()
    counters.charge("a", 1, 0.0)
    counters.charge("b", 1, 0.0)
    counters.forget(FORGET_SECONDS + 1, keep={"b"})
    assert set(counters.accounts) == {"b"}


def test_recent_service_fades():
    counters = Counters()
    counters.charge("a", 100, 0.0)
    assert counters.account("a").recent_at(60.0) == pytest.approx(50)
    counters.charge("a", 100, 60.0)
    assert counters.account("a").recent_at(60.0) == pytest.approx(150)
