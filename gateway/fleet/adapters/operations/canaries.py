"""Canaries beside their live versions: the counts of both, and the guard's judgement."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from adapters.errors import StoreUnavailableError
from adapters.model import Adapter, AdapterName, CanaryOutcome, Version
from adapters.registry.canary_figures import (
    Arm,
    Comparison,
    Histogram,
    in_window,
    quantile,
    seconds,
    together,
)
from adapters.registry.canary_guard import Evaluation, Judgement, judge
from adapters.registry.changes.live_version import plan_verdict
from gateway.evaluations import operations as evaluations
from gateway.fleet.adapters.schemas import adapters as schemas
from gateway.operations.state import State
from gateway.operations.transaction import catch_up

log = logging.getLogger(__name__)

ACTOR: Final = "guard"
"""For the audit."""


@dataclass(frozen=True, slots=True)
class Compared:
    """A canary beside the live version, now."""

    canary: Arm
    live: Arm
    judgement: Judgement | None
    """None: the canary has no guard."""

    def answer(self) -> schemas.CanaryComparison:
        return schemas.CanaryComparison(
            canary=figures(self.canary),
            live=figures(self.live),
            verdict=self.judgement.verdict if self.judgement else None,
            reason=self.judgement.reason if self.judgement else None,
        )


def judged(
    adapter: Adapter, canary: Version, counts: Mapping[str, int], now: int, evaluation: Evaluation = "none"
) -> Compared:
    """Pure. `counts`: as stored for `Comparison.of`. `now`: Unix microseconds."""
    comparison = Comparison.of(adapter, canary.engine_name)
    slices = in_window(comparison, counts, now)
    judgement = None
    if adapter.guard is not None:
        age = (now - adapter.canary_since) / 1e6
        judgement = judge(adapter.guard, adapter.weight, slices, age=age, evaluation=evaluation)
        if adapter.held and adapter.outcome is not None:
            judgement = Judgement("hold", adapter.outcome.reason)
    return Compared(together(s.canary for s in slices), together(s.live for s in slices), judgement)


async def evaluation_of(state: State, adapter: Adapter) -> Evaluation:
    """How the canary's last evaluation ended; none while the ledger is away."""
    last = (await evaluations.latest(state, adapter)).get(adapter.canary or 0)
    if last is None or last.passed is None:
        return "none"
    return "passed" if last.passed else "failed"


async def compared(state: State, adapter: Adapter, evaluation: Evaluation = "none") -> Compared | None:
    """None: there is no canary. Raises StoreUnavailableError."""
    version = canary_of(state, adapter)
    if version is None:
        return None
    counts = await state.store.canary_counts(Comparison.of(adapter, version.engine_name).key)
    return judged(adapter, version, counts, state.clock.now(), evaluation)


async def comparison(state: State, adapter: Adapter) -> schemas.CanaryComparison | None:
    """None: there is no canary, or its figures cannot be read now."""
    evaluation: Evaluation = "none" if adapter.guard is None else await evaluation_of(state, adapter)
    try:
        now = await compared(state, adapter, evaluation)
    except StoreUnavailableError:
        return None
    return None if now is None else now.answer()


def canary_of(state: State, adapter: Adapter) -> Version | None:
    if adapter.canary is None:
        return None
    return state.catalog.versions.get(f"{adapter.name}@v{adapter.canary}")


async def carry_out(state: State, adapter: Adapter, judgement: Judgement) -> bool:
    """Do what a guard decided: hold, roll back, or give the next weight, for which the version is loaded
    first. Returns False if the comparison has ended meanwhile, or another worker was faster. Raises as
    `Prewarmer.warm`, `Registrar.promote`, `evaluations.check_promotion`."""
    name, verdict = AdapterName.parse(adapter.name), judgement.verdict
    assert adapter.canary is not None
    assert verdict in ("hold", "rollback", "promote")
    live = state.catalog.versions.get(f"{name}@v{adapter.live}")
    if verdict == "promote":
        await evaluations.check_promotion(state, name, adapter.canary)
        version = state.registrar.loadable_version(name, adapter.canary)
        await state.prewarmer.warm(version, like=live, share=judgement.weight)
    outcome = CanaryOutcome(verdict, adapter.canary, judgement.reason, state.clock.now())
    done = await state.registrar.change(
        name, ACTOR, lambda r: plan_verdict(r, name, adapter.canary_since, outcome, judgement.weight)
    )
    raised = done.canary_since != adapter.canary_since and done.weight == judgement.weight
    if done.outcome != outcome and not (verdict == "promote" and raised):
        return False
    state.metrics.canary_verdict(verdict)
    level = logging.INFO if verdict == "promote" else logging.WARNING
    log.log(level, "Canary %s@v%d: %s. %s", name, adapter.canary, _WORDS[verdict], judgement.reason)
    await catch_up(state)
    if verdict == "rollback" and live is not None:
        state.prewarmer.warm_later(live, like=live)
    return True


_WORDS: Final = {
    "hold": "held by its guard",
    "rollback": "rolled back by its guard",
    "promote": "raised to the next weight by its guard",
}


def figures(arm: Arm) -> schemas.ArmFigures:
    return schemas.ArmFigures(
        requests=arm.requests,
        failures=arm.failures,
        error_rate=round(arm.error_rate, 6) if arm.requests else None,
        first_token=_latency(arm.first_token),
        per_token=_latency(arm.per_token),
    )


def _latency(histogram: Histogram) -> schemas.Latency:
    buckets = {name: quantile(histogram, q) for name, q in (("p50", 0.5), ("p95", 0.95))}
    shown = {name: None if b is None else float(f"{seconds(b):.3g}") for name, b in buckets.items()}
    return schemas.Latency(**shown)
