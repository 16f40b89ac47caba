"""Real vLLM engines, started once per run: a fleet of two, which all tests share that need no other flags.

`make test` runs the tests of the fleet, `-m fleet`, beside those that start engines of their own. Not for xdist: a second
worker would wait for the fleet until the first has ended. A test that kills an engine asks for `repaired_fleet`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from rich.console import Console

from deploy.demo.cache import cache_home, locked
from deploy.demo.engine_env import EngineEnv, ensure_engine_env
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel, ensure_demo_model
from tests.engine.forked import forking_engines
from tests.support.collector import Collector, collecting
from tests.support.fork_server import SUPPORTED
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import PATIENCE_S

HERE = Path(__file__).parent
CUSTOMERS = ("acme", "bolt", "corgi")
ALL = (*CUSTOMERS, "delta")
SETTINGS = {
    "placement_timeout": 120.0, "probe_interval": 0.5, "probe_timeout": PATIENCE_S,
    "base_model_dirs": "/",  # wherever the engines have their models from
}  # fmt: skip
"""Of gateways: a busy engine is slow to answer, and not dead."""
FLAGS = (
    "--enable-log-requests",
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *(
        "--structured-outputs-config",
        '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ),  # which a tiny model loves
)
LOGGING = {
    "version": 1,
    "formatters": {"line": {"format": "%(levelname)s %(message)s"}},
    "handlers": {
        "log": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}
    },
    "loggers": {
        "vllm": {"handlers": ["log"], "level": "INFO", "propagate": False},
        "vllm.lora": {"level": "DEBUG"},
    },
}
"""What the engines log: each read, activation and eviction of an adapter, too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            assert isinstance(item, pytest.Function)
            item.add_marker(pytest.mark.engine)
            if "fleet" in item.fixturenames:
                item.add_marker(pytest.mark.fleet)
            item.add_marker(pytest.mark.timeout(1800))  # an engine's start may wait for much else


@pytest.fixture(scope="session")
def engine_env() -> Iterator[EngineEnv]:
    env = ensure_engine_env(Console(stderr=True))
    if env.gpus or not SUPPORTED:
        yield env
        return
    with forking_engines(env):
        yield env


@pytest.fixture(scope="session")
def demo_model(engine_env: EngineEnv) -> DemoModel:
    return ensure_demo_model(engine_env, Console(stderr=True))


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    """Gets the engines' spans of requests that are traced."""
    with collecting() as found:
        yield found


@pytest.fixture(scope="session")
def fleet(
    engine_env: EngineEnv,
    demo_model: DemoModel,
    collector: Collector,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Fleet]:
    """Two engines of two slots. One fleet per machine at a time: a second run waits for the first."""
    logs = tmp_path_factory.mktemp("engines")
    (logs / "logging.json").write_text(json.dumps(LOGGING))
    extra = (*FLAGS, "--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    with (
        pytest.MonkeyPatch.context() as patch,
        locked(cache_home() / "engine-tests.lock", on_wait=lambda: None),
        Fleet(
            engine_env, demo_model, logs=logs, options=EngineOptions(max_model_len=2048, extra=extra)
        ) as started,
    ):
        patch.setenv("VLLM_LOGGING_CONFIG_PATH", str(logs / "logging.json"))
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        patch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")  # only what the gateway traces
        started.start()
        yield started


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Engines that start meanwhile have cpu_plugin.py, installed in a directory of its own."""
    site = tmp_path_factory.mktemp("site")
    shutil.copy(HERE / "cpu_plugin.py", site)
    about = site / "cpu_plugin-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: cpu-plugin\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[vllm.general_plugins]\ncpu = cpu_plugin:register\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(site), prepend=":")
        yield


@pytest.fixture
def clean_fleet(fleet: Fleet) -> Fleet:
    return cleaned(fleet)


@pytest.fixture
def repaired_fleet(clean_fleet: Fleet) -> Iterator[Fleet]:
    """For tests that kill engines: what they killed is back before the next test."""
    yield clean_fleet
    repair(clean_fleet)


def cleaned(fleet: Fleet) -> Fleet:
    """Both engines alive and without any adapter loaded, as after a start."""
    repair(fleet)
    for engine in fleet.engines:
        unload_all(engine.url)
    return fleet


def repair(fleet: Fleet) -> None:
    """Restart what is dead, or alive but silent for long: a busy engine may be slow to answer."""
    for engine in fleet.engines:
        deadline = time.monotonic() + PATIENCE_S
        while engine.alive and not engine.healthy() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not engine.healthy():
            fleet.restart(engine.index)


def post(url: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(url, json=body, timeout=120, trust_env=False)


def loaded(url: str) -> list[str]:
    """Names of the adapters that an engine lists."""
    models = httpx2.get(f"{url}/v1/models", timeout=PATIENCE_S, trust_env=False).json()["data"]
    return [m["id"] for m in models if m["parent"]]


def unload_all(url: str) -> None:
    for name in loaded(url):
        answer = post(f"{url}/v1/unload_lora_adapter", {"lora_name": name})
        assert answer.status_code == httpx2.codes.OK, answer.text


@asynccontextmanager
async def serving(
    fleet: Fleet, state_dir: Path, valkey_url: str, prefix: str, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway whose engines were registered through the admin API, with every check on."""
    async with running_gateway(state_dir, valkey_url, prefix, **SETTINGS | settings) as running:
        for engine, gpu_type in zip(fleet.engines, ("h100", "l40s"), strict=True):
            await register(
                running, engine.url, fleet.model.served_name, name=f"e{engine.index}", gpu_type=gpu_type
            )
        yield running


async def register(gateway: Gateway, url: str, base: str, **fields: Any) -> dict[str, Any]:
    body = {
        "name": "e0",
        "url": url,
        "base": base,
        "gpu_type": "h100",
        "slots": 2,
        "cpu_slots": 8,
        "max_rank": 8,
    }
    async with gateway.http() as http:
        answer = await http.post("/admin/v1/engines", json=body | fields, timeout=120)
    assert answer.status_code in (200, 201), answer.text
    registered: dict[str, Any] = answer.json()
    return registered


async def add_tenant(gateway: Gateway, tenant: str, *, base_access: bool = False) -> None:
    """Add a tenant and a key."""
    async with gateway.http() as http:
        body = {"name": tenant, "base_access": base_access}
        assert (await http.post("/admin/v1/tenants", json=body)).status_code == 201
        answer = await http.post("/admin/v1/keys", json={"tenant": tenant, "role": "tenant"})
        gateway.keys[tenant] = answer.json()["key"]


async def add_adapter(gateway: Gateway, name: str, source: Path) -> None:
    async with gateway.http() as http:
        answer = await http.post(
            "/admin/v1/adapters", json={"adapter": name, "source": str(source)}, timeout=120
        )
    assert answer.status_code == httpx2.codes.CREATED, answer.text


async def add_customers(gateway: Gateway, model: DemoModel) -> None:
    for tenant in ALL:
        await add_tenant(gateway, tenant)
        await add_adapter(gateway, f"{tenant}/support", model.adapters[tenant].path)


@pytest.fixture
async def gateway_with_engines(
    clean_fleet: Fleet, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Gateway]:
    async with serving(clean_fleet, tmp_path / "state", valkey_url, prefix) as running:
        yield running


@pytest.fixture
async def gateway(gateway_with_engines: Gateway, demo_model: DemoModel) -> Gateway:
    """The same with each tenant's adapter."""
    await add_customers(gateway_with_engines, demo_model)
    return gateway_with_engines
