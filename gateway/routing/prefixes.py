"""Which engines have seen the beginning of a prompt, so that their prefix caches may save computing it.

A prompt is cut into blocks of BLOCK_BYTES of the body that is sent, in which tools and messages come first.
The number of a block depends on everything up to its end, as vLLM's own blocks do, and on the salt of the
engines' caches: no tenant can find another's blocks, here as there.

vLLM can publish which blocks it stores and evicts (KV events). They are not used: its blocks are numbered by
tokens, which a gateway does not have without a tokenizer for each base model.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final
from zlib import crc32

from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN, Seen, age_class
from adapters.store.protocol.loads import Load, Loads

BLOCK_BYTES: Final = 2048
"""About 512 tokens. To compute fewer takes an H100 less time than one more request there costs."""
MOST_BLOCKS: Final = 512
"""In one prompt: an image may have megabytes."""
KEPT: Final = 32_768
"""Blocks that are remembered, in about 8 MB: 17 million tokens, the caches of some 40 H100."""
MOST_ENGINES: Final = 8
"""That are remembered for one block."""

PREFIX: Final = "prefix/"
"""Marks prompts among engines in the workers' reports; engines' names have no slash."""
NEWS_SECONDS: Final = 0.35
"""For how long a prompt is in the reports, which come every 0.1 s."""
MOST_NEWS: Final = 32
"""Prompts in a report."""
DEPTHS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384)
"""Which blocks of a prompt other workers are told, besides the last."""
RECENT: Final = 1
"""Class of ages up to which the others need not be told again."""
_BYTES: Final = 12
"""A block's number: eight of the salt, four of the text."""

Blocks = Sequence[int]
_Engines = Mapping[str, float]
"""Engine → when it last saw the block. Not to be changed: blocks share it."""
_NONE: Final[_Engines] = {}


def blocks_of(payload: bytes, salt: str) -> Blocks:
    """The numbers of a prompt's whole blocks. `salt`: of the engines' caches, for a tenant and a version."""
    size = min(len(payload), MOST_BLOCKS * BLOCK_BYTES)
    if size < BLOCK_BYTES:
        return ()
    salted = int.from_bytes(blake2b(salt.encode(), digest_size=8).digest()) << 32
    view, check = memoryview(payload), 0
    return [
        salted | (check := crc32(view[start : start + BLOCK_BYTES], check))
        for start in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES)
    ]


class PrefixMemory:
    """Block → engines. One worker's; mutable. Bounded: what was used longest ago goes first."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._engines: OrderedDict[int, _Engines] = OrderedDict()
        self._news: deque[tuple[float, str, int]] = deque(maxlen=MOST_NEWS)
        """What the other workers are told: since when, by what name, and the blocks' numbers in one."""
        self._number = int.from_bytes(os.urandom(6))
        """In the latest name; it differs from those of other workers."""
        self._heard: frozenset[str] = frozenset()
        """Names in the last reports."""

    def __repr__(self) -> str:
        return f"<PrefixMemory of {len(self._engines)} blocks>"

    def seen(self, blocks: Blocks, now: float) -> Mapping[str, Seen]:
        """What each engine has seen of a prompt."""
        if not blocks:
            return NOTHING_SEEN
        seen: dict[str, Seen] = {}
        last = None
        for depth in range(len(blocks), 0, -1):
            engines = self._engines.get(blocks[depth - 1])
            if engines is not None and engines is not last:
                last = engines
                for engine, time in engines.items():
                    if engine not in seen:
                        seen[engine] = Seen(depth / _length(blocks), age_class(now - time))
        return seen

    def note(self, blocks: Blocks, engine: str, now: float, before: Seen | None = None) -> None:
        """The prompt is sent to the engine, which had seen `before` of it."""
        self._remember(blocks, engine, now)
        known = round(before.share * _length(blocks)) if before and before.age <= RECENT else 0
        news = [blocks[depth - 1] for depth in DEPTHS if known < depth < len(blocks)]
        if known < len(blocks):
            news.append(blocks[-1])
            self._number += 1
            packed = int.from_bytes(b"".join([number.to_bytes(_BYTES) for number in news]))
            self._news.append((now, f"{PREFIX}{self._number:x}/{engine}", packed))

    def _remember(self, blocks: Blocks, engine: str, now: float) -> None:
        known, last, engines = self._engines, None, _NONE
        for block in reversed(blocks):  # so that a prompt's last block is forgotten first
            before = known.pop(block, _NONE)
            if before is not last:
                last = before
                others = [item for item in before.items() if item[0] != engine]
                engines = dict([*others[1 - MOST_ENGINES :], (engine, now)])
            known[block] = engines
        while len(known) > self._kept:
            known.popitem(last=False)

    # -- the other workers

    def report(self, now: float) -> dict[str, Load]:
        """For the other workers: some blocks of the latest prompts. They come as if they were versions on an
        engine of that name, as what `Unplaced` reports does."""
        while self._news and self._news[0][0] < now - NEWS_SECONDS:
            self._news.popleft()
        return {name: Load(versions=packed) for _, name, packed in self._news}

    def heard(self, others: Loads, now: float) -> None:
        names = frozenset(name for name in others if name.startswith(PREFIX))
        for name in names - self._heard:
            packed = others[name].versions
            data = packed.to_bytes(-(-packed.bit_length() // (8 * _BYTES)) * _BYTES)
            blocks = [int.from_bytes(data[start : start + _BYTES]) for start in range(0, len(data), _BYTES)]
            self._remember(blocks, name.rpartition("/")[2], now)
        self._heard = names


def _length(blocks: Blocks) -> float:
    """The prompt's, with the part of a block that is left at its end."""
    return len(blocks) + 0.5
