"""A page of a real browser, and everything about its visits that a person would not want to meet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from playwright.async_api import (
    Browser,
    BrowserContext,
    CDPSession,
    ConsoleMessage,
    Error,
    Page,
    Request,
    Response,
)

_REPORT_VIOLATIONS = """
document.addEventListener('securitypolicyviolation', event =>
  reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sample}`.trim()));
"""
_KEEP_STREAMS = """
window.openStreams = [];
window.EventSource = class extends EventSource {
  constructor(...given) { super(...given); window.openStreams.push(this); }
};
"""
_STATUS_MESSAGE = "Failed to load resource: the server responded with a status of "
"""How Chromium repeats in the console what `Watched.failed` has already."""
_SETTLED = 0.05
"""Seconds without a request in flight after which htmx has asked for all it wants."""


@dataclass
class Watched:
    """One tab. The lists grow until `forget`."""

    page: Page
    protocol: CDPSession
    errors: list[str] = field(default_factory=list)
    """Of the console, and exceptions that no script caught."""
    violations: list[str] = field(default_factory=list)
    """Of the content security policy."""
    outside: list[str] = field(default_factory=list)
    """URLs of other machines; they could not be reached."""
    failed: list[str] = field(default_factory=list)
    """Requests that were not answered, or with 400 or more: `403 GET /console/audit`."""
    received: int = 0
    """Bytes of all answers, with their headers, as they went over the network."""
    _pending: set[Request] = field(default_factory=set)

    @property
    def troubles(self) -> list[str]:
        """Of all kinds, in words."""
        return [
            *(f"console: {text}" for text in self.errors),
            *(f"content security policy: {text}" for text in self.violations),
            *(f"outside: {url}" for url in self.outside),
            *(f"failed: {text}" for text in self.failed),
        ]

    def forget(self) -> None:
        for troubles in (self.errors, self.violations, self.outside, self.failed):
            troubles.clear()
        self.received = 0

    async def visit(self, url: str) -> Response:
        """Opens the page and waits until all that it loads is there; event streams go on."""
        answer = await self.page.goto(url)
        assert answer is not None
        await self.settled()
        return answer

    async def stand_still(self) -> None:
        """Ends the event streams: what they replace is not what was looked at."""
        await self.page.evaluate("() => window.openStreams.forEach(stream => stream.close())")

    async def press_tab(self, times: int) -> None:
        """Without waiting for what one press does before the next: the page sees them in turn."""
        key = {"type": "rawKeyDown", "key": "Tab", "code": "Tab", "windowsVirtualKeyCode": 9}
        await asyncio.gather(*(self.protocol.send("Input.dispatchKeyEvent", key) for _ in range(times)))

    async def settled(self) -> None:
        """Waits until nothing is being loaded."""
        await self.page.wait_for_load_state("load")
        quiet = 0
        while quiet < 2:
            quiet = quiet + 1 if await self._page_lived(_SETTLED / 2) and not self._pending else 0

    async def _page_lived(self, seconds: float) -> bool:
        """Whether the page's own clock has gone on so long, and all that was due by then is done. The browser may stand
        still while the clock here goes on."""
        try:
            await self.page.evaluate("ms => new Promise(done => setTimeout(done, ms))", seconds * 1000)
        except Error:  # another page came
            await self.page.wait_for_load_state("load")
            return False
        return True

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not message.text.startswith(_STATUS_MESSAGE):
            self.errors.append(message.text)

    def _on_violation(self, text: str) -> None:
        self.violations.append(text)

    def _on_request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("data", "blob", "about"):
            return
        if parts.hostname != "127.0.0.1":
            self.outside.append(request.url)
        elif request.resource_type != "eventsource":
            self._pending.add(request)

    def _on_response(self, response: Response) -> None:
        if response.status >= 400:
            request = response.request
            self.failed.append(f"{response.status} {request.method} {urlsplit(request.url).path}")

    def _on_end(self, request: Request) -> None:
        self._pending.discard(request)

    def _on_failure(self, request: Request) -> None:
        self._pending.discard(request)
        aborted = (
            request.failure == "net::ERR_ABORTED"
        )  # by the page itself: it was left, or a download began
        if not aborted and urlsplit(request.url).hostname == "127.0.0.1":
            self.failed.append(f"{request.failure} {request.method} {urlsplit(request.url).path}")

    def _on_bytes(self, event: dict[str, int]) -> None:
        self.received += event["encodedDataLength"]


@contextlib.asynccontextmanager
async def watched(context: BrowserContext) -> AsyncIterator[Watched]:
    """A new tab."""
    page = await context.new_page()
    protocol = await context.new_cdp_session(page)
    tab = Watched(page, protocol)
    await page.expose_function("reportViolation", tab._on_violation)
    await page.add_init_script(_REPORT_VIOLATIONS + _KEEP_STREAMS)
    page.on("console", tab._on_console)
    page.on("pageerror", lambda error: tab.errors.append(str(error)))
    page.on("request", tab._on_request)
    page.on("response", tab._on_response)
    page.on("requestfinished", tab._on_end)
    page.on("requestfailed", tab._on_failure)
    protocol.on("Network.loadingFinished", tab._on_bytes)
    await protocol.send("Network.enable")
    try:
        yield tab
    finally:
        await page.close()


@contextlib.asynccontextmanager
async def new_context(
    browser: Browser, width: int = 1280, **options: object
) -> AsyncIterator[BrowserContext]:
    """A browser that has been nowhere yet, with an empty cache and no cookie; without animations, which would be
    looked at half-way."""
    viewport = {"width": width, "height": 800}
    settings = {"viewport": viewport, "reduced_motion": "reduce", "locale": "en-GB", "timezone_id": "UTC"}
    context = await browser.new_context(**(settings | options))
    context.set_default_timeout(60_000)
    try:
        yield context
    finally:
        await context.close()
