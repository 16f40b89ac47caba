from __future__ import annotations

from collections.abc import Callable

from gateway.admission.fair_queue.waiting import LOAD_SLACK, Fit, Waiter, WaitingList


class Queue(WaitingList):
    def __init__(self) -> None:
        super().__init__(3)
        self.tried: list[Waiter] = []

    def add(
        self, tenant: str, lane: str = "", *, level: int = 1, weight: float = 1.0, returns: bool = False
    ) -> Waiter:
        waiter = Waiter(tenant, weight, level, lane or tenant, 0.0, returns=returns)
        self.push(waiter)
        return waiter

    def charge(self, tenant: str, tokens: float, level: int = 1) -> None:
        self.levels[level].counters.charge(tenant, tokens, 0.0)

    def take(
        self, fit: Callable[[Waiter], Fit] = lambda _: Fit.READY, *, picks: int = 100, tokens: int = 0
    ) -> Waiter | None:
        def tried(waiter: Waiter) -> Fit:
            self.tried.append(waiter)
            return fit(waiter)

        found = self.next(tried, picks=picks)
        if found is not None:
            self.remove(found, served=True)
            self.charge(found.tenant, tokens, found.level)
        return found


def test_tenants_take_turns_whoever_came_first():
    queue = Queue()
    of_a = [queue.add("a") for _ in range(4)]
    of_b = [queue.add("b") for _ in range(2)]
    order = [queue.take(tokens=100) for _ in range(6)]
    assert [w.tenant for w in order[:4]].count("b") == 2
    assert [w for w in order if w in of_a] == of_a, "its own in the order of arrival"
    assert [w for w in order if w in of_b] == of_b
    assert queue.take() is None
    assert len(queue) == 0


def test_weights():
    queue = Queue()
    for _ in range(40):
        queue.add("a")
        queue.add("b", weight=3.0)
    served = [queue.take(tokens=10) for _ in range(40)]
    assert 9 <= sum(w.tenant == "a" for w in served) <= 11


def test_classes_are_strict():
    queue = Queue()
    low, normal, high = queue.add("a", level=2), queue.add("b", level=1), queue.add("c", level=0)
    queue.charge("c", 10**6, 0)
    assert [queue.take() for _ in range(3)] == [high, normal, low]
    queue.add("c", level=0)
    low = queue.add("a", level=2)
    assert queue.take(lambda w: Fit.READY if w.level == 2 else Fit.NO) is low, (
        "what cannot run holds up nobody"
    )


def test_a_lane_that_is_full_holds_up_neither_others_nor_the_tenants_other_lanes():
    queue = Queue()
    queue.add("a", "hot")
    queue.add("a", "hot")
    queue.add("b", "hot")
    cold = queue.add("a", "cold")
    assert queue.take(lambda w: Fit.NO if w.lane == "hot" else Fit.READY) is cold
    assert len([w for w in queue.tried if w.lane == "hot"]) == 1, "tried once for all"


def test_who_had_a_turn_before_goes_first():
    queue = Queue()
    queue.add("a")
    again = queue.add("b", returns=True)
    queue.charge("b", 10**6)
    assert queue.take() is again


def test_a_resident_adapter_goes_before_a_load_within_the_slack():
    queue = Queue()
    load, ready = queue.add("a", "cold"), queue.add("b", "warm")
    fit = lambda w: Fit.READY if w.lane == "warm" else Fit.OPENS  # noqa: E731
    queue.charge("b", LOAD_SLACK - 1)
    assert queue.take(fit) is ready
    queue.add("b", "warm")
    queue.charge("b", 2)
    assert queue.take(fit) is load


def test_of_loads_the_one_that_most_wait_for_goes_first_within_the_slack():
    queue = Queue()
    first = queue.add("a", "one waits")
    most = [queue.add("b", "three wait") for _ in range(3)]
    queue.add("c", "two wait")
    queue.add("c", "two wait")
    queue.charge("b", LOAD_SLACK - 1)
    assert queue.take(lambda _: Fit.OPENS) is most[0]
    queue.charge("b", 2)
    queue.charge("c", LOAD_SLACK + 1)
    assert queue.take(lambda _: Fit.OPENS) is first, "however many wait"


def test_a_corrected_counter_counts():
    queue = Queue()
    queue.add("a")
    b = queue.add("b")
    queue.charge("b", 100)
    queue.charge("a", 50)
    assert queue.levels[1].lowest() == 50
    queue.charge("b", -80)
    queue.corrected(1, "b")
    assert queue.take() is b


def test_so_many_are_tried():
    queue = Queue()
    for n in range(1000):
        queue.add(f"t{n}")
    assert queue.take(lambda _: Fit.NO, picks=16) is None
    assert len(queue.tried) == 16
    assert len(queue) == 1000


def test_giving_up_leaves_nothing():
    queue = Queue()
    waiters = [queue.add(t, lane, level=level) for t in "ab" for lane in "xy" for level in (0, 1, 2)]
    waiters.append(queue.add("a", returns=True))
    for waiter in waiters:
        queue.remove(waiter)
    assert len(queue) == 0
    assert queue.take() is None
    assert not any(level.tenants or level.returning for level in queue.levels)


def test_how_many_go_before_it():
    queue = Queue()
    for _ in range(100):
        queue.add("a")
    mine = queue.add("b")
    assert queue.ahead(mine) == 2, "one of each tenant"
    queue.add("c", level=0)
    assert queue.ahead(mine) == 3
    assert queue.ahead(queue.add("a")) == 101 + 1 + 1
