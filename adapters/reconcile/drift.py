"""Finds differences between the registry and what engines report, each with a remedy. Pure. The reconciler
repairs most of them within seconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from adapters.drivers import driver_of
from adapters.model import Engine, SlotState
from adapters.reconcile.diagnosis import Diagnosis, EngineObservation, FleetObservation, evidence, names, them
from adapters.registry.serving_status import SUSPECT

OWN = "fl-"
"""Prefix of every adapter name that Florin uses on engines."""


def of_engines(view: FleetObservation) -> Iterator[Diagnosis]:
    """Yield problems and passed checks."""
    catalog = view.catalog
    if not catalog.engines and view.starts:
        yield Diagnosis("engines", "ok", "", "No engine is registered. Requests wait until one has started.")
    elif not catalog.engines:
        yield Diagnosis(
            "engines", "warning", "", "No engine is registered.",
            "Register one: florin engine add --name … --url … --base … --gpu-type … --slots … --max-rank …",
        )  # fmt: skip
    for _, engine in sorted(catalog.engines.items()):
        diagnoses = [*_engine(engine, view), *([] if engine.stopped else _residency(engine, view))]
        yield from diagnoses or [_healthy(engine, view)]


# -- engines


def _healthy(engine: Engine, view: FleetObservation) -> Diagnosis:
    used = _slots_used(view.placed.get(engine.name, {}))
    message = f"It serves {engine.base_model} and holds what it should: {used} of {engine.slots} slots."
    if engine.serves:
        compared = "has been compared with other engines" if used else "has yet to be compared"
        message = f"It serves {engine.serves} only, which is merged into its weights and {compared}."
    return Diagnosis("engine", "ok", engine.name, message)


def _engine(engine: Engine, view: FleetObservation) -> Iterator[Diagnosis]:
    name, look = engine.name, view.looks.get(engine.name, EngineObservation())
    if engine.stopped:
        yield Diagnosis(
            "engine_stopped", "ok", name,
            "Its host shut it down. Florin removes it after FLORIN_STOPPED_ENGINE_HOURS, or uses it again "
            "once it restarts.",
        )  # fmt: skip
        return
    listing = look.listing
    if listing is None:
        yield Diagnosis(
            "engine_reachable", "warning" if engine.stopping else "problem", name,
            f"It does not respond: {look.error or 'it was not asked'}.",
            f"Start it, or check why it does not listen at {engine.url}. If it is gone for good: "
            f"florin engine remove {name}",
        )  # fmt: skip
    elif engine.model not in listing.bases:
        serves = ", ".join(sorted(listing.bases)) or "no base model"
        yield Diagnosis(
            "engine_base", "problem", name,
            f"It serves {serves}, but is registered for {engine.serves or engine.base_model}.",
            f"Start it with --served-model-name {engine.model}, or register it for the model it serves.",
        )  # fmt: skip
    if look.takes_adapters is False:
        yield Diagnosis(
            "engine_lora_routes", "problem", name,
            "It cannot load adapters at runtime.",
            "Start it with --enable-lora, --api-server-count 1 and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1; "
            "florin engine run does this for you."
            if engine.driver == "vllm"
            else f"{driver_of(engine).advice.capitalize()}.",
        )  # fmt: skip
    if engine.agent and not look.agent:
        yield Diagnosis(
            "engine_agent", "warning" if listing else "problem", name,
            "Its agent (florin engine run) has sent no heartbeat recently"
            + (", though the engine responds." if listing else "."),
            "Check that florin engine run is running on its host and reaches the gateway. Until it does, "
            "adapters not yet on that host cannot be loaded there.",
        )  # fmt: skip
    yield from _state(engine, look)
    driver = driver_of(engine)
    if not driver.knows(engine.version):
        known = " and ".join(driver.versions)
        first = (
            ""
            if engine.on_trial
            else f" Try such an engine beside the others first: florin engine trial {name} --share 5"
        )
        yield Diagnosis(
            "engine_version", "warning", name,
            f"It runs {driver.title} {engine.version}, and this version of Florin knows {known}: which "
            "models and flags it supports, and what an unload does there, may differ.",
            f"Upgrade Florin before the engines.{first}",
        )  # fmt: skip
    serving_status = view.catalog.serving_statuses.get(name)
    if serving_status and serving_status.code == SUSPECT:
        yield Diagnosis(
            "engine_suspect", "problem", name,
            f"It is suspect and loads no adapters: {serving_status.reason}{evidence(serving_status)}.",
            f"Merge {engine.serves} into its base model again, and restart it. Florin retries automatically."
            if engine.serves
            else "Restart it. If that does not help, check its host for failing memory, a different vLLM "
            "version or different base model weights. Florin retries automatically. If the base model was "
            f"changed on purpose: florin engine trust {name}",
        )  # fmt: skip


def _state(engine: Engine, look: EngineObservation) -> Iterator[Diagnosis]:
    name = engine.name
    if engine.stopping:
        yield Diagnosis(
            "engine_stopping", "warning", name,
            "Its host announced a shutdown, and no new process has registered."
            if not look.agent
            else "Its host is shutting it down, so it takes no new requests.",
            f"Wait for it to restart, or remove it: florin engine remove {name}",
        )  # fmt: skip
    elif engine.rests:
        yield Diagnosis(
            "engine_state", "warning", name,
            f"It rests, because {engine.serves}, which is merged into its weights, is not live.",
            f"If it will not be live again, stop the engine, and remove it: florin engine remove {name}",
        )  # fmt: skip
    elif engine.trial is not None and engine.trial.stopped:
        yield Diagnosis(
            "engine_state", "warning", name,
            f"The guard of its trial drained it. {engine.trial.stopped}",
            f"Put its old version back, and restart it: florin engine roll {name}",
        )  # fmt: skip
    elif engine.moving:
        yield Diagnosis(
            "engine_state", "warning", name,
            "It is being drained: its adapters are being loaded elsewhere, and then it gets no new requests.",
            f"To follow: florin engine drain {name} --wait. To end it: florin engine uncordon {name}",
        )  # fmt: skip
    elif engine.state != "active":
        takes = "no new adapters" if engine.state == "cordoned" else "neither new requests nor new adapters"
        yield Diagnosis(
            "engine_state", "warning", name,
            f"It is {engine.state}: it takes {takes}.",
            f"When maintenance is done: florin engine uncordon {name}, or florin engine remove {name}",
        )  # fmt: skip


# -- residency


def own_strays(listed: Collection[str], placed: Collection[str]) -> set[str]:
    """Adapters that the engine lists under Florin's names without being placed there."""
    return {v for v in listed if v.startswith(OWN) and v not in placed}


