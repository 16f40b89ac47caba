"""A vLLM engine, step by step, with the steps between two changes of the batch taken at once.

As vLLM: continuous batching; prompts in chunks within a budget of tokens; requests whose adapter would
exceed the GPU slots are skipped, not queued in order; GPU slots and CPU memory are LRU caches of adapters,
and a miss of both reads the disk while the whole engine waits; prompts and answers stay in the part of the KV
cache that no sequence uses. Simplified: a sequence is admitted when its prompt and answer both fit the KV
cache, so that nothing is preempted, and what is cached is kept in larger blocks than vLLM's, those used
longest ago evicted first.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from adapters.placement.requirements import NO_LABELS
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import BLOCK_TOKENS, Blocks, Request, Tier


@dataclass(frozen=True, slots=True)
class Load:
    adapter: str
    rank: int
    done: Callable[[], None]


def _ignore(_request: Request) -> None:
    """Nobody listens."""


class EngineModel:
    """One engine. All times are those of `events`."""

    def __init__(
        self,
        name: str,
        slots: int,
        cpu_slots: int,
        hardware: Hardware,
        events: Events,
        *,
        rank: int,
        labels: Mapping[str, str] = NO_LABELS,
        serves: str = "",
    ) -> None:
        """`rank`: the maximum, which decides how much memory a slot takes. `serves`: the adapter that is
        merged into its weights."""
        self.name, self.slots, self.cpu_slots = name, slots, max(slots, cpu_slots)
        self.max_rank, self.labels, self.serves = rank, labels, serves
        self.seats = hardware.max_sequences
        self.on_first: Callable[[Request], None] = _ignore
        self.on_end: Callable[[Request], None] = _ignore
        self.on_tier: Callable[[str, str, Tier], None] | None = None
        """Called with the engine, an adapter and the tier it is in now."""
        self.registered: set[str] = {serves} if serves else set()
        """Adapters whose requests the engine accepts; kept by `load` and `unload`."""
        self.loads = self.activations = 0
        self.in_flight = 0
        self.busy = 0.0
        """Seconds spent in steps and loads."""
        self._events, self._hardware = events, hardware
        self._kv_free = hardware.kv_left(slots, rank)
        self._ready: deque[Request] = deque()
        self._skipped: OrderedDict[str, deque[Request]] = OrderedDict()
        """Adapter → requests that wait until it has a slot; the longest waiting first."""
        self._granted: dict[str, int] = {}
        """Adapters in the batch or about to be → their requests."""
        self._prefilling: list[Request] = []
        self._decoding: list[tuple[int, int, Request]] = []
        """A heap by the step with the last token."""
        self._gpu: OrderedDict[str, int] = OrderedDict()
        self._cpu: OrderedDict[str, int] = OrderedDict()
        """Least recently used first; adapter → rank."""
        self._cached: OrderedDict[tuple[str, int], None] = OrderedDict()
        """Blocks of each adapter's prompts and answers; least recently used first."""
        self._wanted: deque[Load] = deque()
        self._loading: Load | None = None
        self._chunks: list[tuple[Request, int]] = []
        """Prompt tokens in the current step."""
        self._steps = 0
        """Decoding steps so far."""
        self._planned = 0
        """Steps of the current stretch."""
        self._start = self._step = self._stall = 0.0
        self._stretch = 0
        """Number of the current stretch, so that events of cut ones are void."""
        self._idle = True
        self._deciding = False
        self._numbers = 0

    def __repr__(self) -> str:
        return f"<EngineModel {self.name} {self.in_flight} in flight, {len(self._granted)} adapters>"

    @property
    def distinct(self) -> int:
        """Adapters in the batch."""
        return len(self._granted)

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._decoding) + len(self._prefilling)

    def generated(self, request: Request) -> int:
        """Tokens of its answer so far; it has a first one and has not ended."""
        steps = 0 if self._step <= 0 else int((self._events.now - self._start - self._stall) / self._step)
        return request.output - request.last + self._steps + max(0, min(steps, self._planned))

    def tier(self, adapter: str) -> Tier:
        if not adapter or adapter == self.serves or adapter in self._gpu:
            return Tier.GPU
        return Tier.CPU if adapter in self._cpu else Tier.DISK

    # -- what the gateway asks

    def submit(self, request: Request) -> None:
        self.in_flight += 1
        request.left = request.prompt
        adapter = request.adapter
        if not adapter or self.serves:
            self._ready.append(request)
        elif adapter in self._granted or len(self._granted) < self.slots:
            self._granted[adapter] = self._granted.get(adapter, 0) + 1
            self._ready.append(request)
        else:
            self._skipped.setdefault(adapter, deque()).append(request)
            return
        self._wake()

    def cancel(self, request: Request) -> None:
        """The client leaves before the first token; `on_end` is not called."""
        waiting = self._skipped.get(request.adapter)
        if waiting is not None:
            self.in_flight -= 1
            waiting.remove(request)
            if not waiting:
                del self._skipped[request.adapter]
            return
        if request.running:
            request.running = False
            self._prefilling.remove(request)
            self._chunks = [chunk for chunk in self._chunks if chunk[0] is not request]
            self._kv_free += request.prompt + request.output
        else:
            self._ready.remove(request)
        self._release(request)

    def load(self, adapter: str, rank: int, done: Callable[[], None]) -> None:
        self._wanted.append(Load(adapter, rank, done))
        self._wake()

    def unload(self, adapter: str) -> None:
        self.registered.discard(adapter)
        self._gpu.pop(adapter, None)
        if self._cpu.pop(adapter, None) is not None:
            self._tell(adapter, Tier.DISK)

    # -- the course of steps

    def _wake(self) -> None:
        """End the current stretch after the step that is running."""
        if self._deciding:
            return
        if self._idle:
            self._decide()
        elif self._planned > 1:
            now = self._events.now
            done = max(1, math.ceil((now - self._start - self._stall) / self._step - 1e-9))
            if done < self._planned:
                self._plan(self._start, done, self._step, self._stall)

    def _plan(self, start: float, steps: int, step: float, stall: float) -> None:
        self._start, self._planned, self._step, self._stall = start, steps, step, stall
        self._stretch += 1
        self._idle = False
        self._events.at(start + stall + steps * step, self._boundary, self._stretch)

    def _boundary(self, stretch: int) -> None:
        if stretch != self._stretch:
            return
        self._deciding = True
        now = self._events.now
        self.busy += now - self._start
        if self._loading is not None:
            load, self._loading = self._loading, None
            self.registered.add(load.adapter)
            load.done()
        else:
            self._steps += self._planned
            self._finish_chunks(now)
            while self._decoding and self._decoding[0][0] <= self._steps:
                self._ended(heapq.heappop(self._decoding)[2], now)
        self._deciding = False
        self._decide()

    def _finish_chunks(self, now: float) -> None:
        for request, tokens in self._chunks:
            request.left -= tokens
            if request.left > 0:
                continue
            self._prefilling.remove(request)
            self._remember(request.adapter, request.blocks)
            request.first = now
            if request.done is None:
                self.on_first(request)
            if request.output <= 1:
                self._ended(request, now)
            else:
                self._numbers += 1
                request.last = self._steps + request.output - 1
                heapq.heappush(self._decoding, (request.last, self._numbers, request))
        self._chunks = []

    def _ended(self, request: Request, now: float) -> None:
        request.running = False
        request.end = now
        self._kv_free += request.prompt + request.output
        self._remember(request.adapter, request.answered)
        self._release(request)
        if request.done is not None:
            request.done()
        else:
            self.on_end(request)

    def _release(self, request: Request) -> None:
        self.in_flight -= 1
        adapter = request.adapter
        if not adapter or self.serves:
            return
        left = self._granted[adapter] - 1
        if left:
            self._granted[adapter] = left
            return
        del self._granted[adapter]
        self._touch(adapter)
        if self._skipped:
            adapter, waiting = self._skipped.popitem(last=False)
            self._granted[adapter] = len(waiting)
            self._ready.extend(waiting)
            self._wake()

    def _decide(self) -> None:
        """Begin a stretch: a load, a step with prompts, or the steps until the next sequence ends."""
        now = self._events.now
        if self._wanted:
            self._loading = load = self._wanted.popleft()
            seconds = self._into_gpu(load.adapter, load.rank)
            self._plan(now, 0, 0.0, seconds)
            return
        stall = self._admit()
        sequences = len(self._decoding) + len(self._prefilling)
        if not sequences:
            self._idle = True
            self._stretch += 1
            return
        tokens = 0
        budget = max(1, self._hardware.budget - len(self._decoding))
        for request in self._prefilling:
            chunk = min(request.left, budget - tokens)
            if chunk <= 0:
                break
            self._chunks.append((request, chunk))
            tokens += chunk
        step = self._hardware.step_seconds(sequences, len(self._granted), tokens)
        steps = 1 if tokens else self._decoding[0][0] - self._steps
        self._plan(now, steps, step, stall)

    def _admit(self) -> float:
        """Move requests into the batch, as many as fit. Returns the seconds that their adapters take."""
        stall = 0.0
        budget = self._hardware.budget - len(self._decoding) - sum(r.left for r in self._prefilling)
        room = self._hardware.max_sequences - len(self._decoding) - len(self._prefilling)
        while self._ready and budget > 0 and room > 0:
            request = self._ready[0]
            need = request.prompt + request.output
            if need > self._kv_free and (self._decoding or self._prefilling):
                break
            self._ready.popleft()
            self._kv_free -= need
            self._reuse(request)
            budget -= request.left
            room -= 1
            request.running = True
            self._prefilling.append(request)
            if request.adapter and not self.serves:
                stall += self._into_gpu(request.adapter, request.rank)
        return stall

    # -- cached prompts and answers

    def _reuse(self, request: Request) -> None:
        self._evict()
        cached, adapter = 0, request.adapter
        for block in request.blocks:
            if (adapter, block) not in self._cached:
                break
            cached += 1
        self._remember(adapter, request.blocks[:cached])
        request.saved = min(cached * BLOCK_TOKENS, request.prompt - 1)
        request.left -= request.saved

    def _remember(self, adapter: str, blocks: Blocks) -> None:
        """The last block is the first to go."""
        for block in reversed(blocks):
            self._cached[adapter, block] = None
            self._cached.move_to_end((adapter, block))
        self._evict()

    def _evict(self) -> None:
        while len(self._cached) * BLOCK_TOKENS > max(0, self._kv_free):
            self._cached.popitem(last=False)

    # -- where adapters are

    def _touch(self, adapter: str) -> None:
        if adapter in self._gpu:
            self._gpu.move_to_end(adapter)
        if adapter in self._cpu:
            self._cpu.move_to_end(adapter)

    def _into_gpu(self, adapter: str, rank: int) -> float:
        """Make the adapter the most recently used of both caches. Returns the seconds that takes."""
        if adapter in self._gpu:
            self._touch(adapter)
            return 0.0
        seconds = 0.0
        if adapter not in self._cpu:
            self.loads += 1
            seconds += self._hardware.load_seconds(rank)
            if len(self._cpu) >= self.cpu_slots:
                victim = self._least_recent(self._cpu)
                del self._cpu[victim]
                self._gpu.pop(victim, None)
                self._tell(victim, Tier.DISK)
        self._cpu[adapter] = rank
        self._cpu.move_to_end(adapter)
        if len(self._gpu) >= self.slots:
            victim = self._least_recent(self._gpu)
            del self._gpu[victim]
            self._tell(victim, Tier.CPU)
        self._gpu[adapter] = rank
        self.activations += 1
        seconds += self._hardware.activate / 1000
        self._tell(adapter, Tier.GPU)
        return seconds

    def _least_recent(self, cache: OrderedDict[str, int]) -> str:
        return next((adapter for adapter in cache if adapter not in self._granted), next(iter(cache)))

    def _tell(self, adapter: str, tier: Tier) -> None:
        if self.on_tier is not None:
            self.on_tier(self.name, adapter, tier)
