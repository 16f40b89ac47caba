"""Measures how long refusals take: each kind of invalid request, 200 times on one connection, to a real
`florin serve`.

`python -m loadtests.refusals`
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import httpx2
from rich.console import Console
from rich.table import Table

from loadtests.mock_engine import MockProcess
from loadtests.overhead import adapter_files
from loadtests.overhead.contestants import florin

TIMES = 200
BODY = '{"model": "support", "messages": [{"role": "user", "content": "Hi"}]%s}'
KINDS: dict[str, tuple[bytes, int]] = {
    "malformed JSON": (b"{", 400),
    "not UTF-8": ((BODY % "").encode("utf-16"), 400),
    "n of a billion": ((BODY % ', "n": 1000000000').encode(), 400),
    "negative max_tokens": ((BODY % ', "max_tokens": -1').encode(), 400),
    "empty messages": (b'{"model": "support", "messages": []}', 400),
    "400 levels deep": ((BODY % (', "x": ' + "[" * 400 + "]" * 400)).encode(), 400),
    "200,000 brackets": (b"[" * 200_000, 400),
    "4 MB of valid JSON, no model": (b'{"messages": ["' + b"x" * 4_000_000 + b'"]}', 400),
    "5 MB": (b"x" * 5_000_000, 413),
    "unknown model": ((BODY % "").replace("support", "nothing").encode(), 404),
    "name of 10 kB": ((BODY % "").replace("support", "x" * 10_000).encode(), 404),
    "unknown key": ((BODY % "").encode(), 401),
}


def main() -> None:
    table = Table("refusal", "status")
    for heading in ("median ms", "p99 ms", "worst ms"):
        table.add_column(heading, justify="right")
    with tempfile.TemporaryDirectory() as folder, MockProcess(base=adapter_files.BASE) as engine:
        gateway = florin(engine.url, Path(folder))
        try:
            calls = len(engine.log()["calls"])
            with httpx2.Client(base_url=f"http://127.0.0.1:{gateway.port}", timeout=30) as http:
                for kind, (content, status) in KINDS.items():
                    key = "fl_unknown" if status == 401 else gateway.key
                    seconds = [_once(http, key, content, status) for _ in range(TIMES)]
                    figures = (statistics.median(seconds), sorted(seconds)[-3], max(seconds))
                    table.add_row(kind, str(status), *(f"{s * 1000:.1f}" for s in figures))
            reached = len(engine.log()["calls"]) - calls
        finally:
            gateway.stop()
    Console().print(table)
    print(f"{reached} of {TIMES * len(KINDS)} reached the engine.")


def _once(http: httpx2.Client, key: str, content: bytes, status: int) -> float:
    began = time.perf_counter()
    answer = http.post("/v1/chat/completions", content=content, headers={"authorization": f"Bearer {key}"})
    seconds = time.perf_counter() - began
    if answer.status_code != status:
        raise RuntimeError(f"{answer.status_code} instead of {status}: {answer.text[:300]}")
    return seconds


if __name__ == "__main__":
    main()
