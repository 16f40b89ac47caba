"""Headers that tell browsers how to treat responses of the admin and finance API. Pure.

Those of all responses, the data plane's too, are in `gateway.serving.runner`.
"""

from __future__ import annotations

from typing import Final

from gateway.transport.request_head import Headers

_PAGES: Final = frozenset({"/docs", "/docs/oauth2-redirect", "/redoc"})
_NOTHING: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_DOCS: Final = (
    b"default-src 'none'; script-src 'unsafe-inline' https://cdn.jsdelivr.net; "
    b"style-src 'unsafe-inline' https://cdn.jsdelivr.net https://fonts.googleapis.com; "
    b"font-src https://fonts.gstatic.com; img-src data: https://fastapi.tiangolo.com https://cdn.redoc.ly; "
    b"connect-src 'self'; worker-src blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""For the pages of FLORIN_API_DOCS, whose scripts and styles come from a content delivery network."""


def security_headers(path: str) -> Headers:
    return [
        (b"content-security-policy", _DOCS if path in _PAGES else _NOTHING),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
    ]
