"""Sets up the demo's installation: two engines, a gateway, three customers."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from deploy.demo.engines import DemoEngine, Fleet
from deploy.demo.gateway import Gateway, GatewayError
from deploy.demo.model import DemoAdapter, DemoModel

CUSTOMERS = ("acme", "bolt", "corgi")
ADAPTER = "support"
"""The name that every customer uses for its own adapter."""
GPU_TYPES = ("h100", "l40s")
"""Made-up labels; without a GPU, both engines run on the CPU."""
PRICES = {"h100": "3.90", "l40s": "1.20"}
"""US dollars per GPU-hour, made up for the demo."""
UP_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Customer:
    name: str
    key: str
    model: str
    """`acme/support`; its owner can also use `support`."""
    digest: str
    adapter: DemoAdapter


@dataclass(frozen=True, slots=True)
class Installation:
    """The data for the transcript and the env file."""

    gateway: Gateway
    fleet: Fleet
    model: DemoModel
    finance_key: str
    customers: tuple[Customer, ...]

    def engine_name(self, index: int) -> str:
        return engine_name(self.fleet.engines[index])

    def env_lines(self) -> str:
        """Shell lines to be sourced."""
        values = {
            "FLORIN_BASE_URL": f"{self.gateway.url}/v1",
            "FLORIN_URL": self.gateway.url,
            "FLORIN_OPERATOR_KEY": self.gateway.operator_key,
            "FLORIN_FINANCE_KEY": self.finance_key,
            **{f"FLORIN_KEY_{c.name.upper()}": c.key for c in self.customers},
            **{f"FLORIN_MODEL_{c.name.upper()}": c.model for c in self.customers},
            "FLORIN_BASE_MODEL": self.model.served_name,
            "FLORIN_ENGINE_URLS": " ".join(e.url for e in self.fleet.engines),
            "FLORIN_ENGINE_PIDS": " ".join(str(e.pid) for e in self.fleet.engines),
            "FLORIN_STATE_DIR": str(self.gateway.state_dir),
        }
        return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())

    def write_env(self, path: Path) -> None:
        """Write atomically and privately, because it contains keys."""
        partial = path.with_name(f".{path.name}.partial")
        partial.touch(mode=0o600)
        partial.write_text(self.env_lines())
        partial.replace(path)


def engine_name(engine: DemoEngine) -> str:
    return f"{GPU_TYPES[engine.index % len(GPU_TYPES)]}-{engine.index}"


def install(gateway: Gateway, fleet: Fleet, model: DemoModel) -> Installation:
    """Register engines, prices, customers and adapters as an operator would. Raises GatewayError."""
    for engine in fleet.engines:
        register(gateway, fleet, engine)
    for gpu_type, rate in PRICES.items():
        price = {"gpu_type": gpu_type, "rate_per_gpu_hour": rate, "currency": "USD"}
        gateway.call("POST", "/admin/v1/prices", price)
    customers = tuple(_customer(gateway, model, name) for name in CUSTOMERS)
    finance = gateway.call("POST", "/admin/v1/keys", {"tenant": "", "role": "finance"})
    wait_until_up(gateway, len(fleet.engines))
    return Installation(gateway, fleet, model, finance["key"], customers)


def register(gateway: Gateway, fleet: Fleet, engine: DemoEngine) -> None:
    body = {
        "name": engine_name(engine),
        "url": engine.url,
        "base": fleet.model.served_name,
        "base_config": str(fleet.model.base / "config.json"),
        "gpu_type": GPU_TYPES[engine.index % len(GPU_TYPES)],
        "gpu_count": 1,
        "slots": fleet.options.slots,
        "cpu_slots": fleet.options.cpu_slots,
        "max_rank": fleet.model.rank,
        "seats": fleet.options.max_num_seqs,
    }
    gateway.call("POST", "/admin/v1/engines", body)


def wait_until_up(gateway: Gateway, count: int) -> None:
    """Wait until the gateway reports `count` healthy engines. Raises GatewayError."""
    deadline = time.monotonic() + UP_TIMEOUT_S
    while time.monotonic() < deadline:
        engines = gateway.call("GET", "/admin/v1/engines")["data"]
        if sum(e["health"] == "up" for e in engines) >= count:
            return
        time.sleep(0.1)
    raise GatewayError(f"The gateway does not report {count} healthy engines: {engines}")


def _customer(gateway: Gateway, model: DemoModel, name: str) -> Customer:
    gateway.call("POST", "/admin/v1/tenants", {"name": name, "base_access": True})
    key = gateway.call("POST", "/admin/v1/keys", {"tenant": name, "role": "tenant"})
    adapter = model.adapters[name]
    full_name = f"{name}/{ADAPTER}"
    registered = gateway.call(
        "POST", "/admin/v1/adapters", {"adapter": full_name, "source": str(adapter.path)}
    )
    return Customer(name, key["key"], full_name, registered["digest"], adapter)
