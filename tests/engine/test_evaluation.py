"""An evaluation on real engines: a version with another customer's voice is not promoted, a retrained one is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx

from deploy.demo.model import DemoModel
from tests.engine.test_verification import faint
from tests.support.harness import Gateway

SECONDS = 120
ADAPTER = "/admin/v1/adapters/acme/support"


async def evaluated(http: httpx.AsyncClient, version: str, **fields: Any) -> dict[str, Any]:
    made = await http.post(f"{ADAPTER}/versions/{version}/evaluations", json=fields)
    assert made.status_code == 201, made.text
    async with asyncio.timeout(SECONDS):
        while True:
            body: dict[str, Any] = (await http.get(f"{ADAPTER}/evaluations/{made.json()['id']}")).json()
            if body["status"] not in ("answering", "judging"):
                return body
            await asyncio.sleep(0.2)


async def test_a_bad_version_is_stopped_and_a_good_one_goes_live(
    gateway: Gateway, demo_model: DemoModel, tmp_path: Path
) -> None:
    expected = demo_model.adapters["acme"].answers
    data = "".join(json.dumps({"input": q, "expected": a}) + "\n" for q, a in expected.items())
    retrained = faint(demo_model.adapters["acme"].path, tmp_path / "retrained", 0.98)
    async with gateway.http() as http:
        http.timeout = 60
        for source in (demo_model.adapters["bolt"].path, retrained):
            body = {"adapter": "acme/support", "source": str(source)}
            assert (await http.post("/admin/v1/adapters", json=body)).status_code == 201
        fields = {"data": data, "against": "live", "no_worse_than": 0.15, "threshold": 0.9}
        bad = await evaluated(http, "v2", **fields)
        assert (bad["status"], bad["passed"]) == ("completed", False), bad
        assert (bad["result"]["score"], bad["result"]["against"]["score"]) == (0.0, 1.0)
        shown = bad["examples"][0]
        assert shown["answer"].startswith(demo_model.adapters["bolt"].voice)
        assert shown["against_answer"] == shown["expected"]
        live = {"version": "v2", "require_eval": True}
        refused = await http.put(f"{ADAPTER}/live", json=live)
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "evaluation_required")
        good = await evaluated(http, "v3", **fields)
        assert (good["passed"], good["result"]["difference"]) == (True, 0.0), good
        promoted = await http.put(f"{ADAPTER}/live", json=live | {"version": "v3"})
        assert (promoted.status_code, promoted.json()["live"]) == (200, "v3"), promoted.text
        scored = {"data": '{"prompt": "Hello", "completion": " you"}', "metric": "perplexity"}
        unsafe = await http.post(f"{ADAPTER}/versions/v3/evaluations", json=scored)
        assert "can crash an engine" in unsafe.json()["error"]["message"]
    records = [r for r in await gateway.usage("acme") if r.tag == "evaluation"]
    assert {(r.service_tier, r.usage_source) for r in records} == {("batch", "engine_final")}
    assert sum(r.billable for r in records) == 4 * len(expected)
    assert {r.version for r in records} == {"v1", "v2", "v3"}
