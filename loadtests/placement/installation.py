"""What the load tests on real engines have in common: options, engines, a gateway with tenants and adapters,
and how they end."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console

from deploy.demo.engine_env import ensure_engine_env
from deploy.demo.engines import DemoEngine, EngineOptions, Fleet
from deploy.demo.gateway import Gateway
from deploy.demo.model import DemoModel, ensure_demo_model
from deploy.demo.stack import wait_until_up
from loadtests import result_file
from loadtests.placement.callers import ADAPTERS, TENANTS


def parser(module: str, description: str | None, *, rounds: int, callers: int) -> argparse.ArgumentParser:
    """`rounds`, `callers`: the defaults."""
    options = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    options.add_argument("--rounds", type=int, default=rounds)
    options.add_argument("--callers", type=int, default=callers, help=f"at once ({callers})")
    options.add_argument("--seed", type=int, default=1, help="of the first round")
    result_file.add_option(options)
    return options


@contextmanager
def engines(console: Console, options: EngineOptions | None = None) -> Iterator[tuple[Fleet, Path]]:
    """Two, started, and a folder for what the gateways write."""
    env = ensure_engine_env(console)
    model = ensure_demo_model(env, console)
    with (
        tempfile.TemporaryDirectory(prefix="florin-loadtest-") as folder,
        Fleet(env, model, logs=Path(folder), options=options, own_sessions=True) as fleet,
    ):
        fleet.start()
        yield fleet, Path(folder)


def in_turn(names: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Every round with every name. Each begins with another."""
    for number in range(rounds):
        for turn in range(len(names)):
            yield number, names[(turn + number) % len(names)]


@contextmanager
def installed(
    fleet: Fleet,
    directory: Path,
    settings: Mapping[str, str],
    *,
    entry: str = "gateway.cli",
    cpu_slots: int | None = None,
) -> Iterator[tuple[Gateway, dict[str, str]]]:
    """A gateway of these engines, and the tenants' keys. Afterwards the engines are empty. `cpu_slots`: other
    than there are."""
    directory.mkdir()
    with Gateway(directory / "state", directory / "log", settings=settings, entry=entry) as gateway:
        gateway.launch()
        gateway.wait()
        cpu_slots = fleet.options.cpu_slots if cpu_slots is None else cpu_slots
        yield gateway, register(gateway, fleet, cpu_slots=cpu_slots)
    for engine in fleet.engines:
        _empty(engine, fleet.model)


def conclude(console: Console, path: Path | None, errors: Sequence[str], **results: Any) -> int:
    """Write the results, show the errors, and return the exit code."""
    result_file.write(path, **results)
    for error in errors:
        console.print(error, style="red", markup=False)
    return 1 if errors else 0


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


def _empty(engine: DemoEngine, model: DemoModel) -> None:
    """Unload everything, so that the next gateway finds nothing there."""
    with httpx2.Client(base_url=engine.url, timeout=30, trust_env=False) as http:
        for listed in http.get("/v1/models").json()["data"]:
            if listed["id"] != model.served_name:
                body = {"lora_name": listed["id"]}
                http.post("/v1/unload_lora_adapter", json=body).raise_for_status()
