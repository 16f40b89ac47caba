"""What a decision costs as the fleet grows: `python -m loadtests.decisions`.

Processor time to choose an engine and to note that the request was sent, answered and ended there, in
microseconds: the best of five rounds. One engine holds the adapter and has four requests in flight; the
others are idle. A cold adapter is held nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from rich.console import Console
from rich.table import Table

from adapters.model import Placement, SlotState
from adapters.placement.residency import Held, Slot
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.prefix_cache import NOTHING_SEEN, Seen
from adapters.placement.scheduling.view import Ask, EngineView, Fleet
from gateway.routing.prefixes import MOST_ENGINES

SIZES = (8, 64, 300, 1000)
ROUNDS, REQUESTS = 5, 500
TOKENS = 100


def fleet(size: int) -> Fleet:
    """Its first engine holds the version `held`."""
    engines = {f"engine-{n:04}": EngineView(f"engine-{n:04}", 8, 8, 16) for n in range(size)}
    name, holder = next(iter(engines.items()))
    holder.held = Held()
    holder.held.place("held", Slot(Placement(name, "held", SlotState.RESIDENT), 0.0))
    for _ in range(4):
        holder.sent("held", TOKENS)
    return Fleet(engines, lambda version: [name] if version == "held" else [])


def microseconds(engines: Fleet, version: str, seen: Mapping[str, Seen] = NOTHING_SEEN) -> float:
    """Processor time of a request's decisions. `seen`: of its prompt, by engines."""
    scheduler = POLICIES["cost"]()
    ask = Ask(version, rank=8 if version else 0, prompt_tokens=TOKENS, seen=seen)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for _ in range(REQUESTS):
            pick = scheduler.pick(ask, engines, 0.0)
            assert pick is not None
            view = engines.engines[pick.engine]
            view.sent(version, TOKENS)
            view.answering(TOKENS)
            view.ended(version)
        best = min(best, time.process_time() - began)
    return best / REQUESTS * 1e6


def main() -> None:
    table = Table(
        "engines", "adapter held by one", "base model", "cold adapter", "base model, prompt seen by eight",
        title="µs a request",
    )  # fmt: skip
    for size in SIZES:
        cells = [f"{microseconds(fleet(size), version):.1f}" for version in ("held", "", "cold")]
        engines = fleet(size)
        seen = {name: Seen(0.9, 1) for name in list(engines.engines)[:MOST_ENGINES]}
        table.add_row(str(size), *cells, f"{microseconds(engines, '', seen):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
