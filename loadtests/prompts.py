"""`python -m loadtests.prompts`: what long prompts cost a worker, by step.

Beside it, the least that a gateway does that reads bodies: parse, write out, copy. Texts are words; code is
Python's own library, which is full of quotes, brackets and, as JSON, escapes. A token is taken for four
characters. Processor time, the least of several rounds.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson
from rich.console import Console
from rich.table import Table

from gateway.admission.complexity import check
from gateway.composition.reconfigure import complexity
from gateway.config import Settings
from gateway.dataplane.request import CHAT, parse, policy
from gateway.metering.prompt_estimate import prompt_tokens
from gateway.routing.prefixes import blocks_of
from gateway.routing.request_identity import RequestIdentity
from loadtests import result_file
from loadtests.overhead import cpu

TOKENS: Final = (1_000, 10_000, 100_000)
CHARACTERS_PER_TOKEN: Final = 4
TARGET: Final = 1.5
"""Times the parse, dump and copy."""
TARGET_MS: Final = 5.0
WORDS: Final = (
    "the",
    "order",
    "arrives",
    "when",
    "it",
    "is",
    "paid",
    "after",
    "that,",
    "said",
    "our",
    "agent.",
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds of processor time."""

    kind: str
    tokens: int
    size: int
    """Bytes of the body."""
    least: float
    """To parse the body, write it out and copy it."""
    steps: dict[str, float]

    @property
    def all(self) -> float:
        return sum(self.steps.values())

    @property
    def ratio(self) -> float:
        return self.all / self.least


def text(tokens: int, kind: str) -> str:
    characters = tokens * CHARACTERS_PER_TOKEN
    if kind == "code":
        sources = sorted(Path(argparse.__file__).parent.glob("*.py"))
        code = "".join(path.read_text(errors="replace") for path in sources[:60])
        return (code * (1 + characters // len(code)))[:characters]
    chosen = random.Random(1)
    return " ".join(chosen.choice(WORDS) for _ in range(characters // 4))[:characters]


def body(prompt: str, model: str = "acme/support", *, stream: bool = False) -> bytes:
    messages = [{"role": "system", "content": "You help."}, {"role": "user", "content": prompt}]
    return orjson.dumps({"model": model, "messages": messages, "max_tokens": 8, "stream": stream})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.prompts", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    result_file.add_option(parser)
    options = parser.parse_args()
    measured = [_measure(kind, tokens, options.rounds) for kind in ("text", "code") for tokens in TOKENS]
    _show(measured)
    result_file.write(options.json, figures=measured)
    over = [f for f in measured if f.ratio > TARGET or max(f.steps.values()) > TARGET_MS * 1000]
    return 1 if over else 0


def _measure(kind: str, tokens: int, rounds: int) -> Figures:
    raw, settings = body(text(tokens, kind)), Settings()
    limit, rules = complexity(settings), policy(settings)
    times = max(3, 2_000_000 // len(raw))

    def identify(payload: bytes) -> None:
        RequestIdentity(("acme", "acme/support"), what="", payload=payload, key=b"k").begin()

    payload = parse(CHAT, raw, rules).payload("fl-1", "salt")
    steps: dict[str, Callable[[], object]] = {
        "complexity": lambda: check(raw, limit),
        "parse and check": lambda: parse(CHAT, raw, rules),
        "estimate": lambda: prompt_tokens(call.body),
        "blocks": lambda: blocks_of(payload, "salt"),
        "serialize": lambda: orjson.dumps(call.body),
        "identify": lambda: identify(payload),
        "copy": lambda: bytearray(payload),
    }
    call = parse(CHAT, raw, rules)

    def least() -> None:
        bytearray(orjson.dumps(orjson.loads(raw)))

    best = {name: float("inf") for name in ("", *steps)}
    for _ in range(rounds):  # in turn
        for name, step in {"": least, **steps}.items():
            best[name] = min(best[name], _time(step, times))
    least_time = best.pop("")
    return Figures(kind, tokens, len(raw), round(least_time, 1), {n: round(t, 1) for n, t in best.items()})


def _time(step: Callable[[], object], times: int) -> float:
    """Microseconds of processor time for each call."""
    begun = time.process_time()
    for _ in range(times):
        step()
    return (time.process_time() - begun) / times * 1e6


def _show(measured: list[Figures]) -> None:
    table = Table(title="Microseconds of processor time", title_justify="left")
    for heading in ("prompt", "tokens", "bytes", *measured[0].steps, "all", "parse, dump, copy", "ratio"):
        table.add_column(heading, justify="right")
    for f in measured:
        steps = [f"{step:,.0f}" for step in f.steps.values()]
        sums = (f"{f.all:,.0f}", f"{f.least:,.0f}", f"{f.ratio:.2f}")
        table.add_row(f.kind, f"{f.tokens:,}", f"{f.size:,}", *steps, *sums)
    Console(width=160).print(table)
    Console(width=160).print(f"Processor: {cpu.machine()['processor']}.")


if __name__ == "__main__":
    sys.exit(main())
