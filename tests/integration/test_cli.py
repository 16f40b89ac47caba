"""The command as people run it: real processes, the embedded Valkey, mock engines."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import psutil
import pytest
from openai import OpenAI

from adapters.store.redis import RedisStore
from gateway.serving.workers import INSERTER, WORKER
from loadtests.mock_engine.process import MockProcess
from tests.support.forms import some_of
from tests.support.lora import lora_config, write_adapter
from tests.support.waiting import until_now

FLORIN = str(Path(sys.executable).parent / "florin")
KEY = "operator-key-of-the-tests"
PATIENCE = 60.0


def environment(**more: str) -> dict[str, str]:
    ours = {k: v for k, v in os.environ.items() if not k.startswith("FLORIN_")}
    return ours | {"FLORIN_OPERATOR_KEY": KEY} | more


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    errors: Path

    def florin(self, *args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return florin(*args, cwd=cwd, FLORIN_URL=self.url)

    def json(self, *args: str) -> dict:
        done = self.florin(*args, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def call(self, method: str, path: str, body: object = None) -> Any:
        """What the admin or finance API answers an operator. A command takes a second of a processor to start, so
        that only tests of commands set things up with them."""
        trusted = ssl.create_default_context(cafile=os.environ.get("SSL_CERT_FILE"))
        headers = {"authorization": f"Bearer {KEY}"}
        with httpx2.Client(verify=trusted, trust_env=False, timeout=PATIENCE, headers=headers) as http:
            answer = http.request(method, self.url + path, json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def florin(*args: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FLORIN, *args],
        env=environment(**env),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@contextmanager
def serving(state_dir: Path, **env: str) -> Iterator[Served]:
    errors = state_dir.parent / f"{state_dir.name}.err"
    env = {
        "FLORIN_PORT": "0",
        "FLORIN_STATE_DIR": str(state_dir),
        "FLORIN_PROBE_INTERVAL": "0.2",
        "FLORIN_BASE_MODEL_DIRS": str(state_dir.parent),
    } | env
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [FLORIN, "serve"],
            env=environment(**env),
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=state_dir.parent,
            start_new_session=True,  # without a terminal, whoever runs the tests
        ) as process,
    ):
        started = psutil.Process(process.pid)
        family: list[psutil.Process] = []
        try:
            line = first_line(process)
            found = re.fullmatch(r"Florin listens on (https?://127\.0\.0\.1:\d+)\n", line)
            assert found, (line, errors.read_text())
            family = started.children(recursive=True)
            yield Served(process, found[1], errors)
        finally:
            if process.poll() is None:
                family += started.children(recursive=True)
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
            psutil.wait_procs(family, PATIENCE)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        return process.stdout.readline()
    finally:
        timer.cancel()


@pytest.fixture
def engine(model):
    with MockProcess(root=str(model)) as running:
        yield running


def add_engine(gateway: Served, engine: MockProcess, name: str = "a1") -> None:
    body = {"name": name, "url": engine.url, "base": "base", "gpu_type": "H200", "slots": 2, "max_rank": 8}
    gateway.call("POST", "/admin/v1/engines", body)


def customer(gateway: Served, tmp_path: Path) -> str:
    """acme with acme/support; its key."""
    gateway.call("POST", "/admin/v1/tenants", {"name": "acme"})
    source = write_adapter(tmp_path / "first", config=lora_config(base_model_name_or_path="base"))
    gateway.call("POST", "/admin/v1/adapters", {"adapter": "acme/support", "source": str(source)})
    made = gateway.call("POST", "/admin/v1/keys", {"tenant": "acme", "role": "tenant"})
    return str(made["key"])


def test_operator_workflow(tmp_path, engine):
    with serving(tmp_path / "state") as gateway:
        assert gateway.florin("tenant", "add", "acme").returncode == 0
        made = gateway.florin("key", "create", "--tenant", "acme")
        key = made.stdout.strip()
        assert key.startswith("fl_")
        assert "It will not be shown again." in made.stderr
        engine_added = gateway.json(
            *("engine", "add", "--name", "a1", "--url", engine.url, "--base", "base"),
            *("--gpu-type", "H200", "--slots", "2", "--max-rank", "8"),
        )
        assert engine_added["name"] == "a1"
        write_adapter(tmp_path / "ours" / "v1", config=lora_config(base_model_name_or_path="base"))
        added = gateway.florin("adapter", "add", "acme/support", "--source", "v1", cwd=tmp_path / "ours")
        assert added.stdout == "acme/support@v1 is registered and live.\n", added.stderr

        with OpenAI(base_url=f"{gateway.url}/v1", api_key=key) as client:
            answer = client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "hi"}]
            )
            assert answer.choices[0].message.content
        until_now(lambda: "acme/support@v1  resident" in gateway.florin("placement").stdout)
        assert gateway.json("explain", "acme/support")["decision"]["action"] == "serve"
        with subprocess.Popen(
            [FLORIN, "placement", "--watch", "--interval", "0.2"],
            env=environment(FLORIN_URL=gateway.url), stdout=subprocess.PIPE, text=True,
        ) as watching:  # fmt: skip
            assert watching.stdout is not None
            heads = (line.split()[:2] for line in watching.stdout if line.startswith("engine"))
            assert list(islice(heads, 3)) == [["engine", "gpu"]] * 3
            watching.send_signal(signal.SIGINT)
            assert watching.wait(PATIENCE) == 0

        write_adapter(tmp_path / "v2", config=lora_config(base_model_name_or_path="base"), fill=1)
        second = gateway.florin("adapter", "add", "acme/support", "--source", str(tmp_path / "v2"))
        assert "florin adapter promote acme/support v2" in second.stdout
        assert gateway.json("adapter", "promote", "acme/support", "v2")["live"] == "v2"
        assert gateway.json("adapter", "rollback", "acme/support")["live"] == "v1"

        bad = lora_config(base_model_name_or_path="base", rank=64)
        write_adapter(tmp_path / "bad", config=bad)
        refused = gateway.florin("adapter", "add", "acme/bad", "--source", str(tmp_path / "bad"))
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "rank_too_high" in refused.stderr
        assert "Traceback" not in refused.stderr

        gateway.json("price", "add", "--gpu-type", "H200", "--rate", "2.50")
        (row,) = gateway.json("cost", "report")["rows"]
        assert (row["tenant"], row["adapter"], row["gpu_type"], row["requests"]) == (
            "acme",
            "acme/support",
            "H200",
            1,
        )
        assert row["cost"] is not None

        planned = gateway.json("engine", "drain", "a1", "--dry-run")
        assert (planned["phase"], planned["alone"]) == ("serving", True)
        assert {stay["reason"] for stay in planned["stays"]} == {"no other engine serves base"}
        drained = gateway.json("engine", "drain", "a1", "--wait", "--timeout", "30")
        assert (drained["phase"], drained["held"]) == ("drained", 0)
        assert gateway.json("engine", "uncordon", "a1")["state"] == "active"

        assert gateway.json("adapter", "remove", "acme/support", "--yes")["removed"]
        assert gateway.json("engine", "remove", "a1")["removed"]
        assert gateway.json("placement") == {"data": []}
        assert gateway.stop() == 0


@pytest.mark.parametrize("workers", some_of(["1", "2"], "2"))
def test_first_signal_lets_streams_finish(tmp_path, engine, workers):
    with serving(tmp_path / "state", FLORIN_WORKERS=workers) as gateway:
        add_engine(gateway, engine)
        key = customer(gateway, tmp_path)
        family = psutil.Process(gateway.process.pid).children(recursive=True)
        engine.faults(event_delay=2.0)
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            next(iter(stream))
            gateway.process.send_signal(signal.SIGTERM)
            until_now(lambda: refuses(gateway.url))
            assert gateway.process.poll() is None  # the stream runs, so the gateway does
            engine.faults(event_delay=0.0)
            assert [c.finish_reason for chunk in stream for c in chunk.choices][-1] is not None
        assert gateway.process.wait(PATIENCE) == 0
        _, left = psutil.wait_procs(family, timeout=PATIENCE)  # Python's own helper ends after its parent
        assert not left
        assert not list((tmp_path / "state").glob("metrics-*"))
        assert not list((tmp_path / "state").rglob("*.sock"))
        errors = gateway.errors.read_text()
        assert "Stopping on SIGTERM" in errors
        assert "Traceback" not in errors


def refuses(url: str) -> bool:
    try:
        httpx2.get(f"{url}/healthz")
    except httpx2.ConnectError:
        return True
    except httpx2.TransportError:
        return False
    return False


def test_a_second_signal_does_not_wait_for_streams(tmp_path, engine):
    with serving(tmp_path / "state", FLORIN_SHUTDOWN_GRACE="600") as gateway:
        add_engine(gateway, engine)
        key = customer(gateway, tmp_path)
        engine.faults(event_delay=30.0)
        with OpenAI(base_url=f"{gateway.url}/v1", api_key=key, max_retries=0) as client:
            stream = client.chat.completions.create(
                model="support", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            gateway.process.send_signal(signal.SIGINT)
            until_now(lambda: refuses(gateway.url))
            assert gateway.process.poll() is None
            assert gateway.stop(signal.SIGINT) == 0
            stream.close()
        assert "Traceback" not in gateway.errors.read_text()


def test_workers_share_the_port_and_are_replaced(tmp_path):
    with serving(tmp_path / "state", FLORIN_WORKERS="2", FLORIN_HEADER_TIMEOUT="600") as gateway:
        silent = [socket.create_connection(("127.0.0.1", urlsplit(gateway.url).port)) for _ in range(6)]
        until_now(lambda: metric(gateway, "florin_connections") >= 6)  # of all workers
        for connection in silent:
            connection.close()
        until_now(lambda: metric(gateway, "florin_connections") <= 2)
        parent = psutil.Process(gateway.process.pid)
        first = workers(parent)
        assert len(first) == 2
        assert parent.num_threads() == 2  # it forks: nothing else may run there but the log's writer
        first[0].kill()
        until_now(lambda: first[0] not in workers(parent) and len(workers(parent)) == 2)
        until_now(lambda: gateway.florin("tenant", "list").returncode == 0)
        until_now(lambda: "died with exit code -9; restarting" in gateway.errors.read_text())
        until_now(lambda: "florin_feed_connected 1.0" in scraped(gateway))  # the new worker says so last
        crashed = workers(parent)[0]
        crashed.send_signal(signal.SIGSEGV)
        until_now(lambda: f"Worker {crashed.pid} died with exit code -11" in gateway.errors.read_text())
        assert "Fatal Python error: Segmentation fault" in gateway.errors.read_text()
        assert gateway.stop() == 0


@pytest.mark.parametrize("count", some_of(["1", "2"], "2"))
def test_a_unix_socket_serves_proxies_and_commands(tmp_path, count):
    path = tmp_path / "socket"
    env = environment(FLORIN_STATE_DIR=str(tmp_path / "state"), FLORIN_WORKERS=count)
    command = [FLORIN, "serve", "--uds", str(path)]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as gateway:
        try:
            assert first_line(gateway) == f"Florin listens on unix:{path}\n"
            made = florin("tenant", "add", "acme", FLORIN_URL=f"unix:{path}")
            assert made.returncode == 0, made.stderr
            with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(path))) as client:
                assert client.get("http://localhost/v1/models").status_code == 401
                assert client.get("http://localhost/readyz").status_code == 200
            second = florin("serve", FLORIN_UDS=str(path), FLORIN_STATE_DIR=str(tmp_path / "another"))
            assert second.returncode == 1
            assert f"another process listens on {path}" in second.stderr
        finally:
            gateway.terminate()
        assert gateway.wait(PATIENCE) == 0
    assert not path.exists()


def metric(gateway: Served, name: str) -> float:
    lines = [line for line in scraped(gateway).splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].split()[-1]) if lines else 0.0


def scraped(gateway) -> str:
    return httpx2.get(f"{gateway.url}/metrics", headers={"authorization": f"Bearer {KEY}"}).text


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("count", some_of(["1", "2"], "2"))
def test_kill_9_of_the_parent_leaves_no_process(tmp_path, count):
    with serving(tmp_path / "state", FLORIN_WORKERS=count) as gateway:
        expected = [] if count == "1" else sorted([INSERTER, WORKER, WORKER])
        family: list[psutil.Process] = []

        def complete() -> bool:  # they name themselves; Valkey is there, and processes of the ledger may be
            family[:] = psutil.Process(gateway.process.pid).children(recursive=True)
            named = sorted(p.name() for p in family if p.name() in expected)
            return named == expected and len(family) > len(expected)

        until_now(complete, what=lambda: repr(family))
        gateway.process.kill()
        gateway.process.wait()
        _, alive = psutil.wait_procs(family, PATIENCE)
        assert not alive
        assert count == "1" or "The parent process has stopped or died" in gateway.errors.read_text()


def workers(parent: psutil.Process) -> list[psutil.Process]:
    found = []
    for child in parent.children():
        with contextlib.suppress(psutil.NoSuchProcess):  # one that ends just now
            if child.status() != psutil.STATUS_ZOMBIE and child.name() == WORKER:
                found.append(child)
    return found


def test_what_was_acknowledged_survives_restarts_of_valkey_and_of_florin(tmp_path):
    with serving(tmp_path / "state") as gateway:
        gateway.json("tenant", "add", "acme")
        children = psutil.Process(gateway.process.pid).children()
        (valkey,) = [child for child in children if "valkey" in child.name()]
        valkey.kill()
        until_now(lambda: gateway.florin("tenant", "add", "bolt").returncode == 0)
        assert [t["name"] for t in gateway.json("tenant", "list")["data"]] == ["acme", "bolt"]
        family = psutil.Process(gateway.process.pid).children(recursive=True)
        gateway.process.kill()
        psutil.wait_procs(family, PATIENCE)  # they end when they notice, and then give up the directory
    with serving(tmp_path / "state") as gateway:
        assert [t["name"] for t in gateway.json("tenant", "list")["data"]] == ["acme", "bolt"]


def test_failed_start_says_why(tmp_path):
    with serving(tmp_path / "state") as gateway:
        port = gateway.url.rpartition(":")[2]
        taken = florin("serve", FLORIN_PORT=port, FLORIN_STATE_DIR=str(tmp_path / "other"))
        assert taken.returncode == 1
        assert (
            taken.stderr
            == f"florin: Port {port} of 127.0.0.1 is in use. Stop the process that uses it, or set FLORIN_PORT.\n"
        )
        shared = florin("serve", FLORIN_PORT="0", FLORIN_STATE_DIR=str(tmp_path / "state"))
        assert shared.returncode == 1
        assert "FLORIN_STATE_DIR" in shared.stderr


@pytest.mark.parametrize("count", some_of(["1", "2"], "2"))
def test_unreachable_redis_is_named(tmp_path, count):
    done = florin(
        "serve",
        FLORIN_PORT="0",
        FLORIN_WORKERS=count,
        FLORIN_STATE_DIR=str(tmp_path / "state"),
        FLORIN_REDIS_URL=f"unix://{tmp_path}/none.sock",
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
    assert not list((tmp_path / "state").glob("metrics-*"))


async def test_an_older_florin_does_not_start_on_the_registry_of_a_newer_one(tmp_path, valkey_url, prefix):
    store = RedisStore(valkey_url, prefix=prefix)
    await store.mark_registry(99)
    await store.close()
    env = {"FLORIN_REDIS_URL": valkey_url, "FLORIN_REDIS_PREFIX": prefix}
    done = await asyncio.to_thread(
        florin, "serve", FLORIN_PORT="0", FLORIN_STATE_DIR=str(tmp_path / "state"), **env
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "was written by a newer version of Florin (its format is 99;" in done.stderr
    assert "Traceback" not in done.stderr


def test_invalid_setting_is_named():
    done = florin("serve", FLORIN_PORT="eighty")
    assert (done.returncode, done.stdout) == (2, "")
    assert "FLORIN_PORT" in done.stderr
    assert "Traceback" not in done.stderr
