"""Engines as processes: they end with whoever started them, and tell apart whom they serve."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import psutil

from deploy.demo.engines import START_TIMEOUT_S, DemoEngine, Fleet
from tests.engine.conftest import post
from tests.support.waiting import PATIENCE_S, until_now


def complete(engine: DemoEngine, model: str, question: str) -> str:
    body = {"model": model, "messages": [{"role": "user", "content": question}], "temperature": 0}
    answer = post(f"{engine.url}/v1/chat/completions", body)
    assert answer.status_code == httpx2.codes.OK, answer.text
    return str(answer.json()["choices"][0]["message"]["content"])


def engines_of(demo: subprocess.Popen[bytes]) -> int:
    """How many processes under the demo run vLLM, and are past the first instants of the interpreter, when they ask to
    end with their parent."""
    count = 0
    for process in psutil.Process(demo.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            started = process.memory_info().rss > 50_000_000
            count += started and any("vllm" in word for word in process.cmdline())
    return count


def test_base_and_adapters_in_one_batch_keep_apart(clean_fleet: Fleet):
    engine, model = clean_fleet.engines[0], clean_fleet.model
    for name in ("acme", "bolt"):
        body = {"lora_name": f"own-{name}", "lora_path": str(model.adapters[name].path)}
        answer = post(f"{engine.url}/v1/load_lora_adapter", body)
        assert answer.status_code == httpx2.codes.OK, answer.text

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
        until_now(lambda: demo.poll() is not None or engines_of(demo) >= 2, START_TIMEOUT_S)
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) >= 3, "two engines and the gateway"
    finally:
        demo.kill()
        demo.wait()
    _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in alive)
