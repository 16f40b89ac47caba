from __future__ import annotations

from adapters.wording import counted


def test_a_noun_agrees_with_its_number():
    assert [counted(n, "engine") for n in (0, 1, 2, 2000)] == [
        "0 engines",
        "1 engine",
        "2 engines",
        "2,000 engines",
    ]
    assert [counted(n, "entry was", "entries were") for n in (1, 3)] == ["1 entry was", "3 entries were"]
