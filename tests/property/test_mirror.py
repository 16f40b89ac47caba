"""The mirror against vLLM's rules, written out as its worker has them: two caches, and a step for each token."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from adapters.placement.mirror import Mirror, Tier
from tests.support.search import examples

NAMES = "abcdefgh"


class Worker:
    """Adapters by number, as in vLLM; lists in order of last use, the most recent last. `random` decides in
    which order a step goes through the adapters of its requests; `removes`: what an unload does."""

    def __init__(self, slots: int, cpu_slots: int, random: Random, *, removes: bool) -> None:
        self.slots, self.cpu_slots, self.random, self.removes = slots, cpu_slots, random, removes
        self.names: dict[int, str] = {}
        self.registered: list[int] = []
        self.active: list[int] = []
        self.listed: dict[str, int] = {}
        self.running: dict[str, int] = {}
        self.count = 0

    def use(self, adapter: int) -> None:
        """`LRUCacheWorkerLoRAManager.add_adapter`."""
        if adapter in self.registered:
            self.registered.remove(adapter)
        elif len(self.registered) == self.cpu_slots:
            oldest = self.registered.pop(0)
            if oldest in self.active:
                self.active.remove(oldest)
        self.registered.append(adapter)
        if adapter in self.active:
            self.active.remove(adapter)
        elif len(self.active) == self.slots:
            self.active.pop(0)
        self.active.append(adapter)

    def step(self) -> None:
        adapters = [*self.running.values()]
        self.random.shuffle(adapters)
        for adapter in adapters:
            self.use(adapter)

    def load(self, name: str) -> None:
        if name not in self.listed:
            self.count += 1
            self.listed[name] = self.count
            self.names[self.count] = name
            self.use(self.count)
        self.step()

    def unload(self, name: str) -> None:
        adapter = self.listed.pop(name, None)
        for memory in (self.registered, self.active) if self.removes else ():
            if adapter in memory:
                memory.remove(adapter)
        self.step()

    def begin(self, name: str) -> None:
        self.running[name] = self.listed[name]
        self.step()

    def end(self, name: str) -> None:
        self.step()
        del self.running[name]
        self.step()

    def tells(self) -> dict[str, bool] | None:
        """What its metrics would tell. None: two copies of one name, which they cannot tell apart."""
        told = {self.names[adapter]: adapter in self.active for adapter in self.registered}
        return told if len(told) == len(self.registered) else None

    def tier(self, name: str) -> Tier:
        adapter = self.listed.get(name)
        if adapter in self.active:
            return Tier.GPU
        return Tier.CPU if adapter in self.registered else Tier.DISK


names = st.sampled_from(NAMES)
actions = st.sampled_from(("load", "request", "begin", "end", "unload", "load", "request", "tell"))


@examples(100)
@given(
    st.integers(1, 4),
    st.integers(0, 4),
    st.lists(st.tuples(actions, names), max_size=60),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_the_mirror_knows_what_the_engine_holds(
    slots: int, spare: int, steps: list[tuple[str, str]], removes: bool, random: Random
):
    worker, mirror = Worker(slots, slots + spare, random, removes=removes), Mirror(slots, slots + spare)

    def begin(name: str) -> None:
        mirror.dispatched(name, [*worker.running])
        worker.begin(name)

    def end(name: str) -> None:
        worker.end(name)
        mirror.finished(name)

    for action, name in steps:
        busy = name in worker.running
        match action:
            case "load" if name in worker.listed or not busy:
                mirror.loaded(name, [*worker.running])
                worker.load(name)
            case "unload":
                mirror.unloaded(name, worker.running, removes=removes)
                worker.unload(name)
            case "begin" | "request" if name in worker.listed and not busy and len(worker.running) < slots:
                begin(name)
                if action == "request":
                    end(name)
            case "end" if busy:
                end(name)
            case "tell" if (resident := worker.tells()) is not None:
                assert mirror.told(resident).wrong == 0
        assert {n: mirror.tier(n) for n in NAMES} == {n: worker.tier(n) for n in NAMES}, mirror
        assert len(mirror._copy) <= len(worker.listed) + slots + spare
        assert (len(mirror._gpu), len(mirror._gpu) + len(mirror._cpu)) == (
            len(worker.active),
            len(worker.registered),
        )


@examples(50)
@given(st.lists(names, min_size=5, max_size=100))
def test_versions_that_come_and_go_leave_nothing_behind(visits: list[str]):
    mirror = Mirror(2, 3)
    for number, visit in enumerate(visits):
        name = f"{visit}{number}"
        mirror.loaded(name)
        mirror.dispatched(name)
        mirror.finished(name)
        mirror.unloaded(name)
        assert mirror.tier(name) is Tier.DISK
    assert (len(mirror._gpu), len(mirror._cpu), len(mirror._copy), mirror._listed) == (2, 1, 3, set())
