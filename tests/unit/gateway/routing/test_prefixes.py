from __future__ import annotations

import pytest

from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN
from adapters.store.protocol.loads import dump_report, read_reports
from gateway.routing.prefixes import (
    BLOCK_BYTES,
    MOST_BLOCKS,
    MOST_ENGINES,
    MOST_NEWS,
    NEWS_SECONDS,
    PREFIX,
    PrefixMemory,
    blocks_of,
)

TOOLS = b"".join((b"%d" % n).rjust(BLOCK_BYTES) for n in range(20))


def test_blocks_are_the_same_as_far_as_the_prompts_are():
    first, second = (blocks_of(TOOLS + end * BLOCK_BYTES, "s") for end in (b"a" * 3, b"b" * 5))
    assert (len(first), len(second)) == (23, 25)
    assert first[:20] == second[:20]
    assert not set(first[20:]) & set(second)
    moved = blocks_of(b" " + TOOLS, "s")
    assert not set(moved) & set(first)
    again = blocks_of(TOOLS[:BLOCK_BYTES] * 3, "s")
    assert len({*again}) == 3  # a block's number depends on what is before it


def test_a_prompt_says_nothing_about_the_same_prompt_under_another_salt():
    memory = PrefixMemory()
    memory.note(blocks_of(TOOLS, "acme"), "a", 0.0)
    assert memory.seen(blocks_of(TOOLS, "acme"), 0.0).keys() == {"a"}
    assert not memory.seen(blocks_of(TOOLS, "bolt"), 0.0)
    assert blocks_of(TOOLS, "acme")[-1] >> 32 != blocks_of(TOOLS, "bolt")[-1] >> 32


def test_what_is_short_has_no_blocks_and_what_is_long_not_all():
    assert blocks_of(b"x" * (BLOCK_BYTES - 1), "s") == ()
    assert PrefixMemory().seen((), 0.0) is NOTHING_SEEN
    assert len(blocks_of(b"x" * (MOST_BLOCKS + 5) * BLOCK_BYTES, "s")) == MOST_BLOCKS


def test_engines_have_seen_as_much_as_was_sent_to_them():
    memory = PrefixMemory()
    memory.note(range(1, 31), "a", 0.0)
    memory.note(range(1, 11), "b", 5.0)
    seen = memory.seen([*range(1, 21), *range(100, 120)], 6.0)
    assert {engine: (s.share, s.age) for engine, s in seen.items()} == {
        "a": (pytest.approx(20 / 40.5), 2),
        "b": (pytest.approx(10 / 40.5), 1),
    }
    for number in range(MOST_ENGINES + 3):
        memory.note([1], f"e{number}", 7.0)
    assert len(memory.seen([1], 8.0)) == MOST_ENGINES


def test_the_ends_of_what_was_used_longest_ago_are_forgotten():
    memory = PrefixMemory(kept=10)
    memory.note(range(1, 8), "a", 0.0)
    memory.note(range(11, 18), "b", 1.0)
    assert memory.seen(range(1, 8), 2.0)["a"].share == pytest.approx(3 / 7.5)
    assert memory.seen(range(11, 18), 2.0)["b"].share == pytest.approx(7 / 7.5)
    assert len(memory._engines) == 10


def exchange(sender: PrefixMemory, receiver: PrefixMemory, now: float) -> None:
    heard = read_reports({"w": dump_report(sender.report(now), None)})
    receiver.heard(heard.loads, now)


def test_other_workers_hear_of_a_prompt_once_and_of_what_is_new():
    here, there = PrefixMemory(), PrefixMemory()
    blocks = blocks_of(TOOLS, "s")
    here.note(blocks, "a", 0.0)
    exchange(here, there, 0.1)
    assert there.seen(blocks, 0.1) == here.seen(blocks, 0.1)
    there._engines.clear()
    exchange(here, there, 0.2)
    assert not there._engines  # it was heard before
    (before,) = here.seen(blocks, 0.3).values()
    here.note(blocks, "a", 0.3, before)
    here.note((), "a", 0.3)
    assert here.report(NEWS_SECONDS + 0.1) == {}  # nothing of it was new
    for number in range(MOST_NEWS + 5):
        here.note(blocks_of((b"%d" % number).rjust(4 * BLOCK_BYTES), "s"), "a", 1.0)
    assert len(here.report(1.0)) == MOST_NEWS
    assert all(name.startswith(PREFIX) for name in here.report(1.0))
