"""How much longer the first token of an adapter takes that its engine has yet to load.

`python -m loadtests.overhead.cold [--adapters N] [--json FILE]`

The mock engine loads and answers probes at once, so the difference to the next request for the same adapter
is what Florin adds: it claims a slot, asks the engine to load, and verifies what it loaded.
"""

from __future__ import annotations

import argparse
import http.client
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx2
import orjson

from loadtests import result_file
from loadtests.overhead import adapter_files, contestants, cpu
from loadtests.overhead.contestants import Contestant, ThinMockProcess
from loadtests.overhead.loadgen import BENCH_CORE, percentiles
from loadtests.overhead.loads import MESSAGES

TARGET_MS = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead.cold", description=__doc__)
    parser.add_argument("--adapters", type=int, default=100)
    result_file.add_option(parser)
    options = parser.parse_args()
    names = [f"cold-{number}" for number in range(options.adapters)]
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-cold-")))
        slots = options.adapters + 1
        with cpu.on_core(BENCH_CORE):
            engine = stack.enter_context(ThinMockProcess(max_loras=slots, max_cpu_loras=slots))
        florin = contestants.florin(engine.url, directory, slots=slots)
        stack.callback(florin.stop)
        _register(florin, names, directory)
        with cpu.on_core(BENCH_CORE):
            took = [(_first_token(florin, name), _first_token(florin, name)) for name in names]
    figures = {
        "cold": percentiles([cold for cold, _ in took]),
        "warm": percentiles([warm for _, warm in took]),
        "added": percentiles([cold - warm for cold, warm in took]),
    }
    for name, points in figures.items():
        print(f"{name}:", ", ".join(f"{point} {value:.2f} ms" for point, value in points.items()))
    print(f"target: at most {TARGET_MS:g} ms added, p99")
    result_file.write(options.json, milliseconds=figures)
    return 0


def _register(florin: Contestant, names: list[str], directory: Path) -> None:
    headers = {"authorization": f"Bearer {florin.operator}"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{florin.port}", headers=headers, timeout=30) as http:
        for seed, name in enumerate(names, 2):
            source = adapter_files.write_adapter(directory / name, seed)
            body = {"adapter": f"acme/{name}", "source": str(source)}
            http.post("/admin/v1/adapters", json=body).raise_for_status()


def _first_token(florin: Contestant, adapter: str) -> float:
    """Seconds from the request to the first byte of the answer's body."""
    body = orjson.dumps({"model": adapter, "messages": MESSAGES, "max_tokens": 2, "stream": True})
    headers = {"authorization": f"Bearer {florin.key}", "content-type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", florin.port, timeout=30)
    connection.connect()
    begun = time.perf_counter()
    connection.request("POST", "/v1/chat/completions", body, headers)
    answer = connection.getresponse()
    first = answer.read1()
    took = time.perf_counter() - begun
    if answer.status != 200 or b"[DONE]" not in first + answer.read():
        raise RuntimeError(f"{adapter}: {answer.status} {first[:300]!r}")
    connection.close()
    return took


if __name__ == "__main__":
    sys.exit(main())
