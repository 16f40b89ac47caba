"""How soon does a page of the console show something, and how heavy is it? `python -m loadtests.console`.

An installation with 64 engines, 300 adapters and 40 customers; `florin serve` in processes of its own. Of
each page: the time to its last byte and the gateway's processor time, asked by a plain client on a kept
connection; its bytes; and when Chromium paints its first content, in a new tab with an empty cache (for which
it starts a process), and again in that tab with what it has kept. Chromium visits an empty static page in the
same rounds: what that takes is the browser's and the machine's own share. Everything runs on the same
machine, so a busy one shows in all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from playwright.async_api import Browser, Page, async_playwright
from rich.console import Console
from rich.table import Table

from loadtests import result_file
from loadtests.console import crowd
from loadtests.console.installation import Installation, installation
from tests.tools.browser import environment

PAGES = {
    "fleet": "/fleet",
    "fleet, a table": "/fleet?view=table",
    "adapters": "/adapters",
    "an adapter": f"/adapters/{crowd.adapter_of(1)}",
    "tenants": "/tenants",
    "a tenant": f"/tenants/{crowd.tenant_of(1)}",
    "requests": "/requests",
    "a request": f"/requests/{crowd.request_of(1)}",
    "money": "/money?month=2026-10",
    "health": "/health",
    "audit": "/audit",
    "settings": "/settings",
}
EMPTY = "an empty static page"
_EMPTY_PAGE = b"<!doctype html><html lang=en><title>Empty</title><p>Nothing."
_HEADERS = {
    "content-type": "text/html",
    "connection": "close",
    "cross-origin-opener-policy": "same-origin",  # as of the console: the browser starts a process for it
}
"""Headers of the empty page."""
_ASSET = re.compile(r'(?:<link rel="stylesheet" href|<script src|<use href)="(/console/static/[^"#]+)')
_NOTE_CONTENT = """
new MutationObserver((changes, observer) => {
  if (document.querySelector('h1, body > p')) { window.contentAt = performance.now(); observer.disconnect(); }
}).observe(document, {childList: true, subtree: true});
"""
_PAINTED = """
() => new Promise((resolve) => {
  const tell = (entry) => {
    if (!window.contentAt) { setTimeout(tell, 20, entry); return; }
    const {responseEnd} = performance.getEntriesByType('navigation')[0];
    resolve([entry.startTime, responseEnd, window.contentAt]);
  };
  new PerformanceObserver((list, observer) => {
    const found = list.getEntriesByName('first-contentful-paint')[0];
    if (found) { observer.disconnect(); tell(found); }
  }).observe({type: 'paint', buffered: true});
})
"""


@dataclass(slots=True)
class Measured:
    """Times in milliseconds, medians; bytes."""

    server_ms: float = 0.0
    """To the last byte."""
    server_least_ms: float = 0.0
    processor_ms: float = 0.0
    html_bytes: int = 0
    """As sent."""
    plain_bytes: int = 0
    """Not compressed."""
    cold_bytes: int = 0
    """With all that the page links, as sent."""
    cold_paint_ms: float = 0.0
    cold_least_ms: float = 0.0
    warm_paint_ms: float = 0.0
    warm_least_ms: float = 0.0
    warm_response_ms: float = 0.0
    """The part until the last byte had arrived."""
    warm_content_ms: float = 0.0
    """Until the page's heading is there: later than the paint where only the frame comes at once."""


def main() -> int:
    options = _options()
    pages = {name: Measured() for name in [*PAGES, EMPTY]}
    with (
        tempfile.TemporaryDirectory(prefix="florin-console-") as directory,
        installation(Path(directory)) as running,
    ):
        _ask(running, pages, options.visits)
        asyncio.run(_look(running, pages, options.rounds))
    _show(pages)
    result_file.write(options.json, load=os.getloadavg()[0], pages=pages)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadtests.console", description=__doc__)
    parser.add_argument("--visits", type=int, default=30, help="of the plain client, to each page")
    parser.add_argument("--rounds", type=int, default=7, help="of Chromium through all pages")
    result_file.add_option(parser)
    return parser.parse_args()


