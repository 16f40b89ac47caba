"""The console's adapters: a canary through forms, an upload, a chat that is stopped, and the walls."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from adapters.model import Adapter, BaseModel, dump
from adapters.store.protocol.registry import Change
from gateway.tenants.directory import evaluation_key_id
from tests.integration.conftest import Deployment
from tests.integration.test_console import sign_in
from tests.integration.uploading import adapter_files, tar_of
from tests.support.harness import OPERATOR_KEY, Gateway, fake_adapter
from tests.support.lora import LLAMA
from tests.support.waiting import until

ONE = "/console/adapters/acme/support"
PROMPT = [{"role": "user", "content": "Hello"}]


class Browser:
    """One signed-in browser."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self.client = client
        self.token = ""

    async def sign_in(self, key: str) -> None:
        self.client.cookies.clear()
        assert (await sign_in(self.client, key)).status_code == 303
        page = await self.client.get("/console", follow_redirects=True)
        self.token = re.search(r'name="csrf" value="([^"]+)"', page.text)[1]

    async def get(self, path: str) -> str:
        page = await self.client.get(path)
        assert page.status_code == 200, page.text
        return page.text

    async def post(self, path: str, **fields: str) -> httpx2.Response:
        return await self.client.post(path, data=fields | {"csrf": self.token})

    async def done(self, path: str, **fields: str) -> str:
        """The page after an action."""
        answer = await self.post(path, **fields)
        assert answer.status_code == 303, answer.text
        return await self.get(answer.headers["location"])

    async def refused(self, path: str, **fields: str) -> tuple[int, str]:
        answer = await self.post(path, **fields)
        return answer.status_code, answer.text

    async def chat(self, path: str = ONE, **fields: Any) -> httpx2.Response:
        body = {"messages": PROMPT, "max_tokens": 3} | fields
        return await self.client.post(f"{path}/chat", json=body, headers={"x-csrf-token": self.token})


@pytest.fixture
async def browser(gateway: Gateway) -> AsyncIterator[Browser]:
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as client:
        found = Browser(client)
        await found.sign_in(OPERATOR_KEY)
        yield found


async def second_version(deployment: Deployment) -> None:
    gateway, name = deployment.gateway, "acme/support"
    await gateway.add_adapter(name, fake_adapter(deployment.tmp / "second"), number=2)
    old = gateway.state.catalog.adapters[name]
    await gateway.commit(Change("adapter", name, dump(Adapter(name, live=1, latest=2)), expect=dump(old)))


async def audited(gateway: Gateway) -> list[tuple[str, str, str]]:
    async with gateway.http() as http:
        found = (await http.get("/admin/v1/audit", params={"limit": 100})).json()["data"]
    return [(e["action"], e["subject"], e["actor"]) for e in found]


async def test_a_canary_is_begun_watched_rolled_back_and_a_version_retired(deployment, browser):
    await second_version(deployment)
    gateway = deployment.gateway
    form = await browser.get(f"{ONE}/promote?version=v2")
    assert "<option selected>v2</option>" in form
    bad = [{"weight": "0"}, {"weight": "x"}, {"then": "50, y"}, {"max_error_percent": "nan"}]
    for fields in bad:
        status, text = await browser.refused(
            f"{ONE}/promote", version="v2", **({"weight": "10", "guard": "hold"} | fields)
        )
        assert (status, "problem" in text) == (400, True), fields
    assert gateway.state.catalog.adapters["acme/support"].canary is None
    fields = {"weight": "10", "guard": "rollback", "then": "50, 100", "window_minutes": "0,5", "wait": "1"}
    page = await browser.done(f"{ONE}/promote", version="v2", **fields)
    assert "acme/support now serves v2 for 10 % of calls, and v1 for the other 90 %." in page
    assert "waiting for more requests" in page
    guard = gateway.state.catalog.adapters["acme/support"].guard
    assert (guard.action, guard.then, guard.window_seconds) == ("rollback", (50, 100), 30)
    listed = await browser.get("/console/adapters?show=canary")
    assert "acme/support" in listed
    assert "bolt/support" not in listed
    assert "canary" in await browser.get(f"{ONE}/versions/v2")
    status, text = await browser.refused(f"{ONE}/versions/v2/retire", confirm="v2")
    assert status == 409  # it is the canary
    page = await browser.done(f"{ONE}/rollback")
    assert "acme/support now serves v1." in page
    assert (await browser.refused(f"{ONE}/versions/v2/retire", confirm="v1"))[0] == 400
    page = await browser.done(f"{ONE}/versions/v2/retire", confirm="v2")
    assert "acme/support@v2 is retired." in page
    actions = [action for action, *_ in await audited(gateway)]
    assert actions[:3] == ["adapter.retire", "adapter.rollback", "adapter.canary"]


