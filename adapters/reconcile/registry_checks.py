"""Finds problems with versions, adapters and base models, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from adapters.model import Adapter, Version, release_of
from adapters.reconcile.diagnosis import Diagnosis, FleetObservation, Status, due, evidence, sentence
from adapters.registry.catalog import Catalog
from adapters.wording import counted


def of_registry(view: FleetObservation) -> Iterator[Diagnosis]:
    """Yield problems and passed checks."""
    for group in (
        _serving_statuses(view),
        _files(view),
        _adapters(view.catalog, starts=view.starts),
        _bases(view.catalog),
        _hosts(view.catalog),
        _pending_deletions(view),
    ):
        yield from group


def _serving_statuses(view: FleetObservation) -> Iterator[Diagnosis]:
    catalog = view.catalog
    for engine_name, refused in sorted(catalog.serving_statuses.items(), key=lambda item: item[1].version):
        version = catalog.by_engine_name.get(engine_name)
        if version is None:
            continue
        adapter = catalog.adapters.get(version.adapter)
        called = adapter is not None and version.number in (adapter.live, adapter.canary)
        status: Status = "problem" if called else "warning"
        where = f" (found on {refused.engine})" if refused.engine else ""
        if refused.state == "quarantined":
            yield Diagnosis(
                "version_quarantined", status, version.id,
                f"{sentence(refused.reason)}{where}{evidence(refused)} Callers get version_quarantined.",
                f"Add it again from a sound source, or roll back: florin adapter rollback {version.adapter}. "
                f"If its answers are correct: florin adapter release {version.adapter} v{version.number}",
            )  # fmt: skip
        else:
            yield Diagnosis(
                "version_failed", status, version.id,
                f"{sentence(refused.reason)}{where} {counted(refused.attempts, 'load has', 'loads have')} "
                f"failed; the next try is {due(refused, view.now)}. Callers get load_failed.",
                "Find the reason in the engine's log. Then add a version that loads, or roll back: "
                f"florin adapter rollback {version.adapter}",
            )  # fmt: skip


def _files(view: FleetObservation) -> Iterator[Diagnosis]:
    if view.missing_files is None:
        return
    for id_, what in sorted(view.missing_files.items()):
        yield Diagnosis(
            "version_files", "problem", id_,
            f"{sentence(what)} Engines cannot reload it, and an engine that holds it may crash.",
            "Add the same files again to restore them: florin adapter add "
            f"{id_.partition('@')[0]} --source …; or let the gateway see FLORIN_ARTIFACT_DIR, or the bucket.",
        )  # fmt: skip
    if not view.missing_files:
        count = sum(1 for v in view.catalog.versions.values() if v.retired is None)
        yield Diagnosis("version_files", "ok", "", f"All files of {counted(count, 'version')} are present.")


def _adapters(catalog: Catalog, *, starts: bool) -> Iterator[Diagnosis]:
    """Live versions and canaries that no engine can hold. `starts`: see `FleetObservation`."""
    fleet_of = cache(catalog.fleet)
    for _, adapter in sorted(catalog.adapters.items()):
        for version in _called(adapter, catalog):
            fleet = fleet_of(version.base_model)
            if any(engine.fits(version) for engine in fleet) or (starts and not fleet):
                continue
            fleet = [engine for engine in fleet if not engine.serves]  # those load nothing
            release = release_of(version.min_vllm)
            newer = [engine for engine in fleet if engine.release >= release]
            needs = f"--max-lora-rank {version.rank} or more"
            if version.min_vllm:
                needs += f" and vLLM {version.min_vllm} or later"
            most = max((engine.max_rank for engine in newer), default=0)
            reason = (
                f"its rank is {version.rank}, and no engine of {version.base_model} takes more than {most}"
                if newer and most < version.rank
                else f"it needs vLLM {version.min_vllm} or later, which no engine of {version.base_model} is"
                if fleet and not newer
                else f"no engine of {version.base_model} was started with it"
                if fleet
                else f"no engine serves its base model, {version.base_model}"
            )
            yield Diagnosis(
                "adapter_unservable", "problem", version.id, f"No engine can load it: {reason}.",
                f"Register an engine for {version.base_model} with {needs}.",
            )  # fmt: skip
        if adapter.live is None:
            yield Diagnosis(
                "adapter_not_live", "warning", adapter.name, "No version of it is live, so calls get a 404.",
                f"florin adapter promote {adapter.name} v{adapter.latest}",
            )  # fmt: skip


def _called(adapter: Adapter, catalog: Catalog) -> Iterator[Version]:
    for number in (adapter.live, adapter.canary):
        version = catalog.versions.get(f"{adapter.name}@v{number}")
        if version is not None:
            yield version


def _bases(catalog: Catalog) -> Iterator[Diagnosis]:
    for name, base in sorted(catalog.bases.items()):
        if base.config is None and catalog.fleet(name):
            yield Diagnosis(
                "base_config", "warning", name,
                "Florin does not have its config.json, so adapters for it cannot be checked and are refused.",
                "Register one of its engines again with the config: florin engine add … --base-config PATH",
            )  # fmt: skip


def _hosts(catalog: Catalog) -> Iterator[Diagnosis]:
    for name, engine in sorted(catalog.engines.items()):
        if engine.agent and not engine.key:
            yield Diagnosis(
                "host_key", "warning", name,
                "Its host uses an operator key, so anyone who compromises the host gains operator rights.",
                f"Give it its own key: florin engine token create --name {name}",
            )  # fmt: skip


def _pending_deletions(view: FleetObservation) -> Iterator[Diagnosis]:
    """Only deletions that need an operator; the others just take time."""
    waiting = [
        name for name, reason in view.pending_deletions.waiting.items() if "does not respond" in reason
    ]
    if waiting:
        reason = view.pending_deletions.waiting[waiting[0]]
        yield Diagnosis(
            "pending_deletions", "warning", "",
            f"The files of {counted(len(waiting), 'removed or retired version')} must stay: {reason}.",
            "Start that engine, or remove it: florin engine remove NAME",
        )  # fmt: skip
