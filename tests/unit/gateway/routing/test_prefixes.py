from __future__ import annotations

import pytest

from gateway.routing.prefixes import CHARACTERS, PrefixMemory
from gateway.routing.prefixes import prefix_of as salted_prefix_of


def prefix_of(body: dict[str, object], salt: str = "a") -> int:
    return salted_prefix_of(body, salt)


def chat(*contents: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content} for content in contents]}


def test_a_conversation_keeps_its_prefix():
    assert prefix_of(chat("You help.", "Hi")) == prefix_of(chat("You help.", "Hi", "Hello.", "Bye"))
    assert prefix_of(chat("You help.", "Hi")) != prefix_of(chat("You help.", "Other"))
    long = "x" * CHARACTERS
    assert prefix_of({"prompt": long + "a"}) == prefix_of({"prompt": long + "b"}) != 0


def test_a_prompt_says_nothing_about_the_same_prompt_under_another_salt():
    for body in (chat("You help.", "Hi"), {"prompt": "Once"}):
        assert prefix_of(body, "a") == prefix_of(body, "a") != prefix_of(body, "b")


@pytest.mark.parametrize(
    "body",
    [{}, {"messages": []}, {"prompt": [1, 2]}, {"prompt": ["a"]}, chat([{"type": "text"}]), chat(None)],
)
def test_some_prompts_have_none(body: dict[str, object]):
    assert prefix_of(body) == 0


def test_the_least_recently_used_is_forgotten():
    memory = PrefixMemory(kept=2)
    for prefix in (1, 2, 1, 3):
        memory.note("v", prefix, f"e{prefix}")
    assert [memory.engine("v", prefix) for prefix in (0, 1, 2, 3)] == ["", "e1", "", "e3"]
    assert memory.engine("w", 1) == ""
