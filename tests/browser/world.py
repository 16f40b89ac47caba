"""What the console is looked at with: a gateway in this process, two mock engines, three customers of the sample
month (October 2026, not closed yet), a canary, and requests of which some failed."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from adapters.store.embedded import EmbeddedValkey
from gateway.costs.sample_month import month as sample_month
from loadtests.mock_engine import MockEngine
from tests.browser.watching import Watched
from tests.support.harness import OPERATOR_KEY, Gateway, running_gateway
from tests.support.lora import LLAMA, lora_config, write_adapter

ENGINES = {"h100-0": ("H100", 4), "l40s-1": ("L40S", 2)}
"""GPU type and slots, by the names of the sample month."""
GUARD = {"action": "hold", "min_requests": 10, "window_seconds": 600}


@dataclass
class World:
    gateway: Gateway
    engines: dict[str, MockEngine]
    tmp: Path
    keys: dict[str, str] = field(default_factory=lambda: {"operator": OPERATOR_KEY})
    """By who signs in: `operator`, `finance`, `auditor`, `acme` (its administrator), `acme-tenant`, `bolt`."""

    @property
    def url(self) -> str:
        return f"{self.gateway.url}/console"

    async def admin(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the admin API's answer to the operator."""
        async with self.gateway.http() as http:
            answer = await http.request(method, f"/admin/v1/{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def add_key(self, who: str, role: str, tenant: str = "") -> str:
        body = {"role": role} | ({"tenant": tenant} if tenant else {})
        self.keys[who] = (await self.admin("POST", "keys", body))["key"]
        return self.keys[who]

    def files(self, name: str, fill: int = 0) -> Path:
        """A directory with a sound adapter for the engines' base model; another `fill`, other weights."""
        config = lora_config(base_model_name_or_path=sample_month.MODEL)
        return write_adapter(self.tmp / f"{name}-{fill}", config=config, fill=fill)

    async def add_adapter(self, name: str, fill: int) -> None:
        source = str(self.files(name.replace("/", "-"), fill))
        await self.admin("POST", "adapters", {"adapter": name, "source": source})

    async def ask(self, tenant: str, model: str, text: str = "Where is my parcel?", **options: Any) -> str:
        """The id of a request, answered or not."""
        async with httpx2.AsyncClient(base_url=self.gateway.url, timeout=30) as client:
            answer = await client.post(
                "/v1/chat/completions",
                headers={"authorization": f"Bearer {self.gateway.keys[tenant]}"},
                json={"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
                | options,
            )
        return answer.headers["x-request-id"]

    async def sign_in(self, tab: Watched, who: str) -> None:
        await tab.visit(f"{self.url}/sign-in")
        await tab.page.get_by_label("Your key").fill(self.keys[who])
        await tab.page.get_by_role("button", name="Sign in").click()
        await tab.page.wait_for_url(lambda url: "/sign-in" not in url)
        await tab.settled()


def put_ledger(source: Path, state: Path) -> Path:
    """A copy of a ledger as that of the gateway with this state directory."""
    state.mkdir(mode=0o700)
    return shutil.copy(source, state / "ledger.db")


@contextlib.asynccontextmanager
async def bare_world(valkey: EmbeddedValkey, prefix: str, tmp: Path) -> AsyncIterator[World]:
    """Engines and nothing else: no customer, no adapter, no usage."""
    model = tmp / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(LLAMA.config))
    async with contextlib.AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(running_gateway(tmp / "state", valkey.url, prefix))
        world = World(gateway, {}, tmp)
        for name, (gpu_type, slots) in ENGINES.items():
            engine = MockEngine(root=str(model), base=sample_month.MODEL, max_loras=slots, max_lora_rank=8)
            world.engines[name] = await stack.enter_async_context(engine)
            body = {
                "name": name, "url": engine.url, "base": sample_month.MODEL, "gpu_type": gpu_type, "slots": slots,
                "cpu_slots": 8, "max_rank": 8,
            }  # fmt: skip
            await world.admin("POST", "engines", body)
        yield world


@contextlib.asynccontextmanager
async def lived_in_world(
    valkey: EmbeddedValkey, prefix: str, tmp: Path, ledger: Path
) -> AsyncIterator[World]:
    """`ledger`: the sample month's, of which it gets a copy."""
    put_ledger(ledger, tmp / "state")
    async with bare_world(valkey, prefix, tmp) as world:
        for tenant, adapters in sample_month.CUSTOMERS.items():
            await world.gateway.add_tenant(tenant, since=0)  # the sample month is its own
            world.gateway.keys[tenant] = await world.add_key(f"{tenant}-tenant", "tenant", tenant)
            await world.add_key(tenant, "tenant-admin", tenant)
            for name, _ in adapters:
                await world.add_adapter(f"{tenant}/{name}", fill=len(world.gateway.keys))
        await world.add_key("finance", "finance")
        await world.add_key("auditor", "auditor")
        await world.add_adapter("acme/sales", fill=11)
        live = {"version": "v2", "weight": 30, "guard": GUARD}
        await world.admin("PUT", "adapters/acme/sales/live", live)
        await _live_in(world)
        yield world


async def _live_in(world: World) -> None:
    for turn in range(8):
        for tenant, adapters in sample_month.CUSTOMERS.items():
            for name, _ in adapters:
                await world.ask(tenant, name, user=f"user-{turn}")
    for engine in world.engines.values():
        engine.faults.update({"status": 500, "message": "CUDA error: out of memory", "marker": "poison"})
    for turn in range(3):
        await world.ask("acme", "sales", "poison", user=f"user-{turn}")
    await world.ask("bolt", "no-such-adapter")
    for engine in world.engines.values():
        engine.faults.update({"status": 0, "marker": ""})
    await world.gateway.usage()
    async with world.gateway.http() as http:  # the ledger sums up what is new; a page would wait for it
        await http.get("/finance/v1/costs", timeout=120)
