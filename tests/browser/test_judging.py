"""The judges are judged: each finds what a page does wrong, and nothing in a page that is sound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.browser.judging import WEIGHT, judged
from tests.browser.watching import Watched

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.long]  # of the judges, not of a page

SOUND = """
<!doctype html><html lang="en"><head><title>A sound page</title>
<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">
<link rel="stylesheet" href="/style.css">%s</head>
<body><main><h1>A sound page</h1><a href="/">A link</a>
<label>Name <input name="name"></label><button>Do it</button>%s</main></body></html>
"""
STYLE = """
body { color: #222; background: #fff; } p { color: #222 } a { color: #06c; }
@media (prefers-color-scheme: dark) { body, p { color: #eee; background: #111; } a { color: #9cf; } }
"""
TRAP = """document.addEventListener('keydown', event =>
  event.key === 'Tab' && event.target.tagName === 'INPUT' && event.preventDefault())"""
STUBBORN = """
const opener = document.createElement('button'), dialog = document.createElement('dialog');
opener.dataset.dialog = 'd';
opener.textContent = 'Ask';
dialog.ariaLabel = 'Stubborn';
dialog.innerHTML = '<button>No</button>';
dialog.addEventListener('keydown', event => event.preventDefault());
opener.addEventListener('click', () => dialog.showModal());
document.querySelector('main').append(opener, dialog);
"""
HEAD, BODY = 0, 1
FAULTS = {
    "console": (HEAD, '<script src="/complains.js"></script>', "console: that was wrong"),
    "exception": (HEAD, '<script src="/throws.js"></script>', "console: thrown"),
    "inline script": (BODY, "<script>document.title = 'changed'</script>", "content security policy: script-src"),
    "inline style": (BODY, '<p style="color: red">red</p>', "content security policy: style-src"),
    "another host": (BODY, '<img alt="" src="http://outside.example/pixel.png">', "outside: http://outside.example"),
    "another address": (BODY, '<img alt="" src="http://192.0.2.1/pixel.png">', "outside: http://192.0.2.1"),
    "not there": (BODY, '<img alt="" src="/missing.png">', "failed: 404 GET /missing.png"),
    "heavy": (BODY, '<img alt="" src="/heavy.svg">', "weight: "),
    "no label": (BODY, "<input name=unlabelled>", "light: label"),
    "contrast": (BODY, '<p class="pale">pale</p>', "light: color-contrast"),
    "contrast in the dark": (BODY, '<p class="dusky">dusky</p>', "dark: color-contrast"),
    "no focus ring": (BODY, '<button class="ringless">Do it</button>', "keyboard: focus is not visible"),
    "trap": (HEAD, '<script src="/trap.js"></script>', "keyboard: Tab"),
    "deaf opener": (BODY, '<button data-dialog="none">Ask</button>', "dialog of “Ask”: does not open"),
    "stubborn dialog": (HEAD, '<script src="/stubborn.js" defer></script>', "dialog of “Ask”: Escape does not close"),
    "wide": (BODY, '<p class="wide">wide</p>', "width 390: "),
}  # fmt: skip
FILES = {
    "/style.css": ("text/css", STYLE + ".pale { color: #ddd } .ringless { outline: none } .wide { width: 600px }"
                   "@media (prefers-color-scheme: dark) { .dusky { color: #333 } }"),
    "/complains.js": ("text/javascript", "console.error('that was wrong')"),
    "/throws.js": ("text/javascript", "throw new Error('thrown')"),
    "/trap.js": ("text/javascript", TRAP),
    "/stubborn.js": ("text/javascript", STUBBORN),
    "/heavy.svg": ("image/svg+xml", f"<svg xmlns='http://www.w3.org/2000/svg'><!--{'x' * WEIGHT}--></svg>"),
}  # fmt: skip


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        fault = self.path.removeprefix("/page/").replace("%20", " ")
        kind, text = FILES.get(self.path, ("text/html", ""))
        if self.path not in FILES:
            parts = ["", ""]
            if fault in FAULTS:
                parts[FAULTS[fault][0]] = FAULTS[fault][1]
            text = SOUND % tuple(parts)
        self.send_response(404 if self.path == "/missing.png" else 200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.send_header("content-security-policy", "default-src 'self'; img-src 'self' data: http:")
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: object) -> None: ...


@pytest.fixture(scope="module")
def pages() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/page/"
        server.shutdown()
        thread.join()


async def test_a_sound_page_passes(tab: Watched, pages: str, axe: str) -> None:
    await tab.visit(pages + "sound")
    assert await judged(tab, axe) == []
    assert 0 < tab.received < 3000


@pytest.mark.parametrize("fault", FAULTS)
async def test_each_fault_is_found(tab: Watched, pages: str, axe: str, fault: str) -> None:
    await tab.visit(pages + fault)
    found = await judged(tab, axe)
    assert [text for text in found if text.startswith(FAULTS[fault][2])], found
