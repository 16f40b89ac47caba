"""FLORIN_* variables that nothing reads: a slip of the pen that would otherwise be ignored in silence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Final

CLIENTS: Final[dict[str, str]] = {
    "FLORIN_URL": "Where the gateway listens. Default: `http://127.0.0.1:8080`.",
    "FLORIN_OPERATOR_KEY": "A key of role operator, or of the role that the command needs.",
    "FLORIN_OPERATOR_KEY_FILE": "A file with that key instead, which nobody else may read (mode 0600).",
    "FLORIN_CA_FILE": "CA certificates (PEM) that the gateway is verified with. Empty: those of the system.",
    "FLORIN_CLIENT_CERT": "Certificate chain (PEM) that is shown to a gateway that asks for one.",
    "FLORIN_CLIENT_KEY": "Its private key (PEM).",
    "FLORIN_ENGINE_TOKEN": "Enrolment token of a GPU host, for `engine run` and `engine enrol`.",
    "FLORIN_ENGINE_KEY_FILE": "Where a GPU host keeps the key that it got for the token.",
    "FLORIN_HANDED_OVER": "",
    "FLORIN_ENGINE_HOME": "",
}
"""What the commands read that speak to a gateway, `engine run` among them, and what each says. One without a
text is not for users: Florin or its tests set it."""

_OTHERS = re.compile(
    # The demo's, which it writes into its --env-file, and those of tests and load tests;
    "FLORIN_(BASE_URL|FINANCE_KEY|BASE_MODEL|ENGINE_URLS|ENGINE_PIDS|ENGINE_CPU|KEY_.*|MODEL_.*"
    "|LOADTEST_.*|FIRE_.*|TEST_.*"
    # and what Kubernetes sets in every pod beside a Service that is called florin-something.
    "|([A-Z0-9_]+_)?(SERVICE_HOST|SERVICE_PORT.*|PORT_[0-9]+_TCP.*))"
)


def unknown(names: Iterable[str]) -> Iterator[str]:
    """A sentence for each variable of these that nothing reads."""
    asked = [n for n in names if n.startswith("FLORIN_") and n not in CLIENTS and not _OTHERS.fullmatch(n)]
    if not asked:
        return
    from gateway.config import Settings  # noqa: PLC0415  # loads slowly, and most commands never get here

    known = CLIENTS.keys() | {f"FLORIN_{name.upper()}" for name in Settings.model_fields}
    for name in sorted(asked):
        if name.upper() not in known:  # as pydantic-settings reads them, in any case
            close = difflib.get_close_matches(name, sorted(known - {"FLORIN_HANDED_OVER"}), n=1, cutoff=0.7)
            yield f"{name} is set, but there is no such setting" + (
                f": is {close[0]} meant?" if close else "."
            )
