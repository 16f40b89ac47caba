"""Real vLLM engines, started once per run: a fleet of two, and a lone one for what needs no second.

`make test` runs the tests of the fleet, `-m fleet`, beside all others. So there are three engines, or four. Not for
xdist: a second worker would wait for the fleet until the first has ended. A test that kills an engine asks for `repaired_fleet` or `repaired_lone`, which leave it alive.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from rich.console import Console

from deploy.demo.cache import cache_home, locked
from deploy.demo.engine_env import EngineEnv, ensure_engine_env
from deploy.demo.engines import EngineOptions, Fleet
from deploy.demo.model import DemoModel, ensure_demo_model
from tests.support.collector import Collector, collecting
from tests.support.harness import Gateway, running_gateway

HERE = Path(__file__).parent
CUSTOMERS = ("acme", "bolt", "corgi")
ALL = (*CUSTOMERS, "delta")
FLAGS = (
    "--enable-log-requests",
    *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
    *(
        "--structured-outputs-config",
        '{"backend": "xgrammar", "disable_any_whitespace": true}',
    ),  # which a tiny model loves
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            assert isinstance(item, pytest.Function)
            item.add_marker(pytest.mark.engine)
            if "fleet" in item.fixturenames:
                item.add_marker(pytest.mark.fleet)
            if not any(item.iter_markers("timeout")):
                item.add_marker(pytest.mark.timeout(600))  # the first one pays for the engines' start


@pytest.fixture(scope="session")
def engine_env() -> EngineEnv:
    return ensure_engine_env(Console(stderr=True))


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
    extra = (*FLAGS, "--otlp-traces-endpoint", f"{collector.url}/v1/traces")
    with (
        pytest.MonkeyPatch.context() as patch,
        locked(cache_home() / "engine-tests.lock", on_wait=lambda: None),
        Fleet(engine_env, demo_model, logs=logs, options=EngineOptions(extra=extra)) as started,
    ):
        patch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf")
        patch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")  # only what the gateway traces
        started.start()
        yield started


@pytest.fixture(scope="session")
def lone(
    engine_env: EngineEnv, demo_model: DemoModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    """One engine of two slots."""
    options = EngineOptions(extra=FLAGS)
    with Fleet(
        engine_env, demo_model, logs=tmp_path_factory.mktemp("lone"), count=1, options=options
    ) as started:
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
    """Both engines alive and without any adapter loaded, as after a start."""
    return cleaned(fleet)


@pytest.fixture
def clean_lone(lone: Fleet) -> Fleet:
    """The same of the lone engine."""
    return cleaned(lone)


@pytest.fixture
def repaired_fleet(clean_fleet: Fleet) -> Iterator[Fleet]:
    """For tests that kill engines: what they killed is back before the next test."""
    yield clean_fleet
    repair(clean_fleet)


@pytest.fixture
def repaired_lone(clean_lone: Fleet) -> Iterator[Fleet]:
    """The same of the lone engine."""
    yield clean_lone
    repair(clean_lone)


def cleaned(fleet: Fleet) -> Fleet:
    repair(fleet)
    for engine in fleet.engines:
        for name in loaded(engine.url):
            answer = httpx.post(
                f"{engine.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=30, trust_env=False
            )
            assert answer.status_code == httpx.codes.OK, answer.text
    return fleet


def repair(fleet: Fleet) -> None:
    """Restart what is dead, or alive but silent for long: a busy engine may be slow to answer."""
    for engine in fleet.engines:
        deadline = time.monotonic() + 30
        while engine.alive and not engine.healthy() and time.monotonic() < deadline:
            time.sleep(0.1)
        if not engine.healthy():
            fleet.restart(engine.index)


def loaded(url: str) -> list[str]:
    """Names of the adapters that an engine lists."""
    models = httpx.get(f"{url}/v1/models", timeout=30, trust_env=False).json()["data"]
    return [m["id"] for m in models if m["parent"]]


@pytest.fixture
async def gateway_with_engines(
    clean_fleet: Fleet, demo_model: DemoModel, tmp_path: Path, valkey_url: str, prefix: str
) -> AsyncIterator[Gateway]:
    """A gateway whose engines were registered through the admin API, with every check on."""
    async with running_gateway(
        tmp_path / "state", valkey_url, prefix, placement_timeout=60.0, probe_interval=0.5, probe_timeout=5.0
    ) as running:
        async with running.http() as http:
            for engine, gpu_type in zip(clean_fleet.engines, ("h100", "l40s"), strict=True):
                body = {
                    "name": f"e{engine.index}", "url": engine.url, "base": demo_model.served_name,
                    "gpu_type": gpu_type, "slots": 2, "cpu_slots": 8, "max_rank": 8,
                }  # fmt: skip
                answer = await http.post("/admin/v1/engines", json=body)
                assert answer.status_code == 201, answer.text
        yield running


async def add_tenant(gateway: Gateway, tenant: str, *, base_access: bool = False) -> None:
    """Add a tenant and a key."""
    async with gateway.http() as http:
        body = {"name": tenant, "base_access": base_access}
        assert (await http.post("/admin/v1/tenants", json=body)).status_code == 201
        answer = await http.post("/admin/v1/keys", json={"tenant": tenant, "role": "tenant"})
        gateway.keys[tenant] = answer.json()["key"]


@pytest.fixture
async def gateway(gateway_with_engines: Gateway, demo_model: DemoModel) -> Gateway:
    """The same with each tenant's adapter."""
    for tenant in ALL:
        await add_tenant(gateway_with_engines, tenant)
        async with gateway_with_engines.http() as http:
            body = {"adapter": f"{tenant}/support", "source": str(demo_model.adapters[tenant].path)}
            answer = await http.post("/admin/v1/adapters", json=body)
            assert answer.status_code == 201, answer.text
    return gateway_with_engines
