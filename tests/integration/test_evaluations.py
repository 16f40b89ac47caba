"""Evaluations before promotions, against mock engines."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from adapters.errors import NotFoundError
from adapters.model import Adapter, AdapterName, dump
from adapters.store.protocol.registry import Change
from gateway.errors import FlorinError
from gateway.evaluations import operations as evaluations
from gateway.evaluations.documents import EvaluationPlan, Metric
from gateway.operations.authorization import Authority
from gateway.tenants.directory import Key, Role
from loadtests.mock_engine import MockEngine, answers
from tests.integration.conftest import Deployment
from tests.integration.test_metering_under_fire import swept
from tests.integration.test_outages import Served
from tests.support.harness import OPERATOR_KEY, Gateway, fake_adapter
from tests.support.ledger_rows import batch_leases_lapse
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


async def ended(http: httpx2.AsyncClient, evaluation: dict[str, Any]) -> dict[str, Any]:
    path = f"/admin/v1/adapters/{evaluation['adapter']}/evaluations/{evaluation['id']}"

    async def over() -> Any:
        body = (await http.get(path)).json()
        return body if body["status"] in ENDED else None

    return await until(over)


async def evaluated(
    http: httpx2.AsyncClient, content: str, version: str = "acme/support@v2", **fields: Any
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


async def test_applying_a_file_does_not_get_around_the_policy(deployment: Deployment):
    await second_version(deployment.gateway, deployment.tmp)
    path = "/admin/v1/adapters/acme/support/evaluation-policy"
    async with deployment.gateway.http() as http:
        assert (await http.put(path, json={"require_eval": True})).status_code == 200
        known = (await http.get("/admin/v1/export")).json()["adapters"]["acme/support"]
        assert known["require_eval"] is True
        document = {"florin": 1, "adapters": {"acme/support": known | {"live": "v2"}}}
        applied = await http.post("/admin/v1/apply", json=document)
        assert applied.json()["failed"] == 1, applied.text
        assert "must pass an evaluation" in applied.text
        assert (await http.get("/admin/v1/adapters/acme/support")).json()["live"] == "v1"


async def test_the_base_is_compared_for_operators_only(deployment: Deployment):
    gateway = deployment.gateway
    gateway.keys["admin"] = await administrator(gateway)
    path = "/admin/v1/adapters/acme/support/versions/v1/evaluations"
    async with gateway.http() as http, gateway.http(gateway.keys["admin"]) as own:
        found = await evaluated(http, data("x", "y"), "acme/support@v1", against="base")
        assert (found["against"], found["status"]) == ("base", "completed")
        assert found["result"]["against"]["unanswered"] == 0
        await gateway.add_adapter("bolt/base", fake_adapter(deployment.tmp / "base"))
        hidden = await http.post(
            "/admin/v1/adapters/bolt/support/versions/v1/evaluations",
            json={"data": data("x"), "against": "base"},
        )
        assert "hides it" in hidden.json()["error"]["message"]
        refused = await own.post(path, json={"data": data("x"), "against": "base"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")
        mine = await evaluated(own, data("x", "y"), "acme/support@v1")
        assert mine["by"].startswith("key:")
    records = [r for r in await gateway.usage("acme") if r.tag]
    assert {(r.adapter, r.tag) for r in records} == {("acme/support", "evaluation"), ("", "evaluation")}
    by_key = {r.key_id.split(":")[0] for r in records}
    assert by_key == {"evaluation", mine["by"].removeprefix("key:")}


async def test_an_administrator_who_signed_in_starts_one_and_reaches_no_more_than_their_key(
    deployment: Deployment,
):
    gateway = deployment.gateway
    jane = Key("oidc@acme:jane", "acme", Role.TENANT_ADMIN, "", 0, expires=1)  # long over when it ends
    state, name, plan = (
        gateway.state,
        AdapterName("acme", "support"),
        EvaluationPlan(metric=Metric.EXACT, max_tokens=3),
    )
    authority = Authority.of(jane)
    asked = evaluations.Start(plan, data("x", "y").encode(), "")
    made = await evaluations.start(state, name, 1, asked, authority=authority)
    async with gateway.http() as http:
        found = await ended(http, {"adapter": "acme/support", "id": made.id})
    assert (found["status"], found["by"]) == ("completed", "oidc@acme:jane")
    [record, *_] = [r for r in await gateway.usage("acme") if r.tag == "evaluation"]
    assert record.key_id.startswith("evaluation:acme:")
    for refused, code in (
        (evaluations.Start(plan, data("x").encode(), "base"), "model_not_found"),
        (evaluations.Start(replace(plan, metric=Metric.JUDGE, judge="base", judge_prompt="?"), data("x").encode(), ""), "model_not_found"),
    ):  # fmt: skip
        with pytest.raises(FlorinError) as error:
            await evaluations.start(state, name, 1, refused, authority=authority)
        assert error.value.code == code
    with pytest.raises(NotFoundError):
        await evaluations.start(state, AdapterName("bolt", "support"), 1, asked, authority=authority)


async def administrator(gateway: Gateway) -> str:
    async with gateway.http() as http:
        made = await http.post("/admin/v1/keys", json={"tenant": "acme", "role": "tenant-admin"})
    return str(made.json()["key"])


async def test_what_is_another_tenants_is_absent(deployment: Deployment):
    gateway = deployment.gateway
    async with gateway.http() as http, gateway.http(await administrator(gateway)) as acme:
        theirs = await evaluated(http, data("x"), "bolt/support@v1")
        body = {"data": data("x"), "metric": "judge", "judge_prompt": "Be fair."}
        path = "/admin/v1/adapters/acme/support/versions/v1/evaluations"
        for asking in (http, acme):  # an operator's evaluation of acme's adapter is acme's, too
            answers = [
                await asking.post(path, json=body | {"judge": judge})
                for judge in ("bolt/support", "bolt/nothing", "bolt/support@v1")
            ]
            assert {answer.status_code for answer in answers} == {404}
            texts = {a.text.replace("bolt/nothing", "bolt/support").replace("@v1", "") for a in answers}
            assert len(texts) == 1
        for suffix in ("", f"/{theirs['id']}"):
            known = await acme.get(f"/admin/v1/adapters/bolt/support/evaluations{suffix}")
            unknown = await acme.get(f"/admin/v1/adapters/bolt/nothing/evaluations{suffix}")
            assert (known.status_code, unknown.status_code) == (404, 404)
            assert known.text.replace("bolt/support", "bolt/nothing") == unknown.text
        mixed = await acme.get(f"/admin/v1/adapters/acme/support/evaluations/{theirs['id']}")
        none = await acme.get("/admin/v1/adapters/acme/support/evaluations/eval_none")
        assert mixed.status_code == 404
        assert mixed.text.replace(theirs["id"], "eval_none") == none.text
        started = await acme.post(path.replace("acme", "bolt"), json={"data": data("x")})
        assert started.status_code == 404


async def test_a_judge_scores_and_what_is_no_score_is_none(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
):
    gateway = deployment.gateway
    judge = await gateway.add_adapter("acme/judge", fake_adapter(deployment.tmp / "judge"))
    plain, verdicts = answers.text, iter(['{"score": 8}', "9", 'The answer says {"score": 10}', "10/10"] * 2)

    def text(speaker: str, *rest: Any) -> str:
        return next(verdicts) if speaker == judge.engine_name else plain(speaker, *rest)

    monkeypatch.setattr(answers, "text", text)
    fields = {"metric": "judge", "judge": "judge", "judge_prompt": "Is it polite?"}
    async with gateway.http() as http:
        found = await evaluated(http, data(*["x"] * 4), "acme/support@v1", threshold=0.8, **fields)
    assert (found["judge"], found["status"], found["passed"]) == ("acme/judge@v1", "completed", False)
    result = found["result"]
    assert (result["scored"], result["left_out"], result["score"]) == (2, 2, pytest.approx(0.85))
    assert "without a score" in result["reasons"][0]
    asked = [call for call in deployment.calls() if call.model == judge.engine_name]
    assert len(asked) == 4


async def test_an_evaluation_without_answers_fails(deployment: Deployment):
    gateway = deployment.gateway
    for engine in deployment.engines:
        engine.faults.update({"first_byte_delay": 30.0})
    path = "/admin/v1/adapters/acme/support"
    async with gateway.http() as http:
        started = [
            await http.post(f"{path}/versions/v1/evaluations", json={"data": data("x"), "threshold": 0.1})
            for _ in range(5)
        ]
        assert [s.status_code for s in started] == [201] * 4 + [403]
        assert started[-1].json()["error"]["code"] == "quota_exceeded"
        for one in started[:4]:
            batch = (await http.get(f"{path}/evaluations/{one.json()['id']}")).json()["batch"]
            assert (await http.post(f"/admin/v1/batches/{batch}/cancel")).status_code == 200
        for one in started[:4]:
            found = await ended(http, one.json())
            assert (found["status"], found["passed"]) == ("failed", False)
            assert "cancelled" in found["result"]["error"]
        refused = await http.put(f"{path}/live", json={"version": "v1", "require_eval": True})
        assert refused.status_code == 409


async def begun(http: httpx2.AsyncClient, evaluation: dict[str, Any]) -> dict[str, Any] | None:
    """What is shown of it, once some cases are answered."""
    path = f"/admin/v1/adapters/acme/support/evaluations/{evaluation['id']}"
    shown: dict[str, Any] = (await http.get(path)).json()
    return shown if (shown["progress"] or {"completed": 0})["completed"] >= 10 else None


async def test_a_killed_gateway_goes_on_and_counts_each_case_once(tmp_path: Path, mock: MockEngine):
    state, count = tmp_path / "state", 50
    found: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    for last in (False, True):
        served = Served(state, batch_concurrency=8)
        try:
            if not last:
                await asyncio.to_thread(served.register, mock.url, tmp_path)
            mock.faults.update({"event_delay": 0.0 if last else 0.05})
            headers = {"authorization": f"Bearer {OPERATOR_KEY}"}
            async with httpx2.AsyncClient(base_url=served.url, headers=headers, timeout=60) as http:
                path = "/admin/v1/adapters/acme/support"
                if not last:
                    body = {"data": data(*["x"] * count), "against": "base", "max_tokens": 3}
                    evaluation = (await http.post(f"{path}/versions/v1/evaluations", json=body)).json()
                    found = await until(partial(begun, http, evaluation))
                    assert found["status"] == "answering"
                else:
                    found = await ended(http, evaluation)
                    served.process.terminate()
                    await asyncio.to_thread(served.process.wait)
        finally:
            served.stop()  # -9
        batch_leases_lapse(state)
    assert found["status"] == "completed", found
    assert (found["result"]["scored"], found["progress"]["total"]) == (count, 2 * count)
    billed = [r for r in await swept(state) if r.billable and r.tag == "evaluation"]
    assert len(billed) == len({r.request_id for r in billed}) == 2 * count
