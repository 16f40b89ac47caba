"""Finds FLORIN_* variables that nothing reads, since a typo would otherwise be silently ignored."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

CLIENTS: Final[dict[str, str]] = {
    "FLORIN_URL": "URL of the gateway. Default: `http://127.0.0.1:8080`.",
    "FLORIN_OPERATOR_KEY": "An operator key, or a key of the role that the command requires.",
    "FLORIN_OPERATOR_KEY_FILE": "File that contains that key instead; no other user may read it (mode 0600).",
    "FLORIN_KEY": "The same for customers, with a key of role `tenant-admin`. It takes precedence.",
    "FLORIN_KEY_FILE": "File that contains that key instead.",
    "FLORIN_CA_FILE": "CA certificates (PEM) to verify the gateway with. Empty: the system's.",
    "FLORIN_CLIENT_CERT": "Certificate chain (PEM) to present to a gateway that requires one.",
    "FLORIN_CLIENT_KEY": "Private key (PEM) of `FLORIN_CLIENT_CERT`.",
    "FLORIN_EVENTS_TOKEN": "Bearer token of the receiver, for `florin cost events --url`.",
    "FLORIN_ENGINE_TOKEN": "Enrolment token of a GPU host, for `engine run` and `engine enrol`.",
    "FLORIN_ENGINE_KEY_FILE": "File in which a GPU host stores the key that it got for the token.",
    "FLORIN_HANDED_OVER": "",
    "FLORIN_ENGINE_HOME": "",
}
"""Variables of the commands that talk to a gateway, with descriptions. Those without one are internal: Florin
or its tests set them."""

_OTHERS = re.compile(
    # The demo's, which it writes to its --env-file, and those of tests and load tests;
    "FLORIN_(BASE_URL|BROWSER|FINANCE_KEY|BASE_MODEL|ENGINE_URLS|ENGINE_PIDS|ENGINE_CPU|KEY_.*|MODEL_.*"
    "|LOADTEST_.*|TESTS|TEST_.*"
    # and those that Kubernetes sets in every pod for a Service named florin-….
    "|([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT_[0-9]+_TCP.*))"
)


def unknown(names: Iterable[str]) -> Iterator[str]:
    """A message for each of these variables that nothing reads."""
    candidates = [
        n for n in names if n.startswith("FLORIN_") and n not in CLIENTS and not _OTHERS.fullmatch(n)
    ]
    if not candidates:
        return
    from gateway.config import Settings  # noqa: PLC0415  # slow to import, and rarely needed
    from gateway.config.secret_files import SECRETS, variable  # noqa: PLC0415  # likewise

    known = CLIENTS.keys() | {f"FLORIN_{name.upper()}" for name in Settings.model_fields}
    known |= {variable(name) for name in SECRETS}
    for name in sorted(candidates):
        if name.upper() not in known:  # as pydantic-settings reads them, in any case
            close = difflib.get_close_matches(name, sorted(known - {"FLORIN_HANDED_OVER"}), n=1, cutoff=0.7)
            yield f"{name} is set, but there is no such setting." + (
                f" Did you mean {close[0]}?" if close else ""
            )
