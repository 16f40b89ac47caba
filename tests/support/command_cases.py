"""Commands as a table: what the gateway answers, what it is sent, and what people and scripts read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.support.command_line import FakeGateway

ONLY_READS = object()


@dataclass(frozen=True)
class Case:
    words: str
    """After `florin`, as in a shell."""
    answers: Mapping[str, Any] = field(default_factory=dict)
    """METHOD PATH → the body, or (status, body)."""
    says: tuple[str, ...] = ()
    """On stdout, with single spaces between words."""
    notes: tuple[str, ...] = ()
    """On stderr."""
    sends: Any = ONLY_READS
    """The body of the last request. By default nothing is asked but GET."""
    document: Any = None
    """What --json prints, if it is to be looked at."""
    code: int = 0

    def __str__(self) -> str:
        return self.words


def check(fake: FakeGateway, case: Case) -> None:
    for question, answer in case.answers.items():
        status, body = answer if isinstance(answer, tuple) else (200, answer)
        fake.answer(*question.split(" "), body, status)
    words = shlex.split(case.words)
    done = fake.florin(*words)
    assert done.exit_code == case.code, done.output
    for parts, stream in ((case.says, done.stdout), (case.notes, done.stderr)):
        shown = " ".join(stream.split())
        for part in parts:
            assert part in shown, (part, shown)
    if case.sends is ONLY_READS:
        assert {method for method, *_ in fake.asked} <= {"GET"}
    else:
        assert fake.asked[-1][2] == case.sends
    if case.document is not None:
        assert json.loads(fake.florin(*words, "--json").stdout) == case.document
