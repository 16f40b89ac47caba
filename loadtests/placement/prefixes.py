"""`python -m loadtests.placement.prefixes`: what the gateway's memory of prompts gains on two real engines.

Each round has the same conversations, agents and questions about documents through a gateway of two workers
as it is, and through one that does not look at prompts. The salts of both differ, so the engines' caches know
nothing of either at first. The demo's model was not trained on prompts of such length, so its answers mean
nothing. Exit code 1 if a request failed.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import uvloop
from rich.console import Console
from rich.table import Table

from deploy.demo.engines import EngineOptions, Fleet
from loadtests.placement.callers import ADAPTERS, TIMEOUT, Message, Run, stream
from loadtests.placement.installation import conclude, engines, in_turn, installed, parser
from loadtests.prompts import WORDS

ENTRIES = {"remembers": "gateway.cli", "forgets": "loadtests.placement.forgetful_gateway"}
SETTINGS = {"FLORIN_WORKERS": "2", "FLORIN_PLACEMENT_INTERVAL": "0", "FLORIN_SLOW_START": "0"}
LONGEST = 8192
"""Tokens of a prompt and its answer. Two characters are about a token of the demo's model."""
OPTIONS = EngineOptions(
    slots=len(ADAPTERS),
    max_model_len=LONGEST,
    extra=("--hf-overrides", f'{{"max_position_embeddings": {LONGEST}}}'),
)
ANSWER = 16
console = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Dialogue:
    tenant: str
    adapter: str
    beginning: str
    """The system message."""
    turns: tuple[str, ...]
    """What the user says, or a tool returns, in turn."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Lengths in characters, about."""

    beginnings: int
    """How many different ones there are. Their popularity is Zipf."""
    beginning: int
    turns: int
    turn: int


KINDS = {
    "documents": Kind(beginnings=24, beginning=11_000, turns=1, turn=100),
    "agents": Kind(beginnings=12, beginning=9_000, turns=3, turn=600),
    "conversations": Kind(beginnings=8, beginning=1_500, turns=5, turn=2_000),
}


def dialogues(kind: Kind, requests: int, seed: int) -> list[Dialogue]:
    """The same for the same seed."""
    draw = random.Random(seed)
    beginnings = [_text(draw, kind.beginning) for _ in range(kind.beginnings)]
    popularity = [(place + 1) ** -0.92 for place in range(kind.beginnings)]
    numbers = draw.choices(range(kind.beginnings), popularity, k=requests // kind.turns)
    return [
        Dialogue(
            *ADAPTERS[number % len(ADAPTERS)],
            beginnings[number],
            tuple(_text(draw, kind.turn) for _ in range(kind.turns)),
        )
        for number in numbers
    ]


def _text(draw: random.Random, characters: int) -> str:
    return " ".join(draw.choices(WORDS, k=characters // 5))


def main() -> int:
    options = _options()
    rounds: dict[str, dict[str, list[Figures]]] = {kind: {name: [] for name in ENTRIES} for kind in KINDS}
    errors: list[str] = []
    with engines(console, OPTIONS) as (fleet, folder):
        for number, name in in_turn(list(ENTRIES), options.rounds):
            for kind, run in _measure(fleet, folder / f"{name}-{number}", name, options, number):
                rounds[kind][name].append(_figures(run))
                errors += [f"{name}, {kind}: {error}" for error in run.errors]
            console.print(f"round {number + 1}: {name}", style="dim")
    _show(rounds)
    shape = {"callers": options.callers, "requests": options.requests}
    return conclude(console, options.json, errors, **shape, rounds=rounds)


def _options() -> argparse.Namespace:
    arguments = parser("loadtests.placement.prefixes", __doc__, rounds=3, callers=6)
    arguments.add_argument("--requests", type=int, default=120, help="of each kind (120)")
    return arguments.parse_args()


def _measure(
    fleet: Fleet, directory: Path, name: str, options: argparse.Namespace, number: int
) -> Iterator[tuple[str, Run]]:
    with installed(fleet, directory, SETTINGS, entry=ENTRIES[name]) as (gateway, keys):
        warming = [Dialogue(*adapter, "", ("Hello!",)) for adapter in ADAPTERS]
        uvloop.run(_call(gateway.url, keys, warming, len(warming)))
        for kind, shape in KINDS.items():
            todo = dialogues(shape, options.requests, options.seed + number)
            yield kind, uvloop.run(_call(gateway.url, keys, todo, options.callers))


async def _call(url: str, keys: dict[str, str], todo: Sequence[Dialogue], callers: int) -> Run:
    """`callers` at once, each of whom begins the next dialogue as soon as the last has ended."""
    run, left = Run(), iter(todo)
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)

    async def caller(session: aiohttp.ClientSession) -> None:
        for dialogue in left:
            try:
                await _hold(session, keys[dialogue.tenant], dialogue, run)
            except (TimeoutError, aiohttp.ClientError) as error:
                run.errors.append(repr(error))

    async with (
        aiohttp.ClientSession(url, timeout=timeout, trust_env=False) as session,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(callers):
            group.create_task(caller(session))
    return run


async def _hold(session: aiohttp.ClientSession, key: str, dialogue: Dialogue, run: Run) -> None:
    messages: list[Message] = [{"role": "system", "content": dialogue.beginning}]
    for turn in dialogue.turns:
        messages.append({"role": "user", "content": turn})
        answers = run.tokens.requests
        text = await stream(session, key, dialogue.adapter, messages, run, most=ANSWER)
        if run.tokens.requests == answers:
            run.errors.append(text[:300])
            return
        messages.append({"role": "assistant", "content": text})


def _figures(run: Run) -> Figures:
    return {
        "requests": run.tokens.requests,
        "prompt_tokens": round(run.tokens.prompt_tokens / max(1, run.tokens.requests)),
        "cached_share": round(run.tokens.cached_tokens / max(1, run.tokens.prompt_tokens), 3),
        "ttft_ms": round(1000 * statistics.fmean(run.first_token or [0.0]), 1),
    }


def _show(rounds: dict[str, dict[str, list[Figures]]]) -> None:
    table = Table(title="Round by round", title_justify="left")
    for heading in ("prompts", "gateway", "tokens of a prompt", "cached share", "TTFT, mean in ms"):
        table.add_column(heading)
    for kind, gateways in rounds.items():
        for name, measured in gateways.items():
            table.add_row(
                kind,
                name,
                f"{statistics.fmean(each['prompt_tokens'] for each in measured):,.0f}",
                ", ".join(f"{each['cached_share']:.0%}" for each in measured),
                ", ".join(f"{each['ttft_ms']:,.0f}" for each in measured),
            )
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
