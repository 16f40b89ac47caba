"""A gateway's tenants, engines and adapters for the load tests on real engines."""

from __future__ import annotations

import httpx2

from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.gateway import Gateway
from deploy.demo.model import DemoModel
from deploy.demo.stack import wait_until_up
from loadtests.placement.callers import ADAPTERS, TENANTS


def register(gateway: Gateway, fleet: Fleet, *, cpu_slots: int) -> dict[str, str]:
    """Returns the tenants' keys."""
    for engine in fleet.engines:
        body = {
            "name": f"e{engine.index}", "url": engine.url, "base": fleet.model.served_name, "gpu_type": "cpu",
            "base_config": str(fleet.model.base / "config.json"), "slots": fleet.options.slots,
            "cpu_slots": cpu_slots, "max_rank": fleet.model.rank,
        }  # fmt: skip
        gateway.call("POST", "/admin/v1/engines", body)
    keys = {}
    for tenant in TENANTS:
        gateway.call("POST", "/admin/v1/tenants", {"name": tenant})
        keys[tenant] = gateway.call("POST", "/admin/v1/keys", {"tenant": tenant, "role": "tenant"})["key"]
    for tenant, name in ADAPTERS:
        source = str(fleet.model.adapters[tenant].path)
        gateway.call("POST", "/admin/v1/adapters", {"adapter": f"{tenant}/{name}", "source": source})
    wait_until_up(gateway, len(fleet.engines))
    return keys


def empty(engine: DemoEngine, model: DemoModel) -> None:
    """Unload everything, so that the next gateway finds an empty engine."""
    with httpx2.Client(base_url=engine.url, timeout=30, trust_env=False) as http:
        for listed in http.get("/v1/models").json()["data"]:
            if listed["id"] != model.served_name:
                body = {"lora_name": listed["id"]}
                http.post("/v1/unload_lora_adapter", json=body).raise_for_status()