async def test_settings_and_removal(deployment, browser):
    page = await browser.done(f"{ONE}/pin", pinned="1")
    assert "It is pinned" in page
    await browser.done(f"{ONE}/replicas", min_replicas="1", max_replicas="2")
    assert (await browser.refused(f"{ONE}/replicas", min_replicas="-1"))[0] == 400
    await browser.done(f"{ONE}/cost-centre", cost_centre="<b>R&D</b>")
    await browser.done(f"{ONE}/evaluation-policy", require_eval="1")
    page = await browser.get(f"{ONE}/settings")
    assert "&lt;b&gt;R&amp;D&lt;/b&gt;" in page
    assert "<b>R&D" not in page
    found = deployment.gateway.state.catalog.adapters["acme/support"]
    assert (found.pinned, found.min_replicas, found.max_replicas) == (True, 1, 2)
    assert (found.require_eval, found.cost_centre) == (True, "<b>R&D</b>")
    assert (await browser.refused(f"{ONE}/remove", confirm="acme"))[0] == 400
    page = await browser.done(f"{ONE}/remove", confirm="acme/support")
    assert "acme/support is removed" in page
    assert (await browser.client.get(ONE)).status_code == 404


async def test_an_operator_tries_a_version_as_the_tenant_and_that_is_audited(deployment, browser):
    await second_version(deployment)
    gateway = deployment.gateway
    assert "metered as usage of acme" in await browser.get(f"{ONE}/try")
    answers = [await browser.chat(version=version) for version in ("v1", "v2")]
    for answer, version in zip(answers, ("v1", "v2"), strict=True):
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-florin-adapter"] == f"acme/support@{version}"
        assert answer.text.rstrip().endswith("data: [DONE]")
        usage = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert usage[-1]["usage"]["completion_tokens"] == 3
    records = await gateway.usage("acme")
    owner = evaluation_key_id(gateway.state.directory.tenants["acme"])
    assert [(r.key_id, r.version) for r in records] == [(owner, "v1"), (owner, "v2")]
    tried = [entry for entry in await audited(gateway) if entry[0] == "adapter.try"]
    assert tried == [("adapter.try", "acme/support", "bootstrap")] * 2
    assert (await browser.chat(version="v9")).status_code == 404
    assert (await browser.chat(version="")).status_code == 400
    assert (await browser.chat(version="v1", messages=None)).status_code == 400
    assert len(await gateway.usage("acme")) == 2


async def test_stopping_a_chat_reaches_the_engine(deployment, browser):
    gateway = deployment.gateway
    for engine in deployment.engines:
        engine.faults.update({"event_delay": 0.05})
    await browser.sign_in(gateway.keys["acme"])
    body = {"messages": PROMPT, "max_tokens": 2000}
    for key in (gateway.keys["acme"], OPERATOR_KEY):
        await browser.sign_in(key)
        before = len(deployment.calls())
        async with browser.client.stream(
            "POST", f"{ONE}/chat", json=body | {"version": "v1"}, headers={"x-csrf-token": browser.token}
        ) as answer:
            assert answer.status_code == 200
            async for line in answer.aiter_lines():
                if "content" in line:
                    break
        await until(lambda n=before: [c.outcome for c in deployment.calls()[n:]] == ["aborted"])

    async def recorded() -> list[Any]:  # the engine may hear of it first
        found = await gateway.usage("acme")
        return found if len(found) >= 2 else []

    records = await until(recorded)
    assert [r.outcome for r in records] == ["client_abort"] * 2


async def test_a_chat_needs_its_proof_and_a_sane_body(deployment, browser):
    await browser.sign_in(deployment.gateway.keys["acme"])
    path, proof = f"{ONE}/chat", {"x-csrf-token": browser.token}
    assert (await browser.client.post(path, json={"messages": PROMPT})).status_code == 403
    for content in (b"", b"[1]", b"\xff{"):
        answer = await browser.client.post(path, content=content, headers=proof)
        assert answer.status_code == 400, content
    assert (await browser.client.post(path, content=b" " * 600_000, headers=proof)).status_code == 413
    assert (await browser.chat(temperature="hot")).status_code == 400
    assert deployment.calls() == []


async def test_a_key_of_role_tenant_has_models_and_manages_nothing(deployment, browser):
    gateway = deployment.gateway
    await browser.sign_in(gateway.keys["acme"])
    models = await browser.get("/console/adapters")
    assert "acme/support" in models
    assert "bolt" not in models
    assert (await browser.client.get(ONE)).headers["location"] == f"{ONE}/try"
    assert (await browser.chat()).status_code == 200
    assert {r.key_id for r in await gateway.usage("acme")} <= set(gateway.state.directory.keys)


