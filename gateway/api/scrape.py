"""What a scrape is told of the registry and of the engines, as this worker knows them at that moment.

Looked at when asked, rather than kept up to date with each event: it costs requests nothing.
"""

from __future__ import annotations

from itertools import islice

from gateway.api.deps import State
from gateway.metrics import LABEL_CAP, Series


def known(state: State) -> dict[str, Series]:
    """The series of AT_SCRAPE. On the event loop, so bounded: of 10,000 adapters, the first thousand."""
    catalog, residency = state.catalog, state.residency
    live = (catalog.versions.get(f"{a.name}@v{a.live}") for a in catalog.adapters.values())
    served = list(islice((v for v in live if v), LABEL_CAP))
    verdicts = islice(catalog.verdicts.values(), LABEL_CAP)
    engines = state.pool.states()
    told = [s for s in engines if s.healthy]
    return {
        "florin_adapter_info": [((v.adapter, v.tenant, v.base_model), 1) for v in served],
        "florin_adapter_holders": [((v.adapter,), len(residency.holders(v.engine_name))) for v in served],
        "florin_verdict_info": [((v.version or v.engine, v.code), 1) for v in verdicts],
        "florin_engine_slots": [((s.engine.name,), s.engine.slots) for s in engines],
        "florin_engine_slots_used": [
            ((s.engine.name,), len(residency.slots(s.engine.name))) for s in engines
        ],
        "florin_engine_running": [((s.engine.name,), s.running) for s in told],
        "florin_engine_waiting": [((s.engine.name,), s.waiting) for s in told],
    }
