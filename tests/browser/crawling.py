"""The pages that somebody finds by following links from the first one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from urllib.parse import urlsplit

from starlette.routing import compile_path

from gateway.console.pages import ROUTES
from gateway.console.visit import Route
from tests.browser.watching import Watched

_PATTERNS = [(compile_path(f"/console{route.path}")[0], route) for route in ROUTES if route.method == "GET"]
_LINKS = "links => links.filter(a => !a.hasAttribute('download')).map(a => a.href)"


def route_of(url: str) -> Route | None:
    """The console's route that answers this URL; None: it is elsewhere, or a file."""
    path = urlsplit(url).path.rstrip("/")
    return next((route for pattern, route in _PATTERNS if pattern.match(path)), None)


async def crawl(tab: Watched, home: str, skipped: Collection[str] = ()) -> AsyncIterator[Route]:
    """Yields each route once, when the tab shows a page of it after a first visit: nothing is in its cache. What
    troubles the tab had are those of this page. `skipped`: paths of routes that are not visited."""
    start = f"{home}{urlsplit(tab.page.url).path.removeprefix('/console')}"
    waiting, seen = [start], {route_of(start)}
    while waiting:
        url = waiting.pop(0)
        route = route_of(url)
        assert route is not None
        tab.forget()
        await tab.protocol.send("Network.clearBrowserCache")
        answer = await tab.visit(url)
        assert answer.status == 200, f"{url}: {answer.status}"
        yield route
        for link in await tab.page.locator("a[href]").evaluate_all(_LINKS):
            found = route_of(link)
            if link.startswith(home) and found is not None and found not in seen:
                seen.add(found)
                if found.path not in skipped:
                    waiting.append(link)
