"""What `florin doctor` checks in the installation itself: Redis, the ledger, the disks, the price book."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterable, Iterator

from adapters.errors import StoreUnavailableError
from adapters.model import Engine
from adapters.reconcile.diagnosis import Diagnosis
from adapters.registry.artifacts import ArtifactStore
from adapters.store.protocol.coordination import CoordinationStore, ServerInfo
from adapters.wording import counted
from gateway.costs.maintenance.health import LedgerHealth, health
from gateway.costs.periods import iso
from gateway.costs.prices.book import PriceBook
from gateway.costs.prices.price_store import list_prices
from gateway.costs.scheduled_exports.status import ExportStatus, read_status
from gateway.installation.doctor.operations.merging_checks import of_merging, used
from gateway.metering.ledger.database import LedgerUnavailableError, UnknownSchemaError
from gateway.metering.wal.segments import REFUSED
from gateway.observability.conditions import CONDITIONS
from gateway.operations.state import State

FULL = 0.9
"""Share of Redis's memory above which it counts as full."""
SPARE_VERSIONS = 2
"""Versions of the largest allowed size for which the disk should have room."""


async def of_store(store: CoordinationStore, *, fails_over: bool) -> list[Diagnosis]:
    """`fails_over`: a replica is to take over when the server dies."""
    started = time.monotonic()
    try:
        facts = await store.server_info()
    except StoreUnavailableError as error:
        away = Diagnosis(
            "redis", "problem", "", str(error),
            "Start it, and check FLORIN_REDIS_URL. Until then what is resident is served from memory, and "
            "nothing can be loaded or changed.",
        )  # fmt: skip
        return [away]
    took = (time.monotonic() - started) * 1000
    diagnoses = [Diagnosis("redis", "ok", "", f"{facts.server} answers in {took:.0f} ms.")]
    diagnoses += [_persistence(facts), *_memory(facts)]
    return [*diagnoses, _replicas(facts)] if fails_over else diagnoses


def of_conditions(state: State) -> list[Diagnosis]:
    """What this worker finds wrong with itself, and what only others do."""
    own = state.conditions.now()
    codes = {condition.code for condition in own}
    findings = [(c.code, c.subject, c.message or c.meaning.summary, c.meaning) for c in own]
    for code in sorted(state.metrics.all_conditions() - codes):
        meaning = CONDITIONS[code]
        findings.append((code, "", f"Another worker of this gateway: {meaning.summary}", meaning))
    return [
        Diagnosis(code, meaning.severity, subject, message, meaning.remedy)
        for code, subject, message, meaning in findings
    ] or [Diagnosis("conditions", "ok", "", "No worker of this gateway finds anything wrong with itself.")]


def _persistence(facts: ServerInfo) -> Diagnosis:
    check = "redis_persistence"
    if facts.trouble:
        return Diagnosis(
            check, "problem", "", f"It cannot write to its disk: {facts.trouble}.",
            "Make room on its disk, or give it the right to write there; see its log.",
        )  # fmt: skip
    if facts.persistent is None:
        return Diagnosis(
            check,
            "ok",
            "",
            "Not checked: Redis does not report whether it writes to disk; hosted ones usually do.",
        )
    if facts.persistent:
        return Diagnosis(check, "ok", "", "What it has acknowledged is written to disk.")
    return Diagnosis(
        check, "problem", "", "It writes nothing to disk: a restart forgets every tenant, key and adapter.",
        "Set `appendonly yes`, and until then keep what `florin export` writes.",
    )  # fmt: skip


