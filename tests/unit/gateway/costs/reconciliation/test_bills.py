"""Imports of bills, on each kind of database."""

import pickle

import pytest

from gateway.costs.periods import month_of
from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import (
    BillConflictError,
    BillNotFoundError,
    BillRefusedError,
    Mistake,
    import_bill,
    list_bills,
    read_bill,
    remove_bill,
)

HEAD = "start,end,resource,gpu_type,region,purchase,gpu_hours,cost,currency,description\n"
A = "2026-11-01T00:00Z,2026-11-01T01:00Z,a1,H100,,on_demand,1,2.50,USD,\n"
B = "2026-11-01T01:00Z,2026-11-01T02:00Z,a1,H100,,on_demand,1,0.000000000000000001,USD,\n"
BAD = "2026-11-01T01:00Z,2026-11-01T02:00Z,a1,H100,,on_demand,lots,2.50,USD,\n"
NOVEMBER = month_of("2026-11")


@pytest.fixture
def imports(ledger, tmp_path):
    def run(text, *, skip_bad=False, name="nov.csv", now=1, **reading):
        path = tmp_path / "bill"
        path.write_text(text)
        return import_bill(
            ledger, str(path), file_name=name, reading=BillFormat(**reading), skip_bad=skip_bad, now=now
        )

    return run


def held(ledger, within=NOVEMBER):
    with ledger.read() as connection:
        return list(read_bill(connection, within))


def test_a_file_is_imported_once(ledger, imports):
    first, again = imports(HEAD + A + B), imports(HEAD + A + B, name="again.csv", now=2)
    assert (first["lines"], first["new"], again["lines"], again["new"]) == (2, 2, 2, 0)
    assert first["source"] == again["source"]
    assert first["cost"] == {"USD": "2.500000000000000001"}
    assert [line.line for line in held(ledger)] == [2, 3]
    [listed] = list_bills(ledger)
    assert (listed["file_name"], listed["lines"], listed["gpu_hours"]) == ("nov.csv", 2, "2.00")
    assert (listed["from"], listed["to"]) == ("2026-11-01T00:00:00Z", "2026-11-01T02:00:00Z")
    assert listed["cost"] == first["cost"]


def test_nothing_is_imported_unless_all_lines_are_good(ledger, imports):
    with pytest.raises(BillRefusedError) as refused:
        imports(HEAD + A + BAD)
    assert [mistake.where for mistake in refused.value.mistakes] == ["line 3"]
    assert "gpu_hours" in refused.value.mistakes[0].reason
    assert held(ledger) == []
    skipped = imports(HEAD + A + BAD, skip_bad=True)
    assert (skipped["new"], skipped["bad_lines"], skipped["bad"][0]["line"]) == (1, 1, 3)
    assert [line.line for line in held(ledger)] == [2]


def test_one_mistake_in_many_lines_is_told_once(imports):
    """100,000 lines with one mapping mistake printed every line."""
    with pytest.raises(BillRefusedError, match="151 lines are invalid, for 2 reasons; nothing") as refused:
        imports(HEAD + BAD * 150 + A.replace(",USD", ",dollars"))
    most, other = refused.value.mistakes
    assert (most.count, most.where) == (150, "lines 2, 3, 4 and 147 more")
    assert (other.count, other.where) == (1, "line 152")
    assert "'DOLLARS'" in other.reason


def test_the_same_file_read_otherwise_is_a_conflict(ledger, imports):
    imports(HEAD + A)
    with pytest.raises(BillConflictError, match="line 2"):
        imports(HEAD + A, renames={("gpu_type", "H100"): "H200"})
    assert [line.gpu_type for line in held(ledger)] == ["H100"]


def test_an_import_is_removed_by_the_beginning_of_its_name(ledger, imports):
    one, other = imports(HEAD + A)["source"], imports(HEAD + B, now=2)["source"]
    assert [bill["source"] for bill in list_bills(ledger)] == [other, one]
    for wrong in ("", one[:7], "f" * 64, one[:8] + "%"):
        with pytest.raises(BillNotFoundError):
            remove_bill(ledger, wrong)
    assert remove_bill(ledger, one[:8]) == {"source": one, "lines": 1, "trued_up": []}
    assert [bill["source"] for bill in list_bills(ledger)] == [other]


def test_lines_are_read_by_the_time_that_they_touch(ledger, imports):
    imports(HEAD + A.replace("2026-11-01T00:00Z", "2026-10-31T23:00Z") + B)
    assert [line.line for line in held(ledger, month_of("2026-10"))] == [2]
    assert [line.line for line in held(ledger)] == [2, 3]
    assert held(ledger, month_of("2026-12")) == []


def test_a_refusal_comes_whole_out_of_another_process():
    error = pickle.loads(pickle.dumps(BillRefusedError("so", (Mistake("why", 3, [1]),))))  # ours
    assert (error.message, error.mistakes) == ("so", (Mistake("why", 3, [1]),))


def test_a_file_without_lines_or_not_text_is_refused(imports, tmp_path, ledger):
    with pytest.raises(BillRefusedError, match="no line"):
        imports(HEAD)
    path = tmp_path / "other"
    path.write_bytes(HEAD.encode() + b"\xff\xfe\n")
    with pytest.raises(BillRefusedError, match="UTF-8"):
        import_bill(ledger, str(path), file_name="", reading=BillFormat(), skip_bad=True, now=1)
