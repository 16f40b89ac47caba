"""What an engine's GPU slots and CPU cache hold, as far as can be known from outside.

vLLM keeps `--max-loras` adapters in GPU slots and `--max-cpu-loras`, these included, in CPU memory. An
explicit load and each step of a running request use an adapter: a use reads it from disk if it is not in CPU
memory, copies it to a GPU slot if it is in none, and makes it the most recently used in both. Each tier then
evicts what was used longest ago (`LRUCacheWorkerLoRAManager`). So both tiers are the head of one list, in
order of last use. Three consequences:

- A load when requests of other adapters fill the slots takes a slot only until the next step.
- An unload only deletes the name. The copy keeps its place until it is evicted, and a later load of that name
  makes a second copy.
- An adapter that is listed is not necessarily in memory: its next request may read it from disk.

`tests/engine/test_mirror.py` compares this with a real engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from enum import StrEnum


class Tier(StrEnum):
    GPU = "gpu"
    """Costs nothing."""
    CPU = "cpu"
    """In CPU memory; is copied to a GPU slot."""
    DISK = "disk"
    """Is read from disk, while every request on the engine waits."""


class Mirror:
    """One engine. Exact if every load, unload, request and restart is reported in order; adapters whose last
    requests end in the same step are evicted in an order that only the engine knows.

    Memory is proportional to the names that the engine lists and to `cpu_slots`. Each call takes constant
    time, besides the names in `running`: the adapters with requests in flight, of which vLLM runs at most
    `slots` at a time.
    """

    def __init__(self, slots: int, cpu_slots: int) -> None:
        """`slots`: `--max-loras`; `cpu_slots`: `--max-cpu-loras`, at least `slots`."""
        self._slots = slots
        self._cpu_only = max(0, cpu_slots - slots)
        self._next = 0
        # Mutable: the copies in each tier, by number, with the names that they were loaded under, the least
        # recently used first. What is in `_gpu` is in CPU memory, too.
        self._gpu: OrderedDict[int, str] = OrderedDict()
        self._cpu: OrderedDict[int, str] = OrderedDict()
        self._listed: set[str] = set()
        self._copy: dict[str, int] = {}
        """The last copy of each name that is listed or still in memory."""

    def __repr__(self) -> str:
        return f"<Mirror gpu={[*self._gpu.values()]} cpu={[*self._cpu.values()]}>"

    def tier(self, name: str) -> Tier:
        """Where a request for `name` would find it. DISK for a name that must be loaded first."""
        copy = self._copy.get(name)
        if name not in self._listed or copy is None:
            return Tier.DISK
        return Tier.GPU if copy in self._gpu else Tier.CPU if copy in self._cpu else Tier.DISK

    def evicted(self, name: str) -> bool:
        """Whether the engine lists the name but has to read its weights from disk again. False for a name
        that was loaded before this mirror began."""
        return name in self._listed and self.tier(name) is Tier.DISK

    def loaded(self, name: str, running: Iterable[str] = ()) -> None:
        """The engine accepted a load; it refuses one of a listed name."""
        if name not in self._listed:
            self._add(name)
            self._touch(name)
            for other in running:
                self._touch(other)

    def dispatched(self, name: str, running: Iterable[str] = ()) -> None:
        """The engine runs a request for `name`, beside requests for `running`."""
        if name not in self._listed:
            self._add(name)
        for other in running:
            self._touch(other)
        self._touch(name)

    def finished(self, name: str) -> None:
        """A request for `name` has ended, so the engine used it until now."""
        self._touch(name)

    def unloaded(self, name: str) -> None:
        self._listed.discard(name)
        self._drop(name)

    def restarted(self) -> None:
        for mapping in (self._gpu, self._cpu, self._copy):
            mapping.clear()
        self._listed.clear()

    def _add(self, name: str) -> None:
        self._next += 1
        self._copy[name] = self._next
        self._listed.add(name)

    def _touch(self, name: str) -> None:
        copy = self._copy.get(name)
        if copy is None:
            return
        self._cpu.pop(copy, None)
        self._gpu[copy] = name
        self._gpu.move_to_end(copy)
        if len(self._gpu) > self._slots:
            oldest, its_name = self._gpu.popitem(last=False)
            self._cpu[oldest] = its_name
        if len(self._cpu) > self._cpu_only:
            _, its_name = self._cpu.popitem(last=False)
            self._drop(its_name)

    def _drop(self, name: str) -> None:
        """Forget the copy of a name that is neither listed nor in memory."""
        copy = self._copy.get(name)
        if name not in self._listed and copy not in self._gpu and copy not in self._cpu:
            self._copy.pop(name, None)