async def test_files_are_uploaded_and_what_is_wrong_with_them_is_told(gateway, browser, engine, tmp_path):
    await gateway.add_tenant("acme")
    assert "No adapters yet" in await browser.get("/console/adapters")
    await gateway.add_engine("a", engine.url)
    await gateway.commit(Change("base", "base", dump(BaseModel("base", (), LLAMA.config))))
    files = adapter_files(tmp_path)
    proof = {"x-csrf-token": browser.token, "hx-request": "true"}
    path = "/console/adapters/upload?tenant=acme&name=support&file_name=x.tar"

    async def send(name: str = "support", **body: Any) -> httpx2.Response:
        return await browser.client.post(path.replace("support", name), headers=proof, **body)

    multipart = {"file": ("lora.tar", tar_of(files), "application/x-tar")}
    done = await send(files=multipart)
    assert (done.status_code, "acme/support@v1 is registered, and live." in done.text) == (200, True)
    again = await send(content=tar_of(files))
    assert "has these files already" in again.text
    broken = json.loads(files["adapter_config.json"]) | {"use_dora": True, "r": 64, "bias": "all"}
    refused = await send(
        "<i>x", content=tar_of({**files, "adapter_config.json": json.dumps(broken).encode()})
    )
    assert refused.status_code == 400
    assert "<i>" not in refused.text
    refused = await send(
        "other", content=tar_of({**files, "adapter_config.json": json.dumps(broken).encode()})
    )
    assert (refused.status_code, refused.text.count("<li>") >= 2) == (422, True), refused.text
    assert 'class="remedy"' in refused.text
    assert (await send("", content=b"x")).status_code == 400
    assert (await browser.client.post(path, content=tar_of(files))).status_code == 403  # without the proof
    page = await browser.get("/console/bases")
    assert "LlamaForCausalLM" in page
    fields = {"tenant": "acme", "name": "fetched", "source": str(tmp_path / "made-0")}
    assert "acme/fetched@v1 is registered, and live." in await browser.done("/console/adapters/new", **fields)
    status, text = await browser.refused("/console/adapters/new", **fields | {"source": "/no/such"})
    assert status >= 400
    assert "problem" in text


async def test_an_evaluation_is_started_and_watched(deployment, browser):
    await second_version(deployment)
    cases = "".join(json.dumps({"input": f"{n}?", "expected": "no"}) + "\n" for n in range(3))
    proof = {"x-csrf-token": browser.token}
    fields = {"version": "v2", "metric": "exact", "against": "live", "threshold": "0,5", "max_tokens": "2"}
    path = f"{ONE}/evaluations"

    async def start(data: bytes = b"", **more: str) -> httpx2.Response:
        files = {"file": ("cases.jsonl", data)}
        return await browser.client.post(path, data=fields | more, files=files, headers=proof)

    assert (await start()).status_code == 400
    assert (await start(b"\xff")).status_code == 400
    assert (await start(b"{}\n")).status_code == 400
    assert "Not evaluated yet" in await browser.get(path)
    begun = await start(cases.encode())
    assert begun.status_code == 303, begun.text

    async def ended() -> str:
        page = await browser.get(begun.headers["location"])
        return "" if "sse-connect" in page else page

    page = await until(ended)
    assert "not passed" in page
    assert begun.headers["location"].rpartition("/")[2] in await browser.get(f"{path}?format=csv")
    assert "not passed" in await browser.get(f"{ONE}/versions/v2")


async def test_the_live_part_follows_and_the_list_is_paged_and_exported(deployment, browser):
    gateway = deployment.gateway
    live = Adapter("", live=1, latest=1)
    await gateway.commit(
        *(Change("adapter", n, dump(replace(live, name=n))) for n in (f"corgi/m{i:02}" for i in range(60)))
    )
    page = await browser.get("/console/adapters?tenant=corgi")
    assert page.count('<th scope="row">') == 50
    assert "of 61" in page
    csv = await browser.get("/console/adapters?tenant=corgi&q=m0&cost=month&format=csv")
    assert len(csv.splitlines()) == 11
    assert "requests" in csv.splitlines()[0]
    async with browser.client.stream("GET", "/console/live/adapters/acme/support") as stream:
        events = stream.aiter_lines()
        async for line in events:
            if "not loaded" in line:
                break
        await browser.chat(version="v1")
        async with asyncio.timeout(60):
            async for line in events:
                if ">loaded<" in line:
                    break