def _memory(facts: ServerInfo) -> Iterator[Diagnosis]:
    check, limit = "redis_memory", facts.limit_bytes
    if facts.policy not in (None, "noeviction"):
        yield Diagnosis(
            check, "problem" if limit else "warning", "",
            f"Its maxmemory-policy is {facts.policy}: once its memory is full, it drops what it holds.",
            "Set `maxmemory-policy noeviction`.",
        )  # fmt: skip
    elif limit and facts.used_bytes and facts.used_bytes > FULL * limit:
        yield Diagnosis(
            check, "warning", "", f"{facts.used_bytes / limit:.0%} of its memory is used.",
            "Raise `maxmemory`: when it is full, nothing can be changed or loaded.",
        )  # fmt: skip
    elif facts.policy is None:
        yield Diagnosis(
            check, "ok", "",
            "Not checked: Redis does not report its maxmemory-policy, which must be noeviction.",
        )  # fmt: skip
    else:
        yield Diagnosis(check, "ok", "", "It never drops what it holds.")


def _replicas(facts: ServerInfo) -> Diagnosis:
    check, count = "redis_replicas", facts.replicas
    if count is None:
        return Diagnosis(check, "ok", "", "Not checked: Redis does not report how many replicas it has.")
    if count:
        return Diagnosis(check, "ok", "", f"Replicas that could take over: {count}.")
    return Diagnosis(
        check, "warning", "", "The primary has no replica: when it dies, nothing takes over.",
        "Start a replica, or see in its log why it does not connect.",
    )  # fmt: skip


async def of_ledger(state: State) -> list[Diagnosis]:
    """Check the ledger, its maintenance, the usage log and prices."""
    diagnoses: list[Diagnosis] = []
    if await asyncio.to_thread((state.settings.state_dir / "usage" / REFUSED).exists):
        refused = Diagnosis(
            "usage_refused", "warning", "", "The ledger refused some usage records.",
            f"Inspect them, and move the file away: {state.settings.state_dir / 'usage' / REFUSED}",
        )  # fmt: skip
        diagnoses.append(refused)
    try:
        prices = await asyncio.to_thread(list_prices, state.ledger)
        maintained = await asyncio.to_thread(
            health, state.ledger, state.clock.now(), interval=state.settings.ledger_maintenance_interval
        )
        exported = await asyncio.to_thread(read_status, state.ledger, state.clock.now())
        uses = await asyncio.to_thread(used, state.ledger, state.clock.now())
    except LedgerUnavailableError as error:
        return [*diagnoses, ledger_away(error)]
    diagnoses.append(Diagnosis("ledger", "ok", "", "It answers."))
    diagnoses += _maintenance(maintained)
    if state.settings.export_to:
        diagnoses.append(of_exports(exported))
    book = PriceBook(prices)
    diagnoses += _prices(book, state.catalog.engines.values())
    diagnoses += of_merging(state.catalog, uses, book, state.clock.now())
    return diagnoses


def ledger_away(error: LedgerUnavailableError) -> Diagnosis:
    remedy = "Start its database, and check FLORIN_LEDGER_URL."
    if isinstance(error, UnknownSchemaError):
        remedy = "Install the version of Florin that it belongs to again."
    return Diagnosis(
        "ledger", "problem", "", str(error), f"{remedy} Usage waits on this host's disk meanwhile."
    )


def _maintenance(ledger: LedgerHealth) -> Iterator[Diagnosis]:
    if ledger.first is not None:
        yield Diagnosis(
            "set_aside_hours", "problem", ledger.first.engine,
            f"{counted(ledger.set_aside, 'engine-hour is', 'engine-hours are')} set aside and in no report "
            f"or bill; the first is {ledger.first}.",
            "Run `florin cost set-aside` to list them, and `florin cost exclude` to quarantine their "
            "implausible records. Check the engine that reported such counts.",
        )  # fmt: skip
    check = "ledger_maintenance"
    if ledger.trouble:
        yield Diagnosis(
            check, "problem", "", f"The last ledger maintenance failed: {ledger.trouble}",
            "See the gateway's log for the error. Meanwhile, reports roll up on demand, or fail with the "
            "same error.",
        )  # fmt: skip
    elif ledger.late:
        since = "never" if ledger.last_pass is None else f"last at {iso(ledger.last_pass)}"
        yield Diagnosis(
            check, "problem", "", f"Ledger maintenance does not run: {since}.",
            "Check that a gateway runs that can reach Redis, which elects the gateway that does it, and the "
            "ledger; look for \"Ledger maintenance\" in the gateways' logs.",
        )  # fmt: skip
    else:
        yield Diagnosis(check, "ok", "", "Ledger maintenance is up to date.")


