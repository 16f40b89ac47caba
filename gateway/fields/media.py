"""URLs of images, audio and video, which the engine fetches itself.

Engines run inside the operator's network, so only URLs of hosts that the operator has allowed are accepted.
Parsers disagree about backslashes, user names, dots and percent signs in an authority. So Florin does not
send the client's spelling but a URL rebuilt from the checked parts, which all parsers read alike.
"""

from __future__ import annotations

import re

from gateway.fields.rule import FieldReading, WrongError

MAX_URL = 8192
"""Characters of a URL, except `data:` URLs."""
MAX_MEDIA = 64
"""Images, audio clips and videos of one request: each is fetched or decoded separately."""
TOO_MANY = f"be omitted: a request can have at most {MAX_MEDIA} images, audio clips and videos"

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
HOST = rf"{_LABEL}(?:\.{_LABEL})*"
_URL = re.compile(rf"(https?)://({HOST})(?::([0-9]{{1,5}}))?([/?][!-~]*)?", re.IGNORECASE | re.ASCII)
_BACKSLASH = "\\"
_DATA = re.compile(r"data:([a-z0-9.+-]{1,64}/[a-z0-9.+-]{1,64});base64", re.IGNORECASE | re.ASCII)
_ENTRY = re.compile(rf"({HOST})(:[0-9]{{1,5}})?", re.ASCII)
_DEFAULT_PORT = {"http": "80", "https": "443"}


def media_hosts(entries: tuple[str, ...]) -> frozenset[str]:
    """Checks entries of the form `host` (with default ports) or `host:port`, in lower case. Raises
    ValueError."""
    for entry in entries:
        if _ENTRY.fullmatch(entry) is None:
            msg = f"{entry!r} must be `host` or `host:port` in lower case"
            raise ValueError(msg)
    return frozenset(entries)


def media_url(value: object, reading: FieldReading) -> str:
    """The URL to send to the engine. Raises WrongError."""
    if type(value) is not str:
        raise WrongError("be a URL")
    reading.media += 1
    if reading.media > MAX_MEDIA:
        raise WrongError(TOO_MANY)
    if value[:5].lower() == "data:":
        return _data(value)
    return _fetched(value, reading.policy.media_hosts)


def _data(url: str) -> str:
    head, comma, content = url.partition(",")
    match = _DATA.fullmatch(head) if len(head) < 200 else None
    if match is None or not comma:
        raise WrongError("be of the form `data:TYPE/SUBTYPE;base64,…`")
    return f"data:{match[1].lower()};base64,{content}"


def _fetched(url: str, allowed: frozenset[str]) -> str:
    match = _URL.fullmatch(url) if len(url) <= MAX_URL and _BACKSLASH not in url else None
    if match is None:
        raise WrongError("be a `data:` URL, or a plain http(s) URL of a host that the operator has allowed")
    scheme, host, port, path = match[1].lower(), match[2].lower(), match[3], match[4] or "/"
    default = port is None or port == _DEFAULT_PORT[scheme]
    if (host if default else f"{host}:{port}") not in allowed:
        shown = host if len(host) <= 100 else host[:100] + "…"
        raise WrongError(
            f"be a `data:` URL, or a URL of a host that the operator has allowed, which {shown} is not",
            code="media_not_allowed",
        )
    return f"{scheme}://{host}{'' if default else f':{port}'}{'/' if path[0] == '?' else ''}{path}"
