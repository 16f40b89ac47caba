"""Commands that bring files: what they ask for, and that a file is there whole or not at all."""

from __future__ import annotations

import json
import stat

import pytest

from gateway.costs.closing.schemas import Month, StatementSums
from tests.support.samples import sample

EXPORT = "/finance/v1/export?month=2026-07&format=focus-1.2&dataset=chargeback"
STATEMENT = "/finance/v1/statements/acme?month=2026-07"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_export_asks_and_writes(fake, here):
    fake.answer("GET", EXPORT, b"a,b\r\n1,2\r\n")
    done = fake.florin("cost", "export", "--month", "2026-07", "--output", "o.csv")
    assert done.exit_code == 0
    assert fake.asked == [("GET", EXPORT, None)]
    assert (here / "o.csv").read_bytes() == b"a,b\r\n1,2\r\n"
    assert "o.csv: 0 rows, 10 bytes." in done.stderr
    assert done.stdout == ""


def test_every_option_is_passed_on(fake):
    path = "/finance/v1/export?month=2026-07&format=focus-1.4&dataset=infrastructure&parquet=true&tenant=acme"
    fake.answer("GET", path, b"PAR1")
    args = ("--format", "focus-1.4", "--dataset", "infrastructure", "--parquet", "--tenant", "acme")
    assert fake.florin("cost", "export", "--month", "2026-07", "-o", "o", *args).exit_code == 0
    assert fake.asked == [("GET", path, None)]


def test_json_says_what_was_written_and_whether_it_lacks_records(fake):
    fake.answer("GET", EXPORT, b"a\r\n")
    fake.headers["x-florin-complete"] = "false"
    done = fake.florin("cost", "export", "--month", "2026-07", "-o", "o.csv", "--json")
    assert json.loads(done.stdout) == {
        "file": "o.csv", "bytes": 3, "rows": 0, "format": "focus-1.2", "dataset": "chargeback", "complete": False,
    }  # fmt: skip
    assert "Incomplete: records are still arriving" in done.stderr


def test_a_statement_has_a_name_of_its_own(fake, here):
    fake.answer("GET", STATEMENT, "ü".encode())
    assert fake.florin("cost", "statement", "--tenant", "acme", "--month", "2026-07").exit_code == 0
    assert (here / "acme-2026-07.html").read_text("utf-8") == "ü"


def test_all_statements_of_a_closed_month_go_to_one_directory(fake, here):
    sums = [sample(StatementSums, tenant=tenant) for tenant in ("acme", "bolt")]
    month = sample(
        Month, month="2026-07", state="closed", start="2026-07-01", to="2026-08-01", statements=sums
    )
    fake.answer("GET", "/finance/v1/periods/2026-07", month)
    for tenant in ("acme", "bolt"):
        fake.answer("GET", f"/finance/v1/statements/{tenant}?month=2026-07&format=csv", tenant.encode())
    done = fake.florin(
        "cost", "statements", "--month", "2026-07", "-o", "july/all", "--format", "csv", "--json"
    )
    assert done.exit_code == 0
    files = sorted((here / "july/all").iterdir())
    assert {file.name: file.read_text() for file in files} == {
        "acme-2026-07.csv": "acme", "bolt-2026-07.csv": "bolt",
    }  # fmt: skip
    assert json.loads(done.stdout)["files"] == [f"july/all/{file.name}" for file in files]
    fake.answer("GET", "/finance/v1/periods/2026-07", month | {"state": "open"})
    refused = fake.florin("cost", "statements", "--month", "2026-07", "-o", "july/none")
    assert refused.exit_code != 0
    assert not (here / "july/none").exists()


def test_a_refusal_leaves_what_was_there(fake, here):
    (here / "o.csv").write_text("old")
    done = fake.florin("cost", "export", "--month", "2026-07", "-o", "o.csv")
    assert (done.exit_code, (here / "o.csv").read_text()) == (1, "old")
    assert "No /finance/v1/export" in done.stderr
    assert len(list(here.iterdir())) == 1


def test_the_file_is_as_readable_as_others(fake, here):
    fake.answer("GET", EXPORT, b"x")
    fake.florin("cost", "export", "--month", "2026-07", "-o", "o.csv")
    (here / "other").touch()
    assert stat.S_IMODE((here / "o.csv").stat().st_mode) == stat.S_IMODE((here / "other").stat().st_mode)
