"""What was changed in the books past Florin is found, whatever it is, and who rewrites the chain meets its anchors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Boolean, Column, Integer, MetaData, Table, Text, false, text, update

from gateway.costs.closing.closing import close
from gateway.costs.closing.requests import request_or_approve
from gateway.costs.periods import month_of
from gateway.costs.policies.standing import first_open_month
from gateway.costs.prices.repricing import opened_at
from gateway.costs.reports.closed_months import one, overview
from gateway.costs.reports.report import Question, cost_report
from gateway.costs.rollups.rollup import roll
from gateway.costs.verification.chain_check import Anchor, anchor_of, verify_chain
from gateway.costs.verification.verify import NotClosedError, verify
from gateway.metering.ledger import chain
from gateway.metering.ledger.audit_log import record
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.engine_hours import mark_dirty
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.retention import prune
from gateway.metering.ledger.schema import ledger_chain, schema
from gateway.metering.ledger.sealed_months import MonthChangedError
from tests.unit.gateway.costs import billed
from tests.unit.gateway.costs.verification.books import MONTH, NOW, fill

SQLITE = ("audit_log_no_update", "audit_log_no_delete", "ledger_chain_no_update", "ledger_chain_no_delete")
PERIOD = "month, state, first_batch, cutoff_batch, closing_at, closed_by, policy, document"
INVOICE = "month, tenant, number, tax_name, tax_micros, due, recorded_at"


@pytest.fixture
def books(ledger_with):
    """Filled books: a copy to tamper with."""
    return ledger_with(fill)


def tamper(ledger: Ledger, *statements: str) -> None:
    """As someone who has the database may: the triggers are put back afterwards."""
    with ledger.write() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SET LOCAL session_replication_role = replica"))
            triggers: dict[str, str] = {}
        else:
            query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"
            triggers = dict(map(tuple, connection.execute(text(query))))
        for name in triggers:
            connection.execute(text(f"DROP TRIGGER {name}"))
        for statement in statements:
            assert connection.execute(text(statement)).rowcount
        for trigger in triggers.values():
            connection.execute(text(trigger))


def failed(ledger, *anchors):
    """Check → what it says."""
    return {check.name: check.detail for check in verify_chain(ledger, anchors).checks if check.ok is False}


NOTHING_OF = {"retention", "credit_draw"}
"""Nothing was pruned, and with its credit line acme has nothing to pay that a credit could be drawn for."""


@pytest.mark.both_databases
def test_on_each_database_what_nobody_touched_is_right_and_what_somebody_did_is_not(ledger):
    fill(ledger)
    right = verify_chain(ledger)
    assert {check.ok for check in right.checks} == {True}
    titles = {kind.title for name, kind in chain.KINDS.items() if name not in NOTHING_OF}
    assert {check.name for check in right.checks} == {"chain", "triggers", *titles}
    tamper(
        ledger,
        "UPDATE periods SET closed_by = 'nobody'",
        "UPDATE audit_log SET actor = 'nobody' WHERE action = 'period.close'",
        "DELETE FROM bill_lines",
    )
    assert failed(ledger).keys() == {"closed months", "audit log", "bills"}


@pytest.mark.parametrize(
    ("statement", "check", "says"),
    [
        ("UPDATE periods SET state = 'open'", "closed months", "2026-11 was changed"),
        ("UPDATE periods SET closed_at = closed_at - 1", "closed months", "2026-11 was changed"),
        ("UPDATE invoices SET tax_micros = 7", "invoices", "2026-11 acme was changed"),
        ("UPDATE invoices SET number = 'B-2'", "invoices", "2026-11 acme was changed"),
        (
            f"INSERT INTO invoices ({INVOICE}) VALUES ('2026-11', 'bolt', 'X', '', 0, '', 1)",
            "invoices",
            "2026-11 bolt was added past Florin",
        ),
        ("UPDATE invoice_documents SET content = '' WHERE form = 'csv'", "issued documents", "A-1 was changed"),
        ("DELETE FROM invoice_documents WHERE form = 'json'", "issued documents", "A-1 was changed"),
        ("UPDATE manual_lines SET cents = 1", "manual lines", "1 was changed"),
        ("DELETE FROM manual_lines", "manual lines", "1 is missing"),
        ("UPDATE close_requests SET requested_by = 'nobody'", "requests to close", "2026-11 was changed"),
        ("UPDATE quarantine SET dismissed_by = 'nobody'", "dismissals", "r9 was changed"),
        ("UPDATE quarantine SET dismissed_at = NULL", "dismissals", "r9 is missing"),
        ("DELETE FROM true_ups", "true-ups", "2026-11 is missing"),
        ("UPDATE bill_acceptances SET \"by\" = 'nobody'", "acceptances", "2026-11 was changed"),
        ("UPDATE bill_lines SET cost = '1.00'", "bills", "was changed"),
        ("UPDATE exchange_rates SET rate_nanos = 1", "exchange rates", "USD EUR was changed"),
        ("UPDATE prices SET rate_micros = 1", "price book", "H100 on_demand was changed"),
        ("UPDATE rate_cards SET batch_percent = 50", "rate cards", "standard was changed"),
        ("UPDATE rate_card_assignments SET valid_from = '2027-01'", "card assignments", "acme was changed"),
        ("UPDATE standing_policies SET policy = 'none'", "policies", "the default was changed"),
        ("UPDATE commitments SET withdrawn_at = 1", "commitments", "1 was changed"),
        ("UPDATE calibrations SET decode_ps = 0", "calibrations", "H100 other was changed"),
        (
            "INSERT INTO ledger_state (name, value) VALUES ('pruned_before', 1)",
            "retention",
            "pruned_before was added past Florin",
        ),
        ("UPDATE audit_log SET details = '{}' WHERE action = 'invoice.add'", "audit log", "invoice.add 2026-11/acme"),
        ("DELETE FROM audit_log WHERE action = 'period.close'", "audit log", "is missing"),
        (
            "INSERT INTO audit_log SELECT 'forged', digest, 1, 1, actor, action, subject, '', '' FROM audit_log LIMIT 1",
            "audit log",
            "1 entry was added past Florin, like forged",
        ),
        ("DELETE FROM ledger_chain WHERE number = 3", "chain", "entry 4 follows entry 2"),
        ("UPDATE ledger_chain SET content = '' WHERE kind = 'bill'", "chain", "was changed"),
    ],
)  # fmt: skip
def test_whatever_is_changed_is_found(books, statement, check, says):
    tamper(books, statement)
    wrong = failed(books)
    assert says in wrong[check]
    assert check == "chain" or wrong.keys() == {check}


UNDER_SEALS = "its month's seal covers it"
MEASURED = "recorded by machines until the month is closed; its roll-ups are under the month's seal"
OF_SERVICE = "no money follows from it"
NOT_CHAINED = {
    **dict.fromkeys(
        ("period_tenants", "period_residency", "period_dedicated", "rollups", "rollup_parts"), UNDER_SEALS
    ),
    **dict.fromkeys(
        ("daily_rollups", "daily_parts", "unsummed_days"), "sums of roll-ups, which `verify` compares"
    ),
    **dict.fromkeys(("usage_records", "usage_names", "usage_places", "usage_tenants"), UNDER_SEALS),
    **dict.fromkeys(("engine_spans", "engine_counters", "engine_probes", "residency_spans"), MEASURED),
    **dict.fromkeys(("engine_hours", "dirty_hours", "set_aside_hours"), MEASURED),
    **dict.fromkeys(
        ("cost_budgets", "cost_alerts", "gpu_power", "grid_factors", "scheduled_exports"), OF_SERVICE
    ),
    **dict.fromkeys(("files", "file_chunks", "batches", "batch_results", "evaluations"), OF_SERVICE),
    **dict.fromkeys(("event_streams", "audit_outbox", "snapshots"), OF_SERVICE),
    "ledger_chain": "it is the chain",
}
"""Table → why the chain does not have what is written to it."""


def test_every_table_is_in_the_chain_or_need_not_be():
    chained = {kind.table.name for kind in chain.KINDS.values()}
    assert not chained & NOT_CHAINED.keys()
    assert chained | NOT_CHAINED.keys() == {table.name for table in schema.tables.values()}


def test_a_request_to_close_that_florin_did_not_write_is_none(books):
    tamper(books, "UPDATE close_requests SET requested_by = 'key:forged'")
    assert not request_or_approve(books, MONTH, "{}", now=NOW, actor="key:fk1")
    assert failed(books) == {}, "it is requested anew"
    assert request_or_approve(books, MONTH, "{}", now=NOW, actor="key:fk2")


@pytest.mark.parametrize("trigger", SQLITE)
def test_a_dropped_trigger_is_found(books, trigger):
    with books.write() as connection:
        connection.execute(text(f"DROP TRIGGER {trigger}"))
    assert failed(books) == {"triggers": f"Dropped or switched off: {trigger}."}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE periods SET state = 'open'",
        "UPDATE periods SET state = 'closing'",
        "DELETE FROM periods",
        f"INSERT INTO periods ({PERIOD}) SELECT '2026-12', {PERIOD.removeprefix('month, ')} FROM periods",
    ],
)
def test_an_edited_row_neither_reopens_nor_closes_a_month(books, statement):
    tamper(books, statement)
    name = "2026-12" if statement.startswith("INSERT") else MONTH
    assert {m["month"]: m["state"] for m in overview(books, NOW)}[name] == "changed"
    assert one(books, name, NOW)["state"] == "changed"
    question = Question(month_of(name), ("tenant",))
    for refused in (
        lambda: close(books, name, now=NOW, by="fk1"),
        lambda: cost_report(books, question, now=NOW),
        lambda: prune(books, NOW * 2, 1),
        lambda: mark_and_roll(books),
    ):
        with pytest.raises(MonthChangedError, match=f"{name} in the ledger is not as it was recorded"):
            refused()
    if name == MONTH:
        with pytest.raises(NotClosedError, match=f"{name} was closed, and is not as it was recorded"):
            verify(books, name)
    for writes_after in (opened_at, first_open_month):
        with books.read() as connection, pytest.raises(MonthChangedError):
            writes_after(connection)


def mark_and_roll(ledger):
    with ledger.write() as connection:
        mark_dirty(connection, [(billed.NOVEMBER.start, "a", "H100", 1)])
    roll(ledger, NOW)


def test_a_deleted_record_is_not_excused_by_a_mark_that_no_retention_set(books):
    tamper(
        books,
        "DELETE FROM usage_records",
        f"INSERT INTO ledger_state (name, value) VALUES ('pruned_before', {NOW})",
    )
    [november] = verify(books)
    assert {check.name for check in november.checks if check.ok is False} >= {"retention", "records"}


def test_what_the_retention_pruned_is_right(books):
    assert prune(books, NOW * 2, 1).records == 1
    assert failed(books) == {}
    [november] = verify(books)
    assert [check.name for check in november.checks if check.ok is not True] == ["records"]


def rewrite(ledger: Ledger, first: int) -> None:
    """Give all entries from a number on the hashes that they need, and those of the rows as they are now."""
    with ledger.write() as connection:
        rows = connection.execute(ledger_chain.select().order_by(ledger_chain.c.number)).mappings().all()
        before = ""
        for row in rows:
            if row["number"] >= first:
                key = chain.KINDS[row["kind"]]
                now = dict(key.subjects(connection)).get(row["subject"], "")
                values = {"content": now}
                values["hash"] = chain.entry_hash(before, row["number"], row["kind"], row["subject"], now)
                where = ledger_chain.c.number == row["number"]
                connection.execute(update(ledger_chain).where(where).values(values))
                before = values["hash"]
            else:
                before = row["hash"]


def test_who_rewrites_the_chain_meets_an_anchor_that_was_kept_elsewhere(books):
    anchor = anchor_of(books)
    assert failed(books, anchor) == {}
    with books.write() as connection:
        record(connection, "key:fk1", "price.add", "H100", {}, NOW)
    assert failed(books, anchor) == {}  # it has grown since
    with books.write() as connection:
        for trigger in SQLITE:
            connection.execute(text(f"DROP TRIGGER {trigger}"))
    tamper(books, "UPDATE invoices SET number = 'B-2'")
    rewrite(books, 1)
    assert failed(books).keys() == {"triggers"}
    assert "what is before it was rewritten" in failed(books, anchor)["anchor"]


def test_a_chain_that_was_cut_off_is_shorter_than_its_anchor(books):
    anchor = anchor_of(books)
    tamper(
        books,
        "DELETE FROM ledger_chain WHERE number >= (SELECT max(number) FROM ledger_chain) - 2",
        "DELETE FROM audit_log WHERE action = 'invoice.add'",
        "DELETE FROM invoices",
        "DELETE FROM invoice_documents",
    )
    assert failed(books) == {}
    assert failed(books, Anchor(1, "0" * 64), anchor)["anchor"].count(";") == 1


@pytest.mark.both_databases
def test_what_is_written_at_once_is_one_chain(ledger):
    def write(writer):
        for n in range(8):
            with ledger.write() as connection:
                record(connection, f"key:{writer}", "price.add", "H100", {"n": n}, NOW)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    chained = verify_chain(ledger)
    assert (chained.ok, chained.entries) == (True, 32)


@pytest.mark.both_databases
def test_the_database_itself_refuses_to_rewrite_the_books(ledger):
    with ledger.write() as connection:
        connection.execute(text("INSERT INTO audit_log VALUES ('1-1', 'd', 1, 1, 'a', 'b', 'c', '', '{}')"))
        chain.adopt(connection)
    for table in ("ledger_chain", "audit_log"):
        with (
            pytest.raises(LedgerUnavailableError, match=f"{table} is append-only"),
            ledger.write() as connection,
        ):
            connection.execute(text(f"DELETE FROM {table}"))


def test_a_column_that_a_later_release_adds_changes_no_entry():
    def books(*columns):
        return Table("books", MetaData(), Column("id", Integer, primary_key=True), *columns)

    later = books(
        Column("note", Text),
        Column("percent", Integer, server_default="100"),
        Column("withdrawn", Boolean, server_default=false()),
        Column("category", Text, server_default=text("'usage'")),
    )
    row = {"id": 1, "note": None, "percent": 100, "withdrawn": False, "category": "usage"}
    before = chain.content(books(), [{"id": 1}])
    assert chain.content(later, [row]) == before
    for change in ({"note": ""}, {"percent": 0}, {"withdrawn": True}, {"category": "tax"}):
        assert chain.content(later, [row | change]) != before


def test_a_row_that_the_ledger_had_before_the_chain_is_adopted_once(books):
    """As in an upgrade."""
    tamper(books, "DELETE FROM ledger_chain")
    assert "closed months" in failed(books)
    for _ in range(2):
        with books.write() as connection:
            chain.adopt(connection)
        assert failed(books) == {}
    tamper(books, "UPDATE true_ups SET at = 1")
    with books.write() as connection:
        chain.adopt(connection)
    assert failed(books).keys() == {"true-ups"}
