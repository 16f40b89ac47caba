"""An upload of hundreds of megabytes, by the command and a real gateway: neither holds it in memory."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.integration.test_cli import FLORIN, Served, environment, serving
from tests.support.lora import LLAMA, lora_config

SIZE = 128 * 1024**2
GROWTH = 64 * 1024**2
"""Bytes that a process may grow by: half of what is sent. Threads' buffers and libraries are some 30 MiB."""


def peak(process: str) -> int:
    """Bytes of memory that a process has ever had at once."""
    [line] = [s for s in Path(f"/proc/{process}/status").read_text().splitlines() if s.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


def add(served: Served, *args: str) -> tuple[int, int, str]:
    """Exit code, peak of its memory in bytes, stdout."""
    command = subprocess.Popen(
        [FLORIN, "adapter", "add", "acme/support", "--json", *args],
        env=environment(FLORIN_URL=served.url),
        stdout=subprocess.PIPE,
        text=True,
    )
    with command.stdout:
        said = command.stdout.read()
    _, status, usage = os.wait4(command.pid, 0)
    command.returncode = os.waitstatus_to_exitcode(status)
    return command.returncode, usage.ru_maxrss * 1024, said


def test_memory_does_not_grow_with_what_is_sent(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA.config))
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps(lora_config(base_model_name_or_path="base")))
    with serving(tmp_path / "state") as served:
        served.call("POST", "/admin/v1/tenants", {"name": "acme"})
        served.json(
            *(
                "engine",
                "add",
                "--name",
                "a1",
                "--url",
                "http://127.0.0.1:9",
                "--base",
                "base",
                "--no-verify",
            ),
            *("--gpu-type", "H100", "--slots", "2", "--max-rank", "8"),
            *("--base-config", str(tmp_path / "config.json")),
        )
        weights = adapter / "adapter_model.safetensors"
        weights.write_bytes(b"")
        code, small, said = add(served, "--upload", str(adapter))
        refused_for(code, said)
        before = peak(str(served.process.pid))
        with weights.open("r+b") as file:
            file.truncate(SIZE)  # holes: nothing is on this disk
        code, large, said = add(served, "--upload", str(adapter))
        refused_for(code, said)
        assert peak(str(served.process.pid)) - before < GROWTH
        assert large - small < GROWTH
        staging = tmp_path / "state" / "artifacts" / ".staging"
        assert list(staging.iterdir()) == []


def refused_for(code: int, said: str) -> None:
    """Zeros are no weights: it was sent whole, unpacked, and looked at."""
    assert code == 1, said
    assert [f["code"] for f in json.loads(said)["error"]["findings"]] == ["header_invalid"]
