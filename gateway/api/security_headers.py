"""Headers that tell browsers how to treat responses of the admin and finance API. Pure.

Those of all responses, the data plane's too, are in `gateway.serving.runner`.
"""

from __future__ import annotations

from typing import Final

from gateway.transport.request_head import Headers

_NOTHING: Final = b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_DOCS: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
"""For the page of FLORIN_API_DOCS, whose scripts and styles are Florin's own files."""


def security_headers(path: str) -> Headers:
    return [
        (b"content-security-policy", _DOCS if path == "/docs" else _NOTHING),
        (b"x-frame-options", b"DENY"),
        (b"referrer-policy", b"no-referrer"),
    ]
