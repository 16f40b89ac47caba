"""Run all checks of `florin doctor`: what is wrong with this installation, and how to fix it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from adapters.errors import EngineError, StoreUnavailableError
from adapters.model import Engine, Version, load
from adapters.placement.churn import Changes
from adapters.reconcile.artifact_gc import held, plan
from adapters.reconcile.diagnosis import Diagnosis, EngineObservation, FleetObservation
from adapters.reconcile.drift import of_engines
from adapters.reconcile.registry_checks import of_registry
from adapters.wording import counted
from gateway.installation.doctor.operations.exposure_checks import of_exposure
from gateway.installation.doctor.operations.installation_checks import (
    of_conditions,
    of_disk,
    of_ledger,
    of_store,
)
from gateway.operations.state import State
from gateway.runtime.gateways import Announcement
from gateway.tenants.operations.limits import without_prices
from gateway.tenants.operations.tenants import unmet

if TYPE_CHECKING:  # it imports cryptography
    from gateway.tenants.people.issuer import Issuer

_SIGNED_IN = "Those who are signed in stay so for a day at most."
_KILLED = -9
_MINUTE = 60_000_000
_FEW_CHANGES, _MUCH_UNDONE = 20, 0.5
"""Loads and evictions in ten minutes, and the share of them undone, that are worth a warning."""
MOST = 100
"""Diagnoses of one check that are shown."""
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
    diagnoses: list[Diagnosis] = [
        *of_conditions(state),
        *of_gateways(state.gateways.all, state.clock.now()),
        *store,
        *ledger,
        *disk,
        *of_engines(view),
        *of_registry(view),
        of_churn(state.residency.churn()),
        *of_suspects(state),
        *of_requirements(state),
        *of_budgets(state),
        *of_issuers(state),
        *exposed,
    ]
    return bounded(sorted(diagnoses, key=lambda d: _ORDER[d.status]))


def bounded(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """The first MOST of each check. A volume that is not mounted is one fault, not one for each of 50,000
    adapters."""
    every, shown = Counter((d.check, d.status) for d in diagnoses), Counter[tuple[str, str]]()
    listed: list[Diagnosis] = []
    for diagnosis in diagnoses:
        kind = diagnosis.check, diagnosis.status
        shown[kind] += 1
        if shown[kind] == MOST < every[kind]:
            more = f"{diagnosis.message} {every[kind] - MOST:,} more of this kind are not shown."
            listed.append(replace(diagnosis, message=more))
        elif shown[kind] <= MOST:
            listed.append(diagnosis)
    return listed


def of_churn(changes: Changes) -> Diagnosis:
    undone = changes.share_undone
    message = (
        f"{counted(changes.loads, 'load')} and {counted(changes.evictions, 'eviction')} in the last ten "
        "minutes, "
        f"{undone:.0%} of them undone within a minute."
    )
    if changes.loads + changes.evictions < _FEW_CHANGES or undone <= _MUCH_UNDONE:
        return Diagnosis("placement_churn", "ok", "", message)
    return Diagnosis(
        "placement_churn", "warning", "", message,
        "Adapters evict each other: more are called at a time than there are slots. Raise --max-loras, or "
        "add engines; unpin what need not be resident.",
    )  # fmt: skip


def of_suspects(state: State) -> list[Diagnosis]:
    return [
        Diagnosis(
            "engine_deaths",
            "problem",
            adapter or tenant,
            f"Requests of {tenant} were on {counted(deaths, 'engine')} that died; new ones are refused "
            f"for {left:.0f} s",
            "Find the request that kills engines, in the engines' logs of that time, and report it to vLLM. "
            "Until then the tenant must not send it.",
        )
        for (tenant, adapter), (deaths, left) in sorted(state.deaths.suspects.refusals().items())
    ]


def of_issuers(state: State) -> list[Diagnosis]:
    diagnoses = []
    if state.people is not None:
        ok, trouble = "People can sign in.", f"Nobody can sign in. {_SIGNED_IN} API keys keep working."
        diagnoses.append(_of_issuer(state.people.issuer, ok, trouble, "FLORIN_OIDC"))
    if state.host_tokens is not None:
        ok, trouble = "Hosts can enrol.", "Hosts cannot enrol with its tokens. Enrolled ones keep their keys."
        diagnoses.append(_of_issuer(state.host_tokens.issuer, ok, trouble, "FLORIN_HOST"))
    return diagnoses


def _of_issuer(issuer: Issuer, ok: str, consequence: str, settings: str) -> Diagnosis:
    if not issuer.trouble:
        return Diagnosis("issuer", "ok", issuer.url, ok)
    return Diagnosis(
        "issuer",
        "warning",
        issuer.url,
        f"The issuer cannot be used: {issuer.trouble} {consequence}",
        f"Check {settings}_ISSUER, its CA and the network.",
    )


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
            f"The budget in money of {name} is not enforced: the tenant has no rate card, and nothing is "
            "known of what its usage costs.",
            "Assign a rate card: florin rate-card assign TENANT --card NAME. Or add the price of its GPUs: "
            "florin price add; usage then has an estimated cost.",
        )
        for name in without_prices(state)
    ]


def of_gateways(gateways: Iterable[Announcement], now: int) -> Iterator[Diagnosis]:
    """Which build each gateway runs, and whose workers died lately. `now`: Unix microseconds."""
    for gateway in gateways:
        workers = counted(gateway.workers, "worker")
        build = f"Florin {gateway.version} (commit {gateway.commit or 'unknown'})"
        yield Diagnosis(
            "gateway", "ok", gateway.name, f"{build}, {workers}, up {_ago(now - gateway.started)}."
        )
        if gateway.deaths:
            yield _deaths(gateway, now)


def _deaths(gateway: Announcement, now: int) -> Diagnosis:
    last = gateway.deaths[-1]
    killed = ", killed, often for lack of memory" if last.code == _KILLED else ""
    return Diagnosis(
        "worker_restarts", "warning", gateway.name,
        f"{counted(len(gateway.deaths), 'worker')} died within the last hour and had to be "
        f"replaced, the last {_ago(now - last.died_at)} ago (exit code {last.code}{killed}).",
        "See the gateway's log of that time, and the kernel's (dmesg). The requests that ran there were cut "
        "off; their usage is recorded.",
    )  # fmt: skip


def _ago(micros: int) -> str:
    """`4 min`"""
    minutes = max(0, micros) // _MINUTE
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


async def look(state: State) -> FleetObservation:
    catalog = state.catalog
    placed = {name: state.residency.placed(name) for name in catalog.engines}  # before the engines are asked
    engines = list(catalog.engines.values())
    heard = await _heartbeats(state)
    looks = await asyncio.gather(*(_ask(state, engine, heard) for engine in engines))
    by_engine = {engine.name: look for engine, look in zip(engines, looks, strict=True)}
    now = state.clock.now()
    pending_deletions = plan(
        catalog.pending_deletions,
        catalog.with_digests({pending.digest for pending in catalog.pending_deletions.values()}),
        {
            engine.name: held(engine, look.listing, catalog) if look.listing else None
            for engine, look in zip(engines, looks, strict=True)
        },
        {version for resident in placed.values() for version in resident},
        now=now,
        grace=int(state.settings.artifact_grace * 3600 * 1e6),
    )
    texts = list(catalog.versions.texts.values())  # to parse 50,000 takes 0.4 s: not on the event loop
    missing = None
    with contextlib.suppress(OSError):  # another check says so
        missing = await asyncio.to_thread(lambda: state.artifacts.problems(_unretired(texts)))
    starts = state.settings.engine_start_timeout > 0
    return FleetObservation(catalog, by_engine, placed, now, missing, pending_deletions, starts)


def _unretired(texts: Iterable[str]) -> Iterator[Version]:
    return (version for text in texts if (version := load(Version, text)).retired is None)


async def _heartbeats(state: State) -> Mapping[str, str]:
    try:
        return await state.store.heartbeats()
    except StoreUnavailableError:
        return {}  # another check says so


async def _ask(state: State, engine: Engine, heard: Mapping[str, str]) -> EngineObservation:
    agent = engine.name in heard
    timeout = state.settings.probe_timeout
    try:
        listing = await state.engine_client.serving(engine, timeout=timeout)
    except EngineError as error:
        return EngineObservation(error=str(error), agent=agent)
    takes = None  # without an answer: the list has said enough
    with contextlib.suppress(EngineError, TimeoutError):
        async with asyncio.timeout(timeout):
            takes = await state.engine_client.takes_adapters(engine)
    return EngineObservation(listing, takes_adapters=takes, agent=agent)
