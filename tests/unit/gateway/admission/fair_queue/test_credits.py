from gateway.admission.fair_queue.credits import ASSUMED, FIRST, EngineCredit, headroom


def scrapes(credit: EngineCredit, seats: int, count: int) -> list[int]:
    """An engine of so many seats that always has as many requests as its credit allows."""
    found = []
    for _ in range(count):
        running = min(seats, credit.value)
        credit.scraped(running, credit.value - running, credit.value)
        found.append(credit.value)
    return found


def test_known_seats_are_the_credit_from_the_start():
    assert EngineCredit(8).value == 9
    assert EngineCredit(256).value == 256 + headroom(256)
    assert scrapes(EngineCredit(8), 8, 50) == [9] * 50


def test_a_large_engine_is_found_within_a_few_scrapes():
    assert FIRST < scrapes(EngineCredit(), 256, 6)[-1] >= 256


def test_a_small_engine_keeps_a_short_queue():
    values = scrapes(EngineCredit(), 8, 50)
    assert values[0] == FIRST, "one scrape may be a moment between two steps"
    assert values[1] == 9
    assert max(values[1:]) <= 8 + 2 * headroom(8)


def test_requests_that_wait_for_the_next_step_lower_nothing():
    credit = EngineCredit(64)
    credit.scraped(0, 30, 30)
    credit.scraped(30, 10, 40)
    credit.scraped(40, 10, 50)
    assert credit.value == 64 + headroom(64)


def test_an_engine_without_memory_gets_less_and_recovers():
    credit = EngineCredit(256)
    scrapes(credit, 60, 3)
    assert 60 < credit.value <= 60 + 2 * headroom(60)
    assert scrapes(credit, 256, 12)[-1] == 256 + headroom(256)


def test_an_engine_that_does_not_work_tells_nothing():
    credit = EngineCredit(64)
    for _ in range(5):
        credit.scraped(0, 40, 40)
    assert credit.value == 64 + headroom(64)


def test_a_credit_that_is_not_used_does_not_grow():
    credit = EngineCredit()
    for _ in range(10):
        credit.scraped(3, 0, 3)
    assert credit.value == FIRST


def test_scrapes_are_asked_for_at_most_so_often():
    credit = EngineCredit()
    assert credit.wants_scrape(10.0)
    assert not credit.wants_scrape(10.05)
    assert credit.wants_scrape(10.11)
    scrapes(credit, 8, 3)
    assert not credit.wants_scrape(10.4)
    assert credit.wants_scrape(10.7)


def test_what_an_engine_runs_is_its_seats_or_what_it_was_seen_to_run():
    credit = EngineCredit(8)
    assert credit.runs == 8
    scrapes(credit, 4, 3)
    assert credit.runs == 4
    unknown = EngineCredit()
    assert unknown.runs == ASSUMED
    scrapes(unknown, 8, 3)
    assert unknown.runs == 8


def test_a_new_registration_counts_at_once():
    credit = EngineCredit()
    credit.registered(100)
    assert credit.value == 100 + headroom(100)
    credit.registered(0)
    assert credit.value == FIRST
