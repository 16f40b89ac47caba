"""Run all checks of `florin doctor`: what is wrong with this installation, and how to fix it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from adapters.errors import EngineError, StoreUnavailableError
from adapters.model import Engine
from adapters.reconcile.artifact_gc import held, plan
from adapters.reconcile.diagnosis import Diagnosis, EngineObservation, FleetObservation
from adapters.reconcile.drift import of_engines
from adapters.reconcile.registry_checks import of_registry
from gateway.operations.exposure_checks import of_exposure
from gateway.operations.gateway_checks import of_gateways
from gateway.operations.installation_checks import missing_files, of_conditions, of_disk, of_ledger, of_store
from gateway.operations.limits import without_prices
from gateway.operations.state import State
from gateway.operations.tenants import unmet

_SIGNED_IN = "Who has signed in before stays so for a day at most."
_ORDER = {"problem": 0, "warning": 1, "ok": 2}


async def diagnose(state: State) -> list[Diagnosis]:
    """The result of every check, worst first. Queries each engine."""
    store, ledger, disk, exposed, view = await asyncio.gather(
        of_store(state.store, fails_over=state.settings.redis_fails_over),
        of_ledger(state),
        asyncio.to_thread(of_disk, state.artifacts, state.settings.max_adapter_bytes),
        of_exposure(state),
        look(state),
    )
    found: list[Diagnosis] = [
        *of_conditions(state),
        *of_gateways(state.gateways.all, state.clock.now()),
        *store,
        *ledger,
        *disk,
        *of_engines(view),
        *of_registry(view),
        *of_suspects(state),
        *of_requirements(state),
        *of_budgets(state),
        *of_issuer(state),
        *exposed,
    ]
    return sorted(found, key=lambda d: _ORDER[d.status])


def of_suspects(state: State) -> list[Diagnosis]:
    return [
        Diagnosis(
            "engine_deaths",
            "problem",
            adapter or tenant,
            f"Requests of {tenant} were on {deaths} engines that died; new ones are refused for {left:.0f} s",
            "Find the request that kills engines, in the engines' logs of that time, and report it to vLLM. "
            "Until then the tenant must not send it.",
        )
        for (tenant, adapter), (deaths, left) in sorted(state.deaths.suspects.refusals().items())
    ]


def of_issuer(state: State) -> list[Diagnosis]:
    if state.people is None:
        return []
    issuer = state.people.issuer
    if not issuer.trouble:
        return [Diagnosis("issuer", "ok", issuer.url, "People can sign in.")]
    return [
        Diagnosis(
            "issuer",
            "warning",
            issuer.url,
            f"The issuer of sign-ins cannot be used: {issuer.trouble} {_SIGNED_IN}",
            "Check FLORIN_OIDC_ISSUER, FLORIN_OIDC_CA and the network. API keys keep working.",
        )
    ]


def of_requirements(state: State) -> list[Diagnosis]:
    return [
        Diagnosis(
            "tenant_requirements",
            "problem",
            tenant.name,
            f"{warning}.",
            "Register an engine with these labels, or change what the tenant requires: "
            f"florin tenant update {tenant.name} --require …",
        )
        for _, tenant in sorted(state.directory.tenants.items())
        for warning in unmet(state.catalog, tenant)
    ]


def of_budgets(state: State) -> list[Diagnosis]:
    return [
        Diagnosis(
            "budget_without_prices",
            "problem",
            name,
            f"The budget in money of {name} is not enforced: there are no token prices.",
            "Set FLORIN_PRICE_INPUT and FLORIN_PRICE_OUTPUT.",
        )
        for name in without_prices(state)
    ]


async def look(state: State) -> FleetObservation:
    catalog = state.catalog
    placed = {name: state.residency.placed(name) for name in catalog.engines}  # before the engines are asked
    engines = list(catalog.engines.values())
    heard = await _heartbeats(state)
    looks = await asyncio.gather(*(_ask(state, engine, heard) for engine in engines))
    found = {engine.name: look for engine, look in zip(engines, looks, strict=True)}
    now = state.clock.now()
    pending_deletions = plan(
        catalog.pending_deletions,
        catalog.versions.values(),
        {
            engine.name: held(engine, look.listing, catalog) if look.listing else None
            for engine, look in zip(engines, looks, strict=True)
        },
        {version for held in placed.values() for version in held},
        now=now,
        grace=int(state.settings.artifact_grace * 3600 * 1e6),
    )
    missing = await asyncio.to_thread(missing_files, list(catalog.versions.values()))
    return FleetObservation(catalog, found, placed, now, missing, pending_deletions)


async def _heartbeats(state: State) -> Mapping[str, str]:
    try:
        return await state.store.heartbeats()
    except StoreUnavailableError:
        return {}  # another check says so


async def _ask(state: State, engine: Engine, heard: Mapping[str, str]) -> EngineObservation:
    agent = engine.name in heard
    timeout = state.settings.probe_timeout
    try:
        listing = await state.control.serving(engine, timeout=timeout)
    except EngineError as error:
        return EngineObservation(error=str(error), agent=agent)
    takes = None  # without an answer: the list has said enough
    with contextlib.suppress(EngineError, TimeoutError):
        async with asyncio.timeout(timeout):
            takes = await state.control.takes_adapters(engine)
    return EngineObservation(listing, takes_adapters=takes, agent=agent)
