"""Scheduled exports into a directory: what is due, what is written, and what stays as it is."""

import csv
import gzip
import hashlib
import json

import pytest
from pydantic import ValidationError
from sqlalchemy import select

from gateway.config.exports import ExportSettings
from gateway.costs.closing.closing import close
from gateway.costs.export.files import export
from gateway.costs.maintenance.snapshot import write_snapshot
from gateway.costs.scheduled_exports import destination, writing
from gateway.costs.scheduled_exports.destination import DestinationError, put
from gateway.costs.scheduled_exports.layout import Schedule, Written, due
from gateway.costs.scheduled_exports.status import EXPORTS, ExportStatus, export_series, read_status
from gateway.costs.scheduled_exports.writing import Room, due_now, write_due
from gateway.installation.doctor.operations.installation_checks import of_exports
from gateway.metering.ledger.schema import audit_log, scheduled_exports
from gateway.units import DAY, HOUR
from tests.support.ledger_rows import price
from tests.unit.gateway.costs.month import DECEMBER, NOVEMBER, fill, records

EVERY = 6 * HOUR
NOW = NOVEMBER + 5 * HOUR
DATA = "data/BILLING_PERIOD={}/florin-chargeback-focus-1.2-daily.csv.gz"
MANIFEST = "metadata/BILLING_PERIOD={}/florin-chargeback-focus-1.2-daily-Manifest.json"


def schedule(to, **options):
    defaults = {
        "every": EVERY, "dataset": "chargeback", "format": "focus-1.2", "granularity": "daily",
        "file": "csv.gz", "issuer": "Florin",
    }  # fmt: skip
    return Schedule(to=str(to), **(defaults | options))


@pytest.fixture
def room(tmp_path):
    folder = tmp_path / "room"
    folder.mkdir()
    yield Room(folder, 1 << 30)
    assert list(folder.iterdir()) == []


@pytest.fixture
def bucket(tmp_path):
    return tmp_path / "a bucket"


def held(ledger):
    with ledger.read() as connection:
        return [Written(**row) for row in connection.execute(select(scheduled_exports)).mappings()]


def written(bucket):
    return {str(p.relative_to(bucket)): p.read_bytes() for p in bucket.rglob("*") if p.is_file()}


def test_a_month_is_due_until_it_is_exported_closed():
    def row(state, at):
        return Written("x", "2026-10", state, "", 0, 0, at, at)

    october, november = ("2026-10", "closed"), ("2026-11", "open")
    assert list(due([october, november], {}, NOW, EVERY)) == [october, november]
    both = {"2026-10": row("closed", 0), "2026-11": row("open", NOW - EVERY + 1)}
    assert list(due([october, november], both, NOW, EVERY)) == []
    assert list(due([october, november], both, NOW + 1, EVERY)) == [november]
    assert list(due([october, ("2026-11", "closed")], both, NOW, EVERY)) == [("2026-11", "closed")]


def test_months_as_their_own_tools_write_them(ledger, bucket, room, tmp_path):
    fill(ledger)
    close_october(ledger)
    assert write_due(ledger, schedule(bucket.as_uri()), NOW, room) == []
    files = written(bucket)
    assert sorted(files) == sorted(
        name.format(m) for m in ("2026-10", "2026-11") for name in (DATA, MANIFEST)
    )
    for month, state in (("2026-10", "closed"), ("2026-11", "open")):
        data = files[DATA.format(month)]
        asked = tmp_path / "asked"
        asked.touch()
        rows = export(ledger, schedule("file:///x").order(month), asked)
        assert gzip.decompress(data) == asked.read_bytes()
        assert len(list(csv.reader(asked.read_text().splitlines()))) == rows + 1 > 1
        manifest = json.loads(files[MANIFEST.format(month)])
        assert (manifest["billing_period"], manifest["state"]) == (month, state)
        assert manifest["files"] == [
            {
                "name": DATA.format(month),
                "rows": rows,
                "bytes": len(data),
                "sha256": hashlib.sha256(data).hexdigest(),
            }
        ]
    with ledger.read() as connection:
        noted = connection.execute(select(audit_log.c.subject).where(audit_log.c.action == "export.write"))
        assert sorted(noted.scalars()) == ["2026-10", "2026-11"]


