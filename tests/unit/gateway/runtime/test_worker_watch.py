from __future__ import annotations

from contextlib import closing

from gateway.observability.shared_values import SharedValues
from gateway.runtime.worker_watch import CRASHES, WITHIN, WorkerWatch, crash_loop


def test_a_crash_loop_is_several_ends_in_little_time():
    with closing(WorkerWatch(2)) as watch:
        worker = SharedValues(watch.values.file)  # as a worker sees it
        assert not crash_loop(worker)
        for number in range(CRASHES):
            watch.publish(float(number))
            assert not crash_loop(worker)
            watch.crashed(-9, float(number))
        watch.publish(float(CRASHES))
        assert crash_loop(worker)
        watch.publish(WITHIN - 0.1)
        assert crash_loop(worker)
        watch.publish(WITHIN + 0.1)
        assert not crash_loop(worker), "the first of them is long ago"
        watch.crashed(1, WITHIN + 0.2)
        watch.publish(WITHIN + 0.3)
        assert crash_loop(worker)
        values = {name.sample: value for name, value in worker.read()}
        assert values["florin_worker_restarts_total"] == CRASHES + 1
        assert worker.deaths() == [(0, -9), (1, -9), (2, -9), (WITHIN + 0.2, 1)]


def test_released_slots_are_reused():
    with closing(WorkerWatch(2)) as watch:
        assert [watch.acquire() for _ in range(4)] == [1, 2, 3, 4], (
            "as many again, where old and new ones overlap"
        )
        watch.release(3)
        watch.release(2)
        assert [watch.acquire(), watch.acquire()] == [2, 3]