def of_exports(status: ExportStatus | None) -> Diagnosis:
    check = "scheduled_export"
    if status is None:
        return Diagnosis(
            check, "warning", "", "The scheduled export has not run in the last two days.",
            'A gateway begins with it when it starts. Look for "Scheduled '
            "export\" in the gateways' logs.",
        )  # fmt: skip
    if status.failure:
        since = "never" if status.current_at is None else f"at {iso(status.current_at)}"
        return Diagnosis(
            check, "problem", "",
            f"The scheduled export fails; it last succeeded {since}. {status.failure}",
            "Check FLORIN_EXPORT_TO, that the gateway may write there, and the prices that are named here.",
        )  # fmt: skip
    return Diagnosis(check, "ok", "", "The scheduled export is up to date.")


def _prices(book: PriceBook, engines: Iterable[Engine]) -> Iterator[Diagnosis]:
    now = time.time_ns() // 1000
    used: dict[tuple[str, str, str], list[str]] = {}
    for engine in engines:
        used.setdefault((engine.gpu_type, engine.region, engine.purchase), []).append(engine.name)
    missing = {key: names for key, names in used.items() if book.rate(*key, now) is None}
    for (gpu_type, region, purchase), names in sorted(missing.items()):
        where = f" in {region}" if region else ""
        yield Diagnosis(
            "price", "warning", gpu_type,
            f"{gpu_type} ({purchase}{where}) has no price now: what runs on {', '.join(sorted(names))} costs "
            "nothing in the reports.",
            f"florin price add --gpu-type {gpu_type} --rate … --purchase {purchase}"
            + (f" --region {region}" if region else ""),
        )  # fmt: skip
    if used and not missing:
        yield Diagnosis("price", "ok", "", "Every GPU in use has a price.")


def of_disk(artifacts: ArtifactStore, largest: int) -> list[Diagnosis]:
    """Blocks. `largest`: bytes that one version may have."""
    root, where = artifacts.root, artifacts.where
    try:
        artifacts.check()
        free, others = shutil.disk_usage(root).free, artifacts.others()
    except OSError as error:
        bad = Diagnosis(
            "artifact_dir", "problem", "",
            f"{error.filename or where} cannot be written: {error.strerror or error}.",
            "Mount it, or give Florin's user the right to write there; FLORIN_ARTIFACT_DIR says where it is, "
            "or FLORIN_ARTIFACT_BUCKET.",
        )  # fmt: skip
        return [bad]
    diagnoses = []
    if others:
        shared = Diagnosis(
            "artifact_dir", "warning", "",
            f"{where} serves {counted(len(others), 'other installation')} too, so files of removed and "
            "retired versions are never deleted.",
            "Give each installation a FLORIN_ARTIFACT_DIR or FLORIN_ARTIFACT_BUCKET of its own. If the other "
            f"is gone for good, remove its mark: {', '.join(str(mark) for mark in others[:3])}.",
        )  # fmt: skip
        diagnoses.append(shared)
    space = f"{root} has {free / 2**30:.1f} GiB free"
    if free < SPARE_VERSIONS * largest:
        low = Diagnosis(
            "artifact_dir", "warning", "",
            f"{space}: too little for {SPARE_VERSIONS} of the largest versions.",
            "Make room: remove or retire unused versions, or move it to a larger disk.",
        )  # fmt: skip
        diagnoses.append(low)
    in_bucket = f"{where} can be written. " if where != str(root) else ""
    return diagnoses or [Diagnosis("artifact_dir", "ok", "", f"{in_bucket}{space}.")]