def close_october(ledger):
    close(ledger, "2026-10", now=NOVEMBER + 2 * HOUR, by="k1", policy="none", force=True)


def test_nothing_is_written_of_what_is_not_rolled_up_yet(ledger, bucket, room, monkeypatch):
    """A machine that is too slow today: a part of the month would be taken for all of it."""
    fill(ledger)
    monkeypatch.setattr(writing, "_ROLL_SECONDS", 0.0)
    [failed] = write_due(ledger, schedule(bucket.as_uri()), NOW, room)
    assert failed.endswith("engine-hours are not rolled up yet.")
    assert not bucket.exists()
    monkeypatch.undo()
    assert write_due(ledger, schedule(bucket.as_uri()), NOW, room) == []
    assert written(bucket)


def test_parquet(ledger, bucket, room):
    fill(ledger)
    assert write_due(ledger, schedule(bucket.as_uri(), file="parquet"), NOW, room) == []
    assert [c[:4] for name, c in written(bucket).items() if name.endswith(".parquet")] == [b"PAR1"] * 2


def test_rewritten_while_open_and_final_once_closed(ledger, bucket, room):
    fill(ledger)
    plan = schedule(bucket.as_uri())
    write_due(ledger, plan, NOW, room)
    first, at = written(bucket), {row.month: row for row in held(ledger)}
    assert due_now(ledger, plan, NOW + EVERY - 1) == []
    assert write_due(ledger, plan, NOW + EVERY, room) == []  # nothing new: nothing is written
    assert written(bucket) == first
    assert {r.month: (r.written_at, r.checked_at) for r in held(ledger)} == {
        month: (row.written_at, NOW + EVERY) for month, row in at.items()
    }
    ledger.insert(records(9, NOVEMBER, 5))
    write_due(ledger, plan, NOW + 2 * EVERY, room)
    second = written(bucket)
    assert {name for name in first if first[name] != second[name]} == {
        DATA.format("2026-11"),
        MANIFEST.format("2026-11"),
    }
    close_october(ledger)
    assert due_now(ledger, plan, NOW + 2 * EVERY) == [("2026-10", "closed")]
    write_due(ledger, plan, NOW + 2 * EVERY, room)
    final = written(bucket)
    assert json.loads(final[MANIFEST.format("2026-10")])["state"] == "closed"
    ledger.insert(records(8, NOVEMBER - 4 * HOUR, 5))  # late: it is posted to November
    write_due(ledger, plan, DECEMBER + HOUR, room)
    assert written(bucket)[DATA.format("2026-10")] == final[DATA.format("2026-10")]
    assert written(bucket)[DATA.format("2026-11")] != final[DATA.format("2026-11")]
    assert read_status(ledger, NOW) is None
    write_snapshot(ledger, EXPORTS, DECEMBER, "away")
    assert read_status(ledger, DECEMBER + 2 * DAY) == ExportStatus("away", DECEMBER + HOUR)
    assert export_series(ledger, DECEMBER)["florin_scheduled_export_failing"] == [((), 1.0)]
    assert export_series(ledger, DECEMBER + 2 * DAY + 1) == {}, "nothing is exported any more"


def test_one_month_that_fails_holds_up_no_other(ledger, bucket, room):
    fill(ledger, prices=False)
    price(ledger, "H100", "2.49")
    price(ledger, "L40", "0.7", NOVEMBER)
    [failed] = write_due(ledger, schedule(bucket.as_uri()), NOW, room)
    assert failed.startswith("2026-10: No price for L40")
    assert sorted(written(bucket)) == [DATA.format("2026-11"), MANIFEST.format("2026-11")]
    assert due_now(ledger, schedule(bucket.as_uri()), NOW) == [("2026-10", "open")]


def test_a_file_that_is_too_large_or_has_no_place(ledger, bucket, room, tmp_path):
    fill(ledger)
    plan = schedule(bucket.as_uri())
    assert write_due(ledger, plan, NOW, Room(room.folder, 100)) == [
        f"{month}: the file exceeds FLORIN_EXPORT_MAX_BYTES." for month in ("2026-10", "2026-11")
    ]
    (tmp_path / "file").write_text("in the way")
    nowhere = schedule((tmp_path / "file").as_uri())
    assert all("cannot be written" in failed for failed in write_due(ledger, nowhere, NOW, room))
    assert written(bucket) == {}
    assert held(ledger) == []


