"""What an engine's GPU slots and CPU cache hold, as far as can be known from outside.

vLLM keeps `--max-loras` adapters in GPU slots and `--max-cpu-loras`, these included, in CPU memory. An
explicit load and each step of a running request use an adapter: a use reads it from disk if it is not in CPU
memory, copies it to a GPU slot if it is in none, and makes it the most recently used in both. Each tier then
evicts what was used longest ago (`LRUCacheWorkerLoRAManager`). So both tiers are the head of one list, in
order of last use. Three consequences:

- A load when requests of other adapters fill the slots takes a slot only until the next step.
- An unload frees the copy's place only in engines that remove adapters (`adapters.model.Unloads`), and not if
  a request still uses it. Elsewhere it only deletes the name: the copy keeps its place until it is evicted,
  and a later load of that name makes a second copy.
- An adapter that is listed is not necessarily in memory: its next request may read it from disk.

An engine that tells what it holds is believed: `told` corrects the mirror, which derives what happens until
the next time.

`tests/engine/test_mirror.py` compares this with a real engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from adapters.model import Unloads


class Tier(StrEnum):
    GPU = "gpu"
    """Costs nothing."""
    CPU = "cpu"
    """In CPU memory; is copied to a GPU slot."""
    DISK = "disk"
    """Is read from disk, while every request on the engine waits."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the engine told, beside what was derived."""

    right: int
    wrong: int
    """Listed names that are elsewhere than was derived."""
    unloads: Unloads
    """What unloads do, as far as it shows; `unknown`: not at all."""


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
        self._most: int | None = None
        """The most adapters that the engine has told it holds at once; None: it does not tell."""
        self._unloaded: dict[str, int] = {}
        """Names whose copies were in memory when they were unloaded → how often the engine has since told
        that they still are."""

    def __repr__(self) -> str:
        return f"<Mirror gpu={[*self._gpu.values()]} cpu={[*self._cpu.values()]}>"

    def tier(self, name: str) -> Tier:
        """Where a request for `name` would find it. DISK for a name that must be loaded first."""
        return self._memory(name) if name in self._listed else Tier.DISK

    def _memory(self, name: str) -> Tier:
        copy = self._copy.get(name)
        if copy is None:
            return Tier.DISK
        return Tier.GPU if copy in self._gpu else Tier.CPU if copy in self._cpu else Tier.DISK

    def evicted(self, name: str) -> bool:
        """Whether the engine, which lists the name, has to read its weights from disk again. Unless it tells
        what it holds, False for a name that was loaded before this mirror began."""
        return (self._most is not None or name in self._listed) and self._memory(name) is Tier.DISK

    def told(self, resident: Mapping[str, bool]) -> Comparison:
        """The engine told what it holds: name → whether in a GPU slot."""
        places = {name: Tier.GPU if on_gpu else Tier.CPU for name, on_gpu in resident.items()}
        wrong = sum(self._memory(name) is not places.get(name, Tier.DISK) for name in self._listed)
        comparison = Comparison(len(self._listed) - wrong, wrong, self._shown(resident))
        known = dict.fromkeys(name for name in (*self._cpu.values(), *self._gpu.values()) if name in resident)
        for memory in (self._gpu, self._cpu, self._copy):
            memory.clear()
        for name in known | dict.fromkeys((*resident, *self._listed)):  # in order of last use, if known
            self._next += 1
            self._copy[name] = self._next
            if name in resident:
                (self._gpu if resident[name] else self._cpu)[self._next] = name
        self._most = max(self._most or 0, len(resident))
        return comparison

    def _shown(self, resident: Mapping[str, bool]) -> Unloads:
        """What became of the names that were unloaded. The metrics may be behind, and what is gone may have
        been evicted."""
        room = self._most is not None and len(resident) < self._most
        shown: Unloads = "unknown"
        for name, seen in list(self._unloaded.items()):
            if name not in resident or seen:
                del self._unloaded[name]
                shown = "forgets" if name in resident else "removes" if room else shown
            else:
                self._unloaded[name] = seen + 1
        return shown

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

    def unloaded(self, name: str, running: Container[str] = (), *, removes: bool = False) -> None:
        """`removes`: the engine frees the copy's place."""
        self._listed.discard(name)
        copy = self._copy.get(name)
        if self._most is not None and name not in running and self._memory(name) is not Tier.DISK:
            self._unloaded[name] = 0
        if removes and copy is not None and name not in running:
            self._gpu.pop(copy, None)
            self._cpu.pop(copy, None)
        self._drop(name)

    def restarted(self) -> None:
        for mapping in (self._gpu, self._cpu, self._copy, self._unloaded):
            mapping.clear()
        self._listed.clear()
        self._most = None

    def _add(self, name: str) -> None:
        self._unloaded.pop(name, None)
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
