"""Delivery to a real receiver that fails in every way; and a deliverer that is killed."""

import asyncio
import json
import signal
import ssl
import sys
import textwrap
from contextlib import asynccontextmanager

import pytest
import trustme

from adapters.store.leader_job import PassFailedError
from adapters.store.protocol.registry import AuditEntry, AuditNote
from gateway.config.settings import SettingsError, load_settings
from gateway.event_streams import receiver, watch
from gateway.event_streams.delivery import LOOK_SECONDS, MOST, EventDelivery
from gateway.event_streams.receiver import CONTENT_TYPE, Receiver
from gateway.event_streams.streams import begin, read_status
from gateway.event_streams.watch import EventWatch
from gateway.metering.ledger.audit_log import logged, ship
from gateway.observability.metrics import Metrics
from tests.support import forms
from tests.support.forking import FORKED
from tests.support.waiting import until
from tests.unit.gateway.event_streams.receiving import KEYS, OLD_SECRET, SECRET, receiving, verified

NOW = 1_790_000_000_000_000


@pytest.fixture
def ledger(ledger_with):
    ledger = ledger_with()
    begin(ledger, "audit", NOW)
    return ledger


def fill(ledger, count, first=0):
    notes = (
        AuditEntry(f"{NOW // 1000}-{first + n}", AuditNote("k", "key.create", f"k{n}")) for n in range(count)
    )
    ship(ledger, [logged(note) for note in notes])


@asynccontextmanager
async def delivering(ledger, url, secrets=SECRET, token=""):
    async with Receiver(url, secrets=secrets, token=token) as to:
        yield EventDelivery("audit", "florin/x", ledger, to, lambda: NOW, Metrics())


async def refused(job):
    """Why the receiver did not take a page, as the job of the leader hears and reports it."""
    with pytest.raises(PassFailedError) as refusal:
        await job.step()
    await job.report(str(refusal.value))
    return refusal.value


def counted(job, name, **labels):
    return job.counters.registry.get_sample_value(name, {"stream": "audit", **labels}) or 0