def test_a_write_that_breaks_off_leaves_the_earlier_file(bucket, tmp_path, monkeypatch):
    one, two = tmp_path / "1", tmp_path / "2"
    one.write_text("one")
    two.write_text("two")
    put(bucket.as_uri(), {"a": one})

    def full(_source, target):
        target.write(b"t")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(destination.shutil, "copyfileobj", full)
    with pytest.raises(DestinationError, match="No space left"):
        put(bucket.as_uri(), {"a": two})
    assert written(bucket) == {"a": b"one"}


@pytest.mark.parametrize(
    "text",
    [
        "bucket", "s3:///x", "s3://key:secret@bucket/x", "https://bucket/x", "file://host/x", "file:///a/../b",
        "s3://bucket/a?versionId=1", "s3://bucket/a b", "s3://bucket/../x",
    ],
)  # fmt: skip
def test_what_is_no_destination(text):
    with pytest.raises(ValidationError, match="must be s3://BUCKET/PREFIX or file:///DIRECTORY"):
        ExportSettings(export_to=text)


def test_cloudzero_reads_a_drop_that_a_manifest_names(ledger, bucket, room):
    """https://docs.cloudzero.com/docs/anycost-cbf-drop-specs"""
    fill(ledger)
    close_october(ledger)
    to = schedule(bucket.as_uri(), format="cloudzero")
    assert write_due(ledger, to, NOW, room) == []
    first = written(bucket)
    drops = {name.split("/")[1] for name in first if name.endswith(".gz")}
    [drop] = drops
    assert drop == "20261101T050000Z"
    assert sorted(first) == [
        "20261001-20261101/20261101T050000Z/florin.csv.gz", "20261001-20261101/manifest.json",
        "20261101-20261201/20261101T050000Z/florin.csv.gz", "20261101-20261201/manifest.json",
    ]  # fmt: skip  # a month a line
    assert json.loads(first["20261101-20261201/manifest.json"]) == {
        "version": "1.3.0",
        "current_drop_id": drop,
    }
    assert write_due(ledger, to, NOW + EVERY, room) == []
    assert written(bucket) == first, "nothing has changed, so nothing is read again"
    ledger.insert(records(9, NOVEMBER, 20))
    assert write_due(ledger, to, NOW + 2 * EVERY, room) == []
    second = written(bucket)
    assert {name: data for name, data in second.items() if name in first and "20261001" in name[:9]} == {
        name: data for name, data in first.items() if "20261001" in name[:9]
    }
    now = json.loads(second["20261101-20261201/manifest.json"])["current_drop_id"]
    assert f"20261101-20261201/{now}/florin.csv.gz" in second.keys() - first.keys()


@pytest.mark.parametrize(
    "wrong",
    [{"export_to": "s3://finops"}, {"export_to": "s3://finops/florin", "export_file": "parquet"}],
)
def test_what_cloudzero_cannot_read_is_no_setting(wrong):
    with pytest.raises(ValidationError):
        ExportSettings(export_format="cloudzero", **wrong)
    assert ExportSettings(export_format="cloudzero", export_to="s3://finops/florin")


@pytest.mark.parametrize(
    ("status", "level", "said"),
    [
        (None, "warning", "has not run"),
        (ExportStatus("", NOW), "ok", "up to date"),
        (ExportStatus("2026-10: No price for L40", None), "problem", "never. 2026-10: No price"),
        (ExportStatus("away", NOW), "problem", "2026-11-01T05:00:00Z. away"),
    ],
)
def test_what_the_doctor_says(status, level, said):
    found = of_exports(status)
    assert (found.status, said in found.message) == (level, True)


def test_more_rows_than_cloudzero_takes_are_refused(ledger, bucket, room, monkeypatch):
    monkeypatch.setattr(writing, "MOST_CLOUDZERO_ROWS", 3)
    fill(ledger)
    failed = write_due(ledger, schedule(bucket.as_uri(), format="cloudzero"), NOW, room)
    assert "FLORIN_EXPORT_GRANULARITY=daily" in failed[0]
    assert written(bucket) == {}
