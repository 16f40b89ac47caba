"""What a decision costs as the fleet grows: `python -m loadtests.decisions`.

Processor time to choose an engine and to note that the request was sent, answered and ended there, in
microseconds: the best of five rounds. One engine holds the adapter and has four requests in flight; the
others are idle. A cold adapter is held nowhere, so every engine is compared.
"""

from __future__ import annotations

import time

from rich.console import Console
from rich.table import Table

from adapters.model import Placement, SlotState
from adapters.placement.residency import Held, Slot
from adapters.placement.scheduling.policies import POLICIES
from adapters.placement.scheduling.view import Ask, EngineView, Fleet

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


def microseconds(engines: Fleet, version: str) -> float:
    """Processor time of a request's decisions."""
    scheduler = POLICIES["cost"]()
    ask = Ask(version, rank=8 if version else 0, prompt_tokens=TOKENS)
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
    table = Table("engines", "adapter held by one", "base model", "cold adapter", title="µs a request")
    for size in SIZES:
        table.add_row(str(size), *(f"{microseconds(fleet(size), v):.1f}" for v in ("held", "", "cold")))
    Console().print(table)


if __name__ == "__main__":
    main()