def _ask(running: Installation, pages: Mapping[str, Measured], visits: int) -> None:
    """What the gateway itself takes."""
    with httpx2.Client(base_url=running.url, timeout=60) as client:
        client.post("/console/sign-in", data={"key": running.operator})
        assets: dict[str, int] = {}
        for name, path in PAGES.items():
            for _ in range(3):  # what is compiled at first use
                answer = client.get(f"/console{path}").raise_for_status()
            page = pages[name]
            page.plain_bytes = len(answer.content)
            page.html_bytes = answer.num_bytes_downloaded
            for url in {*_ASSET.findall(answer.text)} - assets.keys():
                assets[url] = client.get(url).raise_for_status().num_bytes_downloaded
            page.cold_bytes = page.html_bytes + sum(assets[url] for url in {*_ASSET.findall(answer.text)})
            times = []
            before = running.processor()
            for _ in range(visits):
                begun = time.perf_counter()
                client.get(f"/console{path}").raise_for_status()
                times.append((time.perf_counter() - begun) * 1e3)
            page.processor_ms = (running.processor() - before) / visits * 1e3
            page.server_ms, page.server_least_ms = statistics.median(times), min(times)


async def _look(running: Installation, pages: Mapping[str, Measured], rounds: int) -> None:
    """When Chromium paints."""
    installed = environment.browser()
    async with async_playwright() as playwright, _empty_page() as empty:
        browser = await playwright.chromium.launch(
            executable_path=installed.executable, env={**os.environ, **installed.environment}
        )
        urls = {EMPTY: empty} | {name: f"{running.url}/console{path}" for name, path in PAGES.items()}
        cookies = await _signed_in(running)
        cold: dict[str, list[float]] = {name: [] for name in urls}
        warm: dict[str, list[float]] = {name: [] for name in urls}
        until: dict[str, list[float]] = {name: [] for name in urls}
        content: dict[str, list[float]] = {name: [] for name in urls}
        for _ in range(rounds):
            for name, url in urls.items():
                painted, again = await _visit(browser, cookies, url)
                cold[name].append(painted[0])
                warm[name].append(again[0])
                until[name].append(again[1])
                content[name].append(again[2])
        await browser.close()
    for name, page in pages.items():
        page.cold_paint_ms, page.cold_least_ms = statistics.median(cold[name]), min(cold[name])
        page.warm_paint_ms, page.warm_least_ms = statistics.median(warm[name]), min(warm[name])
        page.warm_response_ms = statistics.median(until[name])
        page.warm_content_ms = statistics.median(content[name])


async def _signed_in(running: Installation) -> list[Any]:
    async with httpx2.AsyncClient(base_url=running.url) as client:
        await client.post("/console/sign-in", data={"key": running.operator})
        return [
            {"name": cookie.name, "value": cookie.value, "domain": "127.0.0.1", "path": "/console"}
            for cookie in client.cookies.jar
        ]


async def _visit(browser: Browser, cookies: list[Any], url: str) -> tuple[list[float], list[float]]:
    """First paint, last byte and content, of a browser that was never here, and when it comes again:
    milliseconds since the visit began."""
    context = await browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
    try:
        await context.add_cookies(cookies)
        page = await context.new_page()
        await page.add_init_script(_NOTE_CONTENT)
        cold = await _painted(page, url)
        return cold, await _painted(page, url)
    finally:
        await context.close()


async def _painted(page: Page, url: str) -> list[float]:
    await asyncio.sleep(0.3)  # what the last page still does is not this one's
    await page.goto(url, wait_until="load")
    timings: list[float] = await page.evaluate(_PAINTED)
    return timings


@asynccontextmanager
async def _empty_page() -> AsyncIterator[str]:
    """Its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        fields = "".join(f"{name}: {value}\r\n" for name, value in _HEADERS.items())
        head = f"HTTP/1.1 200 OK\r\n{fields}content-length: {len(_EMPTY_PAGE)}\r\n\r\n"
        writer.write(head.encode() + _EMPTY_PAGE)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def _show(pages: Mapping[str, Measured]) -> None:
    table = Table(title="Pages of the console: medians (least)", title_justify="left")
    headings = (
        *("page", "last byte, ms", "processor, ms", "HTML sent, kB", "plain, kB", "cold visit, kB"),
        *("cold paint, ms", "warm paint, ms", "last byte, ms", "content, ms"),
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "page" else "right")
    for name, page in pages.items():
        table.add_row(
            name,
            f"{page.server_ms:.1f} ({page.server_least_ms:.1f})",
            f"{page.processor_ms:.1f}",
            f"{page.html_bytes / 1e3:.1f}",
            f"{page.plain_bytes / 1e3:.1f}",
            f"{page.cold_bytes / 1e3:.1f}",
            f"{page.cold_paint_ms:.0f} ({page.cold_least_ms:.0f})",
            f"{page.warm_paint_ms:.0f} ({page.warm_least_ms:.0f})",
            f"{page.warm_response_ms:.0f}",
            f"{page.warm_content_ms:.0f}",
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main())