async def test_events_are_posted_in_order_signed_and_once(ledger):
    fill(ledger, 250)
    async with receiving() as seen, delivering(ledger, seen.url, f"{SECRET} {OLD_SECRET}", "t0ken") as job:
        assert [await job.step() for _ in range(4)] == [0.0, 0.0, LOOK_SECONDS, LOOK_SECONDS]
    assert len(seen.posts) == 3
    assert [int(event["data"]["id"].split("-")[1]) for event in seen.events] == list(range(250))
    assert len(set(seen.ids)) == 250
    headers, body = seen.posts[0]
    assert headers["content-type"] == CONTENT_TYPE
    assert headers["authorization"] == "Bearer t0ken"
    assert headers["webhook-timestamp"] == str(NOW // 10**6)
    assert all(verified(headers, body, key) for key in KEYS)
    assert not verified(headers, body + b" ", KEYS[0])
    assert counted(job, "florin_events_sent_total") == 250
    assert counted(job, "florin_event_posts_total", result="delivered") == 3


@pytest.mark.parametrize("fault", [500, 503, 400, 401, 404, 410, 302, "hang", "cut"])
async def test_what_is_not_taken_waits_and_comes_again_unchanged(ledger, fault, monkeypatch):
    fill(ledger, 3)
    async with receiving() as seen:
        seen.plan = [fault, fault]
        with monkeypatch.context() as hasty:
            if fault == "hang":
                hasty.setattr(receiver, "POST_SECONDS", 0.2)
            async with delivering(ledger, seen.url) as job:
                await refused(job)
                await refused(job)
        assert counted(job, "florin_event_posts_total", result="failed") == 2
        assert seen.posts == []
        status = read_status(ledger, "audit")
        assert status.waiting == 3
        assert status.failure
        assert "/in" not in status.failure  # a URL may hold a secret
        async with delivering(ledger, seen.url) as job:
            await job.step()
        assert len(seen.ids) == 3
        assert {headers["webhook-id"] for headers, _ in [*seen.refused, *seen.posts]} == {
            seen.posts[0][0]["webhook-id"]
        }
        assert (read_status(ledger, "audit").waiting, read_status(ledger, "audit").failure) == (0, "")


async def test_what_was_taken_without_an_answer_comes_again_with_its_ids(ledger):
    fill(ledger, 2)
    async with receiving() as seen, delivering(ledger, seen.url) as job:
        seen.plan = ["lost"]
        await refused(job)
        await job.step()
    assert seen.ids[:2] == seen.ids[2:]


async def test_a_receiver_says_when_to_come_back_within_reason(ledger):
    fill(ledger, 1)
    async with receiving() as seen, delivering(ledger, seen.url) as job:
        seen.plan = [
            (429, {"retry-after": "40"}),
            (503, {"retry-after": "99999999"}),
            (503, {"retry-after": "-1"}),
        ]
        assert [(await refused(job)).at_least for _ in range(3)] == [40, receiver.LONGEST_WAIT, 0]


async def test_a_batch_that_is_too_large_is_halved_until_it_is_taken(ledger):
    fill(ledger, 40)
    async with receiving() as seen, delivering(ledger, seen.url) as job:
        seen.plan = [413, 413]
        assert [await job.step(), await job.step()] == [0.0, 0.0]
        while await job.step() == 0.0:
            pass
        assert [len(json.loads(body)) for _, body in seen.posts] == [10, 20, 10]
        fill(ledger, 1, first=40)
        seen.plan = [413]
        await refused(job)  # a single one cannot be halved
        await job.step()
        assert len(set(seen.ids)) == 41
        assert job._most == MOST


async def test_the_receivers_certificate_is_verified(ledger, monkeypatch, tmp_path):
    fill(ledger, 1)
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    async with receiving(context) as seen, delivering(ledger, seen.url) as job:
        assert "SSL_CERT_FILE" in str(await refused(job))
        assert seen.posts == []


KILLED = FORKED + textwrap.dedent("""
    import asyncio, sys
    from adapters.store.leader_job import LeaderJob
    from gateway.event_streams.delivery import EventDelivery
    from gateway.event_streams.receiver import Receiver
    from gateway.metering.ledger.ledger import Ledger
    from gateway.observability.metrics import Metrics
    from tests.doubles.memory_store import MemoryStore
    to = Receiver(sys.argv[2], secrets=sys.argv[3], token="")
    job = EventDelivery("audit", "florin/x", Ledger(sys.argv[1]), to, lambda: 1, Metrics())
    job._most = 1
    delivery = sys.modules["gateway.event_streams.delivery"]
    delivery.MOST = 1

    async def main():
        async with to:
            await LeaderJob(MemoryStore(), "w", "audit-events", "Delivery", job.step, 1.0).run()

    asyncio.run(main())
""")


async def test_a_deliverer_that_is_killed_loses_nothing(ledger, tmp_path):
    """Wherever it is killed: each event arrives, most once, the one in flight perhaps twice."""
    fill(ledger, 30)
    async with receiving() as seen:
        for kills in range(2 if forms.LONG else 1):
            command = [sys.executable, "-c", KILLED, str(ledger._url), seen.url, SECRET]
            process = await asyncio.create_subprocess_exec(*command)
            await until(lambda kills=kills: len(seen.ids) >= 8 * (kills + 1))
            process.send_signal(signal.SIGKILL)
            await process.wait()
        async with delivering(ledger, seen.url) as job:
            while await job.step() == 0.0:
                pass
    assert len(set(seen.ids)) == 30
    assert len(seen.ids) <= 32
    assert seen.ids == sorted(seen.ids, key=lambda event_id: int(event_id.split("-")[1].split(".")[0]))


async def test_the_watch_says_what_is_late(ledger):
    clock, metrics = [NOW], Metrics()
    watching = EventWatch(["audit"], ledger, lambda: clock[0], metrics)
    await watching.look()
    assert list(watching.conditions()) == []
    fill(ledger, 2)
    clock[0] += int(watch.LATE_SECONDS * 1e6)
    await watching.look()
    assert list(watching.conditions()) == []
    async with receiving() as seen, delivering(ledger, seen.url) as job:
        seen.plan = [500]
        await refused(job)
        clock[0] += 60_000_000
        await watching.look()
        [late] = watching.conditions()
        assert (late.code, late.subject) == ("events_late", "audit")
        assert "6 minutes: status 500" in late.message
        assert metrics.registry.get_sample_value("florin_event_lag_seconds", {"stream": "audit"}) == 360
        await job.step()
        await watching.look()
    assert list(watching.conditions()) == []
    assert metrics.registry.get_sample_value("florin_event_lag_seconds", {"stream": "audit"}) == 0


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"audit_events_to": "https://x.example"}, "FLORIN_AUDIT_EVENTS_TOKEN"),
        ({"usage_events_to": "https://x.example", "audit_events_token": "t"}, "FLORIN_USAGE_EVENTS_TOKEN"),
        ({"audit_events_to": "ftp://x.example", "events_secret": SECRET}, "FLORIN_AUDIT_EVENTS_TO"),
        ({"audit_events_to": "https://u:p4ss@x.example", "events_secret": SECRET}, "without credentials"),
        ({"events_secret": f"{SECRET} whsec_c2hvcnQ="}, "FLORIN_EVENTS_SECRET"),
        ({"usage_events_token": "a\nb"}, "FLORIN_USAGE_EVENTS_TOKEN"),
    ],
)
def test_a_receiver_needs_a_url_and_something_that_tells_who_posts(changes, names):
    with pytest.raises(SettingsError, match=names) as caught:
        load_settings(**changes)
    assert not any(secret in str(caught.value) for secret in ("c2hvcnQ", "p4ss", SECRET))
