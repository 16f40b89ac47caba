"""Files and batches, as OpenAI's client uses them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from sqlalchemy import func, select, update

from adapters.store.embedded import EmbeddedValkey
from gateway.batches import line_run
from gateway.batches.line_run import LineRun
from gateway.batches.lines import Line
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import batches, files, quarantine
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_data_plane import HELLO
from tests.integration.test_metering_under_fire import swept
from tests.integration.test_outages import Served
from tests.support.forms import LONG
from tests.support.harness import Gateway, fake_adapter, running_gateway
from tests.support.ledger_rows import batch_leases_lapse
from tests.support.waiting import PATIENCE_S, until

ENDED = {"completed", "failed", "expired", "cancelled"}


def jsonl(count: int, *, model: str = "support", **body: Any) -> bytes:
    lines = [
        {
            "custom_id": f"line-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": model,
                "messages": [{"role": "user", "content": f"Say {number}."}],
                "max_tokens": 3,
                **body,
            },
        }
        for number in range(count)
    ]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


async def submitted(client: AsyncOpenAI, content: bytes, **fields: Any):
    file = await client.files.create(file=("in.jsonl", content), purpose="batch")
    fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"} | fields
    return await client.batches.create(input_file_id=file.id, **fields)


async def ended(client: AsyncOpenAI, batch_id: str):
    async def over() -> Any:
        batch = await client.batches.retrieve(batch_id)
        return batch if batch.status in ENDED else None

    return await until(over)


async def completed(client: AsyncOpenAI, batch_id: str, count: int) -> bool:
    """Whether so many lines are answered."""
    return (await client.batches.retrieve(batch_id)).request_counts.completed >= count


async def lines(client: AsyncOpenAI, file_id: str) -> list[dict[str, Any]]:
    content = await client.files.content(file_id)
    return [json.loads(line) for line in content.text.splitlines()]


async def test_a_batch_is_answered_and_billed_line_by_line(deployment: Deployment):
    async with deployment.gateway.client("acme") as client:
        batch = await submitted(client, jsonl(20), metadata={"night": "1"})
        assert (batch.status, batch.request_counts.total, batch.metadata) == (
            "validating",
            20,
            {"night": "1"},
        )
        batch = await ended(client, batch.id)
        assert batch.status == "completed", batch.errors
        assert (batch.request_counts.completed, batch.request_counts.failed) == (20, 0)
        found = await lines(client, batch.output_file_id)
        assert [line["custom_id"] for line in found] == [f"line-{n}" for n in range(20)]
        assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in found)
        assert batch.error_file_id is None
    records = await deployment.gateway.usage("acme")
    assert {r.service_tier for r in records} == {"batch"}
    assert sorted(r.request_id for r in records if r.billable) == sorted(
        line["response"]["request_id"] for line in found
    )
    used = [line["response"]["body"]["usage"] for line in found]
    assert sum(r.prompt_tokens for r in records) == sum(u["prompt_tokens"] for u in used)
    assert sum(r.completion_tokens for r in records) == sum(u["completion_tokens"] for u in used)
    assert batch.usage.output_tokens == sum(u["completion_tokens"] for u in used)


async def test_the_lines_in_flight_are_bounded_by_their_bytes(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(line_run, "_MOST_BYTES", 600)
    in_flight: list[int] = []
    answer_line = LineRun._line

    async def noting(self: LineRun, line: Line) -> None:
        in_flight.append(self._bytes)
        await answer_line(self, line)

    monkeypatch.setattr(LineRun, "_line", noting)
    async with deployment.gateway.client("acme") as client:
        batch = await ended(client, (await submitted(client, jsonl(20))).id)
    assert batch.request_counts.completed == 20
    assert 300 < max(in_flight) <= 600  # lines of about 170 bytes


async def test_what_is_somebody_elses_is_absent(deployment: Deployment):
    async with deployment.gateway.client("acme") as acme, deployment.gateway.client("bolt") as bolt:
        batch = await submitted(acme, jsonl(2))
        batch = await ended(acme, batch.id)
        assert [f.id async for f in bolt.files.list()] == [b.id async for b in bolt.batches.list()] == []
    async with deployment.gateway.http(deployment.gateway.keys["bolt"]) as http:
        for kind, theirs in (
            ("file", batch.input_file_id),
            ("file", batch.output_file_id),
            ("batch", batch.id),
        ):
            absent = theirs[:-4] + "0000"
            paths = [(m, f"/v1/{kind}{'es' if kind == 'batch' else 's'}/%s{end}") for m, end in WAYS[kind]]
            for method, path in paths:
                answers = []
                for wanted in (theirs, absent):
                    answer = await http.request(method, path % wanted)
                    assert answer.status_code == 404, (method, path)
                    answers.append(answer.content.replace(wanted.encode(), b"ID"))
                assert answers[0] == answers[1]
        body = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
        answers = [
            (await http.post("/v1/batches", json=body | {"input_file_id": wanted})).content.replace(
                wanted.encode(), b"ID"
            )
            for wanted in (batch.input_file_id, "file-" + "0" * 24, batch.output_file_id)
        ]
        assert len(set(answers)) == 1
        assert b"No such File object" in answers[0]


WAYS = {
    "file": [("GET", ""), ("GET", "/content"), ("DELETE", "")],
    "batch": [("GET", ""), ("POST", "/cancel")],
}


async def test_a_key_with_narrow_scopes_sees_its_own_files_only(deployment: Deployment):
    gateway = deployment.gateway
    async with gateway.http() as http:
        made = await http.post(
            "/admin/v1/keys",
            json={"tenant": "acme", "role": "tenant", "scopes": {"adapters": ["support"]}},
        )
        gateway.keys["narrow"] = made.json()["key"]
        made = await http.post(
            "/admin/v1/keys",
            json={"tenant": "acme", "role": "tenant", "scopes": {"read_only": True}},
        )
        gateway.keys["reader"] = made.json()["key"]
    async with gateway.client("acme") as acme, gateway.client("narrow") as narrow:
        theirs = await acme.files.create(file=("a.jsonl", b"{}"), purpose="batch")
        own = await narrow.files.create(file=("b.jsonl", b"{}"), purpose="batch")
        assert [f.id async for f in narrow.files.list()] == [own.id]
        with pytest.raises(openai.NotFoundError):
            await narrow.files.retrieve(theirs.id)
        assert {f.id async for f in acme.files.list()} == {own.id, theirs.id}
    async with gateway.client("reader") as reader:
        assert len([f async for f in reader.files.list()]) == 2
        with pytest.raises(openai.PermissionDeniedError):
            await reader.files.delete(theirs.id)
        with pytest.raises(openai.PermissionDeniedError):
            await submitted(reader, b"{}")


async def test_rubbish_is_refused_line_by_line(deployment: Deployment):
    """`tests/unit/gateway/batches/test_lines.py` has what may be wrong with a line."""
    good = json.loads(jsonl(1))
    wrong = [
        b"{",
        json.dumps(good | {"body": good["body"] | {"stream": True}}).encode(),
        json.dumps(good | {"custom_id": "m", "body": good["body"] | {"model": "bolt/support"}}).encode(),
        json.dumps(good | {"custom_id": "n", "body": good["body"] | {"model": "nothing"}}).encode(),
    ]
    content = b"\n".join([json.dumps(good).encode(), b"", *wrong])
    async with deployment.gateway.client("acme") as client:
        batch = await ended(client, (await submitted(client, content)).id)
        assert (batch.status, batch.request_counts.total) == ("failed", 0)
        assert [(e.line, e.code) for e in batch.errors.data] == [
            (3, "invalid_json_line"), (4, "stream_not_supported"), (5, "model_not_found"), (6, "model_not_found"),
        ]  # fmt: skip
        foreign, missing = (e.message for e in batch.errors.data[2:])
        assert foreign.replace("bolt/support", "X") == missing.replace("nothing", "X")
    assert deployment.calls() == []


BAD_FORMS = {
    "no form": ({"content-type": "application/json"}, b"{}", 415),
    "truncated": ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\n", 400),
    "another purpose": ({}, {"file": ("a", b"{}"), "purpose": (None, b"fine-tune")}, 400),
    "an empty file": ({}, {"file": ("a", b""), "purpose": (None, b"batch")}, 400),
}
"""`tests/unit/gateway/batches/routes/test_file_form.py` has more."""


async def test_bad_uploads_leave_nothing(deployment: Deployment):
    gateway = deployment.gateway
    async with gateway.http(gateway.keys["acme"]) as http:
        for case, (headers, content, status) in BAD_FORMS.items():
            sent = {"files": content} if isinstance(content, dict) else {"content": content}
            answer = await http.post("/v1/files", headers=headers, **sent)
            assert answer.status_code == status, (case, answer.text)
            assert (await http.get("/v1/files")).json()["data"] == []
    with gateway.state.ledger.read() as connection:
        assert connection.execute(select(func.count()).select_from(files)).scalar_one() == 0


async def test_an_operator_sees_and_cancels_any_batch(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 30.0})
    async with deployment.gateway.client("acme") as client, deployment.gateway.http() as http:
        batch = await submitted(client, jsonl(3))
        path = f"/admin/v1/batches/{batch.id}"
        [listed] = (await http.get("/admin/v1/batches", params={"tenant": "acme"})).json()["data"]
        assert (listed["id"], listed["tenant"]) == (batch.id, "acme")
        assert (await http.get("/admin/v1/batches", params={"tenant": "bolt"})).json()["data"] == []
        assert (await http.get("/admin/v1/batches/batch_none")).status_code == 404
        assert (await http.post(f"{path}/cancel")).json()["status"] == "cancelling"
        assert (await ended(client, batch.id)).status == "cancelled"
        assert (await http.get(path)).json()["worker"] is None
        assert (await http.post(f"{path}/cancel")).status_code == 409
        [entry] = (await http.get("/admin/v1/audit", params={"action": "batch.cancel"})).json()["data"]
        assert (entry["subject"], entry["actor"], entry["details"]) == (
            batch.id,
            "bootstrap",
            {"tenant": "acme"},
        )


async def test_quotas(valkey_url: str, prefix: str, tmp_path: Path):
    settings = {
        "tenant_files": 3, "tenant_file_bytes": 4000, "max_file_bytes": 3000, "tenant_batches": 2,
        "tenant_batch_lines": 3, "batch_max_lines": 2, "batch_concurrency": 0,
    }  # fmt: skip
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
        await gateway.add_tenant("acme")
        async with gateway.client("acme") as client:
            with pytest.raises(openai.APIStatusError, match="3,000 bytes") as caught:
                await client.files.create(file=("a", b"x" * 3001), purpose="batch")
            assert caught.value.status_code == 413
            one = await client.files.create(file=("a", b"x\nx"), purpose="batch")
            await client.files.create(file=("a", b"x" * 3000), purpose="batch")
            with pytest.raises(openai.APIStatusError, match="4,000 bytes"):
                await client.files.create(file=("a", b"x" * 998), purpose="batch")
            await client.files.create(file=("a", b"x" * 997), purpose="batch")
            with pytest.raises(openai.APIStatusError, match="3 files"):
                await client.files.create(file=("a", b"x"), purpose="batch")
            fields = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
            batch = await client.batches.create(input_file_id=one.id, **fields)
            with pytest.raises(openai.APIStatusError, match="more than its limit of 3 "):
                await client.batches.create(input_file_id=one.id, **fields)
            with pytest.raises(openai.ConflictError, match=batch.id):
                await client.files.delete(one.id)
            # Nothing runs here, so it is another worker that ends it: here, by itself.
            await client.batches.cancel(batch.id)


async def test_a_batch_is_cancelled_in_the_middle(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.05})
    async with deployment.gateway.client("acme") as client:
        batch = await submitted(client, jsonl(300, max_tokens=10))
        await until(lambda: completed(client, batch.id, 10))
        assert (await client.batches.cancel(batch.id)).status == "cancelling"
        batch = await ended(client, batch.id)
        assert batch.status == "cancelled"
        counts = batch.request_counts
        assert counts.completed >= 10
        assert counts.completed + counts.failed == counts.total == 300
        answered = await lines(client, batch.output_file_id)
        unanswered = await lines(client, batch.error_file_id)
        assert {line["error"]["code"] for line in unanswered} == {"batch_cancelled"}
        assert len(answered) == counts.completed
        assert {x["custom_id"] for x in [*answered, *unanswered]} == {f"line-{n}" for n in range(300)}
        with pytest.raises(openai.ConflictError):
            await client.batches.cancel(batch.id)
        await client.files.delete(batch.output_file_id)
        assert len(await lines(client, batch.error_file_id)) == counts.failed
        with pytest.raises(openai.NotFoundError):
            await client.files.content(batch.output_file_id)
    records = await deployment.gateway.usage("acme")
    billed = [r for r in records if r.billable]
    assert {r.request_id for r in billed} == {line["response"]["request_id"] for line in answered}
    assert len(billed) == len(answered)
    assert {r.outcome for r in records if not r.billable} <= {"client_abort"}


async def test_a_batch_expires(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 30.0})
    gateway = deployment.gateway
    async with gateway.client("acme") as client:
        batch = await submitted(client, jsonl(5))
        await until(deployment.calls)
        with gateway.state.ledger.write() as connection:
            connection.execute(update(batches).values(expires_at=1))
        gateway.state.batches.look()
        batch = await ended(client, batch.id)
        assert (batch.status, batch.request_counts.failed) == ("expired", 5)
        found = await lines(client, batch.error_file_id)
        assert {(line["error"]["code"], line["response"]) for line in found} == {("batch_expired", None)}
    assert [r for r in await gateway.usage("acme") if r.billable] == []


async def test_a_batch_fails_once_two_workers_in_a_row_have_stopped_responding(deployment: Deployment):
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 30.0})
    gateway = deployment.gateway
    async with gateway.client("acme") as client:
        batch = await submitted(client, jsonl(5))
        await until(deployment.calls)
        with gateway.state.ledger.write() as connection:
            connection.execute(update(batches).values(owner="frozen", lapses=1, lease_until=1))
        gateway.state.batches.look()
        batch = await ended(client, batch.id)
        assert (batch.status, batch.request_counts.failed) == ("failed", 5)
        assert [error.code for error in batch.errors.data] == ["workers_lost"]
        unanswered = await lines(client, batch.error_file_id)
        assert {line["error"]["code"] for line in unanswered} == {"batch_failed"}
    assert [r for r in await gateway.usage("acme") if r.billable] == []


async def test_lines_wait_for_limits_and_fail_for_mistakes(deployment: Deployment):
    gateway = deployment.gateway
    async with gateway.http() as http:
        answer = await http.patch("/admin/v1/tenants/acme", json={"limits": {"concurrent": 2}})
        assert answer.status_code == 200, answer.text
    content = jsonl(12) + jsonl(1, temperature="hot").replace(b"line-0", b"hot")
    async with gateway.client("acme") as client:
        batch = await ended(client, (await submitted(client, content)).id)
        assert (batch.status, batch.request_counts.completed, batch.request_counts.failed) == (
            "completed",
            12,
            1,
        )
        [line] = await lines(client, batch.error_file_id)
        assert (line["custom_id"], line["response"]["status_code"]) == ("hot", 400)
        assert line["response"]["body"]["error"]["param"] == "temperature"


async def test_redis_and_the_ledger_away_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with EmbeddedValkey(tmp_path / "redis") as valkey:
        async with (
            running_gateway(tmp_path / "state", valkey.url, "florin") as gateway,
            MockEngine() as engine,
            gateway_client(gateway, engine, tmp_path) as client,
        ):
            engine.faults.update({"event_delay": 0.2})  # until both are away
            batch = await submitted(client, jsonl(150))
            await until(lambda: completed(client, batch.id, 5))
            ledger = gateway.state.ledger
            away, write = [True], ledger.write

            def failing():
                if away[0]:
                    raise LedgerUnavailableError("away")
                return write()

            monkeypatch.setattr(ledger, "write", failing)
            before = len(engine.state.calls)
            await engine.until(lambda state: len(state.calls) > before + 20)
            os.kill(valkey.pid, signal.SIGKILL)
            await until(lambda: not gateway.state.follower.connected)
            stalled = (await client.batches.retrieve(batch.id)).request_counts.completed
            assert stalled < 150
            engine.faults.update({"event_delay": 0.0})
            away[0] = False
            batch = await ended(client, batch.id)
            assert (batch.status, batch.request_counts.completed) == ("completed", 150)
            found = await lines(client, batch.output_file_id)
            records = [r for r in await gateway.usage("acme") if r.service_tier]
            await asyncio.to_thread(valkey.start)
        billed = [r.request_id for r in records if r.billable]
        assert sorted(billed) == sorted(line["response"]["request_id"] for line in found)
        assert len(set(billed)) == 150


@contextlib.asynccontextmanager
async def gateway_client(gateway: Gateway, engine: MockEngine, tmp_path: Path, **fields: Any):
    """A client of a tenant whose adapter is resident on the engine."""
    await gateway.add_engine("a", engine.url, **fields)
    for tenant in ("acme", "bolt"):
        await gateway.add_tenant(tenant)
        await gateway.add_adapter(f"{tenant}/support", fake_adapter(tmp_path / tenant))
    async with gateway.client("acme") as client:
        await client.chat.completions.create(model="support", messages=HELLO, max_tokens=1)
        yield client


async def test_those_who_wait_get_the_seats_of_a_batch(gateway: Gateway, tmp_path: Path):
    async with (
        MockEngine(max_num_seqs=8) as engine,
        gateway_client(gateway, engine, tmp_path, seats=8) as client,
        gateway.client("bolt", timeout=600) as bolt,
    ):
        await bolt.chat.completions.create(model="support", messages=HELLO, max_tokens=1)
        engine.faults.update({"first_byte_delay": 600.0})  # those of the batch never end by themselves
        batch = await submitted(client, jsonl(40))
        state = gateway.state.pool.known["a"]
        await until(lambda: state.view.in_flight == state.view.filled)
        assert state.view.filled < state.credit.value  # a seat is left for whoever comes
        engine.faults.update({"first_byte_delay": 0.2})
        await asyncio.gather(
            *(bolt.chat.completions.create(model="support", messages=HELLO, max_tokens=2) for _ in range(8))
        )
        engine.faults.update({"first_byte_delay": 0.0})
        await client.batches.cancel(batch.id)
    records = await gateway.usage("acme")
    preempted = [r for r in records if r.outcome == "client_abort"]
    assert preempted
    assert not any(r.billable for r in preempted)


KILLS, LINES = (3, 1000) if LONG else (1, 200)


async def test_a_batch_survives_kills_of_everything(tmp_path: Path, mock: MockEngine):
    """Each `custom_id` answered once, and billed once, with the ledger as judge."""
    state, count = tmp_path / "state", LINES
    batch_id = key = ""
    for kills in range(KILLS + 1):
        served = Served(state, batch_concurrency=16)
        try:
            key = key or await asyncio.to_thread(served.register, mock.url, tmp_path)
            client = AsyncOpenAI(base_url=served.url + "/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)
            async with client:
                batch_id = batch_id or (await submitted(client, jsonl(count))).id
                goal = count * (kills + 1) // (KILLS + 2)
                if kills < KILLS:
                    await until(partial(completed, client, batch_id, goal))
                else:
                    batch = await ended(client, batch_id)
                    assert (batch.status, batch.request_counts.completed) == ("completed", count)
                    found = await lines(client, batch.output_file_id)
                    served.process.terminate()
                    await asyncio.to_thread(served.process.wait)
        finally:
            served.stop()  # -9, with all of its children's work
        batch_leases_lapse(state)
    assert sorted(line["custom_id"] for line in found) == sorted(f"line-{n}" for n in range(count))
    records = await swept(state)
    assert len({r.id for r in records}) == len(records)
    billed = {r.request_id: r for r in records if r.billable}
    assert len(billed) == count == sum(r.billable for r in records)
    for line in found:
        response = line["response"]
        record = billed[response["request_id"]]
        usage = response["body"]["usage"]
        assert (record.prompt_tokens, record.completion_tokens) == (
            usage["prompt_tokens"],
            usage["completion_tokens"],
        )
        assert record.service_tier == "batch"
    # Everything that reached the engine has a record, and all but what was killed on its way there did.
    reached = {call.headers["x-request-id"] for call in mock.state.calls}
    recorded = {f"{r.request_id}-{r.attempt}": r for r in records if r.engine}
    assert reached <= recorded.keys()
    assert {recorded[name].outcome for name in recorded.keys() - reached} <= {"orphaned"}
    ledger = Ledger(f"sqlite:///{state / 'ledger.db'}")
    with ledger.read() as connection:
        assert connection.execute(select(func.count()).select_from(quarantine)).scalar_one() == 0
    ledger.close()
