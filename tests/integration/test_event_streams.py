"""Events of a whole gateway: what operators and customers do arrives at a receiver, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gateway.runtime.settings_reload import Reload
from loadtests.mock_engine import MockEngine
from tests.support.harness import fake_adapter, running_gateway
from tests.support.waiting import until
from tests.unit.gateway.event_streams.receiving import KEYS, SECRET, Receiving, receiving, verified

HELLO = [{"role": "user", "content": "the-prompt"}]


async def arrived(seen: Receiving, count: int) -> None:
    await until(lambda: len(seen.ids) >= count)


async def test_audit_and_usage_arrive_and_can_be_replayed(tmp_path: Path, valkey_url: str, prefix: str):
    async with receiving() as audit, receiving() as usage, MockEngine() as engine:
        settings = {
            "events_secret": SECRET,
            "audit_events_to": audit.url,
            "usage_events_to": usage.url,
            "usage_events_token": "om_t0ken",
        }
        audit.plan = [503]
        async with running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway:
            await gateway.add_engine("e0", engine.url)
            await gateway.add_tenant("acme")
            await gateway.add_adapter("acme/support", fake_adapter(tmp_path / "acme"))
            async with gateway.http() as http, gateway.client("acme") as client:
                made = await http.post("/admin/v1/tenants", json={"name": "bolt"})
                assert made.status_code == 201
                answers = [
                    await client.chat.completions.with_raw_response.create(model="support", messages=HELLO)
                    for _ in range(2)
                ]
                await gateway.usage("acme")  # in the ledger
                await arrived(audit, 1)
                await arrived(usage, 2)
                listed = (await http.get("/admin/v1/audit")).json()["data"]
                shown = (await http.get("/admin/v1/events")).json()["data"]
                again = await http.post("/admin/v1/events/usage/replay", json={"since": "2026-01-01"})
                assert again.json()["queued"] == 2
                await arrived(usage, 4)
                refused = await http.post("/admin/v1/events/usage/replay", json={"since": "yesterday"})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "since")
                assert (await http.post("/admin/v1/events/x/skip", json={"until": "2026-01-01"})).is_error
                metrics = (await http.get("/metrics")).text
    [event] = [event for event in audit.events if event["type"] == "florin.audit.tenant.add"]
    assert event["data"] | {"recorded_at": event["time"]} in [
        {name: entry[name] for name in (*event["data"], "recorded_at")} for entry in listed
    ]
    assert {event["data"]["request_id"] for event in usage.events[:2]} == {
        answer.headers["x-request-id"]
        for answer in answers  # if they arrived together, in either order
    }
    assert usage.ids[:2] == usage.ids[2:]
    assert usage.events[0]["data"]["service_tier"] is None
    for seen in (audit, usage):
        assert all(verified(headers, body, KEYS[0]) for headers, body in seen.posts)
    assert {headers.get("authorization") for headers, _ in audit.posts} == {None}
    assert {headers.get("authorization") for headers, _ in usage.posts} == {"Bearer om_t0ken"}
    assert {one["stream"]: one["to"] for one in shown} == {
        "audit": audit.url.removesuffix("/in"),
        "usage": usage.url.removesuffix("/in"),
    }
    assert 'florin_event_lag_seconds{stream="audit"}' in metrics
    assert 'florin_event_posts_total{result="failed",stream="audit"} 1.0' in metrics
    assert "the-prompt" not in str(audit.posts) + str(usage.posts)


async def test_a_reload_adds_pauses_and_moves_a_receiver(tmp_path: Path, valkey_url: str, prefix: str):
    async with receiving() as first, receiving() as second:
        settings = {"events_secret": SECRET}
        async with (
            running_gateway(tmp_path / "state", valkey_url, prefix, **settings) as gateway,
            gateway.http() as http,
        ):

            async def add(*names: str) -> None:
                for name in names:
                    assert (await http.post("/admin/v1/tenants", json={"name": name})).status_code == 201

            async def status() -> dict[str, Any]:
                return (await http.get("/admin/v1/events")).json()["data"][0]

            async def send_to(url: str) -> None:
                changed = {"audit_events_to": url}
                gateway.app.apply(Reload(gateway.app.settings.model_copy(update=changed)))
                where = url.removesuffix("/in") or None

                async def moved() -> bool:
                    return (await status())["to"] == where

                await until(moved)

            async def begun() -> bool:
                return (await status())["begun"] is not None

            async def noted() -> bool:  # what arrived is not sent again
                return (await status())["waiting"] == 0

            await send_to(first.url)
            await until(begun)
            await add("a", "b")
            await arrived(first, 2)
            await until(noted)
            await send_to("")
            await add("c")
            await send_to(second.url)
            await add("d")
            await arrived(second, 2)
    assert [event["subject"] for event in first.events] == ["a", "b"]
    assert [event["subject"] for event in second.events] == ["c", "d"]
    assert all(verified(headers, body, KEYS[0]) for headers, body in second.posts)
