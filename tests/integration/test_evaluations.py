"""Evaluations before promotions, against mock engines."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from adapters.model import Adapter, dump
from adapters.store.protocol.registry import Change
from gateway.metering.ledger.ledger import Ledger
from loadtests.mock_engine import MockEngine
from tests.integration.conftest import Deployment
from tests.integration.test_metering_under_fire import swept
from tests.integration.test_outages import Served
from tests.support.harness import Gateway, fake_adapter
from tests.support.waiting import until

ENDED = {"completed", "failed"}


def data(*expected: str | None, kind: str = "input") -> str:
    """Cases with these expected answers."""
    made = []
    for number, text in enumerate(expected):
        asked = f"Question {number}?"
        if kind == "messages":
            messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": text}]
            made.append({"messages": messages if text is not None else messages[:1]})
        else:
            answer = {"input": "expected", "prompt": "completion"}[kind]
            made.append({kind: asked} | ({answer: text} if text is not None else {}))
    return "".join(json.dumps(line) + "\n" for line in made)


async def second_version(gateway: Gateway, tmp: Path, name: str = "acme/support") -> None:
    """v2, and v1 stays live."""
    await gateway.add_adapter(name, fake_adapter(tmp / "second"), number=2)
    old = gateway.state.catalog.adapters[name]
    await gateway.commit(Change("adapter", name, dump(Adapter(name, live=1, latest=2)), expect=dump(old)))


async def ended(http: httpx.AsyncClient, evaluation: dict[str, Any]) -> dict[str, Any]:
    path = f"/admin/v1/adapters/{evaluation['adapter']}/evaluations/{evaluation['id']}"
    async with asyncio.timeout(20):
        while (body := (await http.get(path)).json())["status"] not in ENDED:
            await asyncio.sleep(0.02)
    return body


async def evaluated(
    http: httpx.AsyncClient, content: str, version: str = "acme/support@v2", **fields: Any
) -> dict[str, Any]:
    name, _, number = version.partition("@")
    fields = {"data": content, "max_tokens": 3} | fields
    made = await http.post(f"/admin/v1/adapters/{name}/versions/{number}/evaluations", json=fields)
    assert made.status_code == 201, made.text
    return await ended(http, made.json())


async def said(gateway: Gateway, model: str) -> str:
    """What the mock answers to everything."""
    async with gateway.client("acme") as client:
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Hello"}], max_tokens=3
        )
    return answer.choices[0].message.content or ""


async def test_a_bad_version_is_not_promoted_and_a_good_one_is(deployment: Deployment):
    gateway = deployment.gateway
    await second_version(gateway, deployment.tmp)
    live, path = await said(gateway, "support"), "/admin/v1/adapters/acme/support"
    other = await said(gateway, "support@v2")
    assert live != other
    async with gateway.http() as http:

        async def promote(**fields: Any) -> tuple[int, str]:
            answer = await http.put(f"{path}/live", json={"version": "v2", **fields})
            return answer.status_code, answer.json().get("error", {}).get("code", "")

        refused = (409, "evaluation_required")
        assert await promote(require_eval=True) == refused
        report = await evaluated(http, data(*[live] * 20))  # it has nothing to pass
        assert (report["status"], report["passed"], report["result"]["score"]) == ("completed", None, 0.0)
        assert await promote(require_eval=True) == refused
        bad = await evaluated(http, data(*[live] * 20), against="live", no_worse_than=0.02)
        assert (bad["passed"], bad["against"]) == (False, "acme/support@v1")
        result = bad["result"]
        assert (result["score"], result["against"]["score"], result["difference"]) == (0.0, 1.0, -1.0)
        assert (result["better"], result["worse"], result["p_value"]) == (0, 20, pytest.approx(2 / 2**20))
        assert "may be worse by 1.000" in result["reasons"][0]
        assert len(bad["examples"]) == 10
        assert bad["examples"][0] == {
            "line": 1, "prompt": "Question 0?", "expected": live, "answer": other, "error": None, "score": 0.0,
            "against_answer": live, "against_score": 1.0,
        }  # fmt: skip
        assert await promote(require_eval=True) == refused
        assert (await http.put(f"{path}/evaluation-policy", json={"require_eval": True})).status_code == 200
        assert await promote() == refused
        assert await promote(weight=10) == refused
        good = await evaluated(http, data(*[other] * 20), against="live", no_worse_than=0.02, threshold=0.9)
        assert (good["passed"], good["result"]["reasons"], good["examples"]) == (True, [], [])
        assert good["result"]["interval"]["low"] == pytest.approx(0.8389, abs=1e-4)
        digest = {"require_eval_of": bad["data_sha256"]}
        assert await promote(**digest) == refused  # of those data, the last one did not pass
        shown = (await http.get(path)).json()
        assert shown["require_eval"] is True
        by_version = {v["version"]: v["evaluation"] for v in shown["version_details"]}
        assert by_version["v1"] is None
        assert (by_version["v2"]["id"], by_version["v2"]["passed"]) == (good["id"], True)
        assert await promote(require_eval_of=good["data_sha256"]) == (200, "")
        assert (await http.post(f"{path}/rollback")).json()["live"] == "v1"
        listed = (await http.get(f"{path}/evaluations")).json()["data"]
        assert [e["id"] for e in listed] == [good["id"], bad["id"], report["id"]]
        audit = (await http.get("/admin/v1/audit", params={"subject": "acme/support"})).json()["data"]
        found = [
            (e["action"], e["actor"], e["details"].get("passed")) for e in audit if "eval" in e["action"]
        ]
        assert found[:3] == [
            ("adapter.evaluated", "florin", True),
            ("adapter.evaluate", "bootstrap", None),
            ("adapter.eval_policy", "bootstrap", None),
        ]
    records = [r for r in await gateway.usage("acme") if r.tag == "evaluation"]
    assert len(records) == 20 + 40 + 40
    assert {(r.service_tier, r.billable) for r in records} == {("batch", True)}
