"""Scheduled exports into a bucket of a real S3-protocol server: replays, refusals, and a kill in the middle."""

import asyncio
import itertools
import json
import threading
from functools import partial

import pytest

from adapters.sources.options import FetchOptions
from adapters.store.leader_job import LeaderJob
from gateway.composition.background import cancel_task
from gateway.costs.maintenance.export_job import ScheduledExports
from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.costs.rollups.rollup import roll
from gateway.costs.scheduled_exports.destination import DestinationError, put
from gateway.costs.scheduled_exports.status import export_series, read_status
from gateway.costs.scheduled_exports.writing import Room
from gateway.metering.ledger.ledger import Ledger
from tests.doubles.memory_store import MemoryStore
from tests.support.hostile_http import hostile_server
from tests.support.s3 import SECRET, contents, new_bucket, s3_server, set_environment
from tests.unit.gateway.costs.month import fill
from tests.unit.gateway.costs.scheduled_exports.test_scheduled_exports import (
    DATA,
    MANIFEST,
    NOW,
    held,
    schedule,
)

QUICK = FetchOptions(max_bytes=0, stall_seconds=5, attempts=2, pause_seconds=0.01)


@pytest.fixture(scope="module")
def endpoint():
    with s3_server() as url:
        yield url


@pytest.fixture
def bucket(monkeypatch, tmp_path, endpoint):
    set_environment(monkeypatch, tmp_path, endpoint)
    with new_bucket(endpoint) as client:
        yield client


@pytest.fixture
def filled(tmp_path):
    made = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    fill(made)
    roll(made, NOW)  # as maintenance does: only then is it known that there are months
    yield made
    made.close()


class InThread(LedgerProcess):
    """Does without the second that a process takes to start."""

    def __init__(self, ledger):
        super().__init__("sqlite://")
        self.ledger = ledger

    async def run(self, function, *args):
        return await asyncio.to_thread(function, self.ledger, *args)


def exports(ledger, to, tmp_path, *, open_process=None):
    folder = tmp_path / "room"
    folder.mkdir(exist_ok=True)
    return ScheduledExports(
        ledger, open_process or partial(InThread, ledger), schedule(to), Room(folder, 1 << 30),
        itertools.count(NOW).__next__,
    )  # fmt: skip


async def test_exports_go_into_the_bucket_and_a_replay_changes_nothing(bucket, filled, tmp_path):
    export = exports(filled, f"s3://{bucket.name}/finops/florin", tmp_path)
    await export.work()
    await export.report("")
    objects = contents(bucket)
    assert sorted(objects) == sorted(
        f"finops/florin/{name.format(month)}" for name in (DATA, MANIFEST) for month in ("2026-10", "2026-11")
    )
    manifest = json.loads(objects[f"finops/florin/{MANIFEST.format('2026-10')}"])
    assert manifest["files"][0]["bytes"] == len(objects[f"finops/florin/{DATA.format('2026-10')}"])
    assert read_status(filled, NOW).failure == ""
    assert export_series(filled, NOW)["florin_scheduled_export_failing"] == [((), 0.0)]
    # A worker that was killed before it could write down what it had done does it again.
    await export.work()
    assert contents(bucket) == objects


async def test_what_fails_is_said_and_passes(bucket, filled, tmp_path, caplog):
    there, missing = f"s3://{bucket.name}/x", "s3://no-such-bucket-at-all/x"
    export = exports(filled, missing, tmp_path)
    job = LeaderJob(MemoryStore(), "w", "exports", "The export", export.work, 1.0, report=export.report)
    await job.attempt()
    assert "The bucket does not exist. (no-such-bucket-at-all" in job.failure
    assert read_status(filled, NOW).failure == job.failure
    assert export_series(filled, NOW)["florin_scheduled_export_failing"] == [((), 1.0)]
    assert SECRET not in caplog.text
    export.schedule = schedule(there)
    await job.attempt()
    assert job.failure == ""
    assert read_status(filled, NOW).failure == ""
    assert len(contents(bucket)) == 4


def test_wrong_credentials(bucket, tmp_path, monkeypatch):
    source = tmp_path / "x"
    source.write_text("x")
    with hostile_server() as server:
        server.handlers["/bucket/a"] = lambda request: request.answer(
            b"<Error><Code>SignatureDoesNotMatch</Code></Error>", status=403
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        with pytest.raises(DestinationError, match=r"denies .* \(SignatureDoesNotMatch"):
            put("s3://bucket", {"a": source}, QUICK)


def test_a_store_that_is_away_for_a_moment(bucket, tmp_path, monkeypatch):
    source = tmp_path / "x"
    source.write_text("x")
    with hostile_server() as server:
        asked = []

        def twice(request):
            asked.append(request.count)
            request.answer(b"", status=503 if request.count < 2 else 200, etag='"e"')

        server.handlers["/bucket/a"] = twice
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        put("s3://bucket", {"a": source}, QUICK)
        assert asked == [0, 1, 2]


async def test_killed_in_the_middle_of_an_upload(bucket, endpoint, filled, tmp_path, monkeypatch):
    begun = threading.Event()

    def hang(request):
        begun.set()
        request.stall()

    with hostile_server() as server:
        server.handlers[f"/{bucket.name}/x/{DATA.format('2026-10')}".replace("=", "%3D")] = hang
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        process = partial(LedgerProcess, url, patience=0.0)
        export = exports(filled, f"s3://{bucket.name}/x", tmp_path, open_process=process)
        task = asyncio.create_task(export.work())
        assert await asyncio.to_thread(begun.wait, 60)
        await cancel_task(task)
    assert contents(bucket) == {}
    assert held(filled) == []
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    await exports(filled, f"s3://{bucket.name}/x", tmp_path).work()
    assert len(contents(bucket)) == 4
