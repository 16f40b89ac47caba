"""What a request costs while somebody watches the console: `python -m loadtests.overhead.watched`.

One gateway, one worker, the plain load of `make bench`, in turn without and with open live pages of the fleet
(`--viewers`, each a stream of server-sent events that redraws every second). Only the ratio of neighbouring
measurements counts: other work on the machine hits both. `--engines` more mock engines are there, so that
there is something to draw.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx2

from loadtests import result_file
from loadtests.overhead import contestants, cpu, report
from loadtests.overhead.__main__ import CROWD, loaded_adapter, measure
from loadtests.overhead.contestants import Contestant
from loadtests.overhead.loadgen import BENCH_CORE
from loadtests.overhead.loads import LOADS

PLAIN = "plain"
LIVE = "/console/live/fleet"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two measurements, one after the other: processor time of the gateway per request, microseconds."""

    alone: float
    watched: float
    drawn: int
    """Pictures that the viewers got meanwhile."""

    @property
    def ratio(self) -> float:
        return self.watched / self.alone


def main() -> int:
    options = _options()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="florin-watched-")))
        with cpu.on_core(BENCH_CORE):
            engine, *others = (
                stack.enter_context(contestants.ThinMockProcess()) for _ in range(1 + options.engines)
            )
        gateway = contestants.florin(engine.url, directory, CROWD)
        stack.callback(gateway.stop)
        gateway.speaker = loaded_adapter(engine)
        _register(gateway, [other.url for other in others])

        def cost() -> float:
            result = measure(gateway, LOADS[PLAIN], engine, options.seconds, [gateway])
            if result.errors:
                raise RuntimeError(f"{result.errors} errors; the first: {result.first_error}")
            return report.figures(PLAIN, gateway.name, {gateway.name: [result]})["cpu_us"].median

        cost()  # so that all its processes run
        pairs = []
        for number in range(options.rounds):
            alone = cost() if number % 2 == 0 else 0.0
            with _viewers(gateway, options.viewers) as pictures:
                watched = cost()
                drawn = len(pictures)
            pairs.append(Pair(alone or cost(), watched, drawn))
            print(f"{pairs[-1].alone:.0f} µs alone, {watched:.0f} µs watched, {drawn} pictures", flush=True)
    ratios = sorted(pair.ratio for pair in pairs)
    print(
        f"{options.viewers} viewers, {1 + options.engines} engines, {options.rounds} rounds: "
        f"ratio {statistics.median(ratios):.3f} (from {ratios[0]:.3f} to {ratios[-1]:.3f})"
    )
    result_file.write(
        options.json,
        viewers=options.viewers,
        engines=1 + options.engines,
        ratio=statistics.median(ratios),
        pairs=pairs,
    )
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.overhead.watched", description=__doc__)
    parser.add_argument("--viewers", type=int, default=1, help="open live pages; a session may have six")
    parser.add_argument("--engines", type=int, default=7, help="more than the one that serves")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    result_file.add_option(parser)
    return parser.parse_args()


def _register(gateway: Contestant, urls: list[str]) -> None:
    """Engines to be drawn. Nothing is placed on them: requests go on to the first."""
    headers = {"authorization": f"Bearer {gateway.operator}"}
    with httpx2.Client(base_url=f"http://127.0.0.1:{gateway.port}", headers=headers, timeout=60) as http:
        base = http.get("/admin/v1/engines").json()["data"][0]["base"]
        for n, url in enumerate(urls):
            body = {
                "name": f"drawn-{n}", "url": url, "base": base, "gpu_type": "drawn", "slots": 2,
                "cpu_slots": 8, "max_rank": 8, "verify": False,
            }  # fmt: skip  # as a table
            answer = http.post("/admin/v1/engines", json=body)
            if not answer.is_success:
                raise RuntimeError(answer.text)
            http.put(f"/admin/v1/engines/drawn-{n}/state", json={"state": "cordoned"}).raise_for_status()


@contextlib.contextmanager
def _viewers(gateway: Contestant, count: int) -> Iterator[list[int]]:
    """Open live pages, which take what comes; the length of each picture is in the list."""
    pictures: list[int] = []
    url = f"http://127.0.0.1:{gateway.port}"
    with httpx2.Client(base_url=url, timeout=60) as browser, ExitStack() as stack:
        browser.post("/console/sign-in", data={"key": gateway.operator})
        for _ in range(count):
            answer = stack.enter_context(browser.stream("GET", LIVE))
            answer.raise_for_status()
            threading.Thread(target=_look, args=(answer, pictures), daemon=True).start()
        yield pictures


def _look(answer: httpx2.Response, pictures: list[int]) -> None:
    with contextlib.suppress(httpx2.HTTPError, httpx2.StreamError, RuntimeError):  # closed: it is over
        for part in answer.iter_text():
            if "event: message" in part:
                pictures.append(len(part))  # noqa: PERF401  # the list is read meanwhile


if __name__ == "__main__":
    sys.exit(main())
