"""Engines as processes: they end with whoever started them, come back under their URL, and tell apart whom they serve."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil

from deploy.demo.engines import DemoEngine, Fleet


def complete(engine: DemoEngine, model: str, question: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
    answer = httpx.post(f"{engine.url}/v1/chat/completions", json=body, timeout=120, trust_env=False)
    assert answer.status_code == httpx.codes.OK, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def engines_of(demo: subprocess.Popen[bytes]) -> int:
    """How many processes under the demo run vLLM by now."""
    count = 0
    for process in psutil.Process(demo.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            count += any("vllm" in word for word in process.cmdline())
    return count


def gone(processes: list[psutil.Process], seconds: float = 20) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return all(p.status() == psutil.STATUS_ZOMBIE for p in alive)


def test_a_killed_api_server_takes_its_core_along_and_the_next_outlives_the_thread_that_started_it(
    repaired_fleet: Fleet,
):
    """One start shows both. Linux ends a process whose parent asked for it when the parent's *thread* ends."""
    engine = repaired_fleet.engines[1]
    children = psutil.Process(engine.pid).children(recursive=True)
    assert len(children) >= 2  # engine core and worker
    url = engine.url
    os.kill(engine.pid, signal.SIGKILL)
    assert gone(children)
    thread = threading.Thread(target=repaired_fleet.restart, args=(1,))
    thread.start()
    thread.join()
    time.sleep(1)
    assert engine.alive
    assert engine.healthy()
    assert engine.url == url


def test_base_and_adapters_in_one_batch_keep_apart(clean_fleet: Fleet):
    engine, model = clean_fleet.engines[0], clean_fleet.model
    for name in ("acme", "bolt"):
        body = {"lora_name": f"own-{name}", "lora_path": str(model.adapters[name].path)}
        answer = httpx.post(f"{engine.url}/v1/load_lora_adapter", json=body, timeout=60, trust_env=False)
        assert answer.status_code == httpx.codes.OK, answer.text

    def ask(number: int) -> tuple[str, str, str]:
        who = ("acme", "bolt", "")[number % 3]
        question = model.questions[number % len(model.questions)]
        return who, question, complete(engine, f"own-{who}" if who else model.served_name, question)

    with ThreadPoolExecutor(24) as pool:
        for who, question, text in pool.map(ask, range(48)):
            if who:
                assert text == model.adapters[who].answers[question]
            else:
                assert text.startswith(model.voice)


def test_a_killed_demo_leaves_no_process(tmp_path: Path):
    """Killed while its engines start: the moment at which most is half done."""
    demo = subprocess.Popen(
        [sys.executable, "-c", "import gateway.cli; gateway.cli.main()", "demo", "--exit"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # killed, it cannot remove its directory
    )
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and demo.poll() is None and engines_of(demo) < 2:
            time.sleep(0.1)
        time.sleep(1)  # past the first instants of the interpreters
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 3  # two engines and the gateway
    finally:
        demo.kill()
        demo.wait()
    assert gone(children)