def _slots_used(placed: Mapping[str, SlotState]) -> int:
    return sum(state is not SlotState.CACHED for state in placed.values())


def _residency(engine: Engine, view: FleetObservation) -> Iterator[Diagnosis]:
    look, placed = view.looks.get(engine.name, EngineObservation()), view.placed.get(engine.name, {})
    if look.listing is None or look.listing.loras is None:
        return
    listed, name = look.listing.loras, engine.name
    ids = view.catalog.by_engine_name
    # a cached version that is not listed misses no request; the next pass forgets it
    expected = {v for v, state in placed.items() if state in (SlotState.RESIDENT, SlotState.LEAVING)}
    lost = {v for v, state in placed.items() if state is SlotState.LOST}
    soon = "Wait: they are reloaded within seconds, most recently used first"
    if missing := expected - listed:
        yield Diagnosis(
            "residency_missing", "warning", name,
            f"It should hold {names(missing, ids)} but does not list {them(missing)}; it may have restarted.",
            f"{soon}. If this persists, no gateway is leading or the engine refuses; see the gateway's log.",
        )  # fmt: skip
    if lost:
        yield Diagnosis(
            "residency_lost", "warning", name,
            f"It has restarted and has yet to reload {names(lost, ids)}.",
            f"{soon}{'' if engine.takes_requests else ', once the engine takes requests again'}.",
        )  # fmt: skip
    if strays := own_strays(listed, placed):
        yield Diagnosis(
            "residency_stray", "warning", name,
            f"It holds {names(strays, ids)} under a name that Florin uses, but "
            f"Florin has not assigned {them(strays)} to it.",
            "Wait: the next pass unloads it. If it returns, another Florin uses the same engine; "
            "give each installation its own engines."
            + (
                " If it stays, the engine no longer holds it and only keeps the name, which takes no memory "
                "and goes with its next restart."
                if engine.unloads == "refuses"
                else ""
            ),
        )  # fmt: skip
    if strangers := {v for v in listed if not v.startswith(OWN)}:
        first = min(strangers)
        yield Diagnosis(
            "residency_stranger", "warning", name,
            f"{names(strangers, {})} was loaded there by another client. Florin leaves {them(strangers)} "
            f"alone, but {them(strangers)} may occupy one of its {engine.slots} slots.",
            f"Register it with florin adapter add, then unload it: curl -X POST "
            f"{engine.url}{driver_of(engine).unload(first).path} -H 'content-type: application/json' "
            f"""-d '{{"lora_name": "{first}"}}'""",
        )  # fmt: skip
    used = _slots_used(placed)
    if used > engine.slots:
        yield Diagnosis(
            "residency_slots", "warning", name,
            f"{used} versions are assigned to its {engine.slots} slots; it used to have more.",
            "Wait: the least recently used are evicted as others are called.",
        )  # fmt: skip
