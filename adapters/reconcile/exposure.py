"""Finds what is exposed to unauthorized access: open listeners, plain-text traffic, readable files. Used by
`florin doctor` and at start-up. Pure, except for `of_state`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from adapters.model import Engine
from adapters.reconcile.diagnosis import SHOWN, Diagnosis
from adapters.security import ip_addresses, state_directory
from adapters.security.ip_addresses import parse_address
from adapters.security.renewal import Identity, day

SOON_DAYS = 14
"""How long before its expiry a certificate should be renewed."""


def is_loopback(host: str) -> bool:
    """Whether `host`, an address or a name, is reachable from this machine only. Names count only if reserved
    for loopback."""
    name = host.strip("[]").partition("%")[0].rstrip(".").lower()
    return name == "localhost" or name.endswith(".localhost") or ip_addresses.is_loopback(parse_address(name))


def of_listener(host: str, *, tls: bool, behind_proxy: bool, what: str, remedy: str) -> Diagnosis:
    """Judge a listener at `host`. `what` starts the sentence: "The gateway"."""
    check = "listener"
    if tls:
        return Diagnosis(check, "ok", host, f"{what} speaks TLS.")
    if is_loopback(host):
        return Diagnosis(check, "ok", host, f"{what} listens on this machine only.")
    if behind_proxy:
        message = f"{what} speaks plain HTTP on {host}; a proxy terminates TLS (FLORIN_BEHIND_PROXY)."
        return Diagnosis(check, "ok", host, message)
    return Diagnosis(
        check, "warning", host,
        f"{what} speaks plain HTTP on {host}, so anyone on the network path can read keys and prompts.",
        remedy,
    )  # fmt: skip


def of_certificates(identities: Iterable[Identity], now: float) -> Iterator[Diagnosis]:
    """`now`: Unix seconds."""
    check = "certificate"
    for identity in identities:
        left, until = identity.pair.not_after - now, day(identity.pair.not_after)
        if left <= 0:
            yield Diagnosis(
                check, "problem", identity.name,
                f"It expired on {until}, and every client that verifies it refuses it.",
                f"Renew {identity.files[0]}; it is loaded without a restart.",
            )  # fmt: skip
        elif identity.trouble:
            yield Diagnosis(
                check, "warning", identity.name,
                f"The renewed certificate was not loaded; the old one stays until {until}: "
                f"{identity.trouble}",
                "Install a valid certificate and its key; they are loaded without a restart.",
            )  # fmt: skip
        elif left < SOON_DAYS * 86_400:
            yield Diagnosis(
                check, "warning", identity.name, f"It expires on {until}.",
                f"Renew {identity.files[0]}; it is loaded without a restart.",
            )  # fmt: skip
        else:
            yield Diagnosis(check, "ok", identity.name, f"It is valid until {until}.")


def of_engines(engines: Iterable[Engine]) -> Iterator[Diagnosis]:
    """Engines whose prompts and answers cross a network in plain text."""
    plain = [
        (engine.name, url)
        for engine in engines
        for url in (engine.url, engine.agent)
        if url.startswith("http://") and not is_loopback(urlsplit(url).hostname or "")
    ]
    if not plain:
        return
    names = sorted({name for name, _ in plain})
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    yield Diagnosis(
        "engine_tls", "warning", names[0] if len(names) == 1 else "",
        f"Prompts and answers go to {', '.join(names[:SHOWN])}{more} in plain text, and anyone who reaches "
        "these engines can use them without going through Florin.",
        "Start them with --ssl-certfile, --ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs 2, and set "
        "FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT and FLORIN_ENGINE_KEY. On a dedicated private network "
        "you can ignore this.",
    )  # fmt: skip


def of_docs(host: str, *, served: bool) -> Iterator[Diagnosis]:
    if served and not is_loopback(host):
        yield Diagnosis(
            "api_docs", "warning", host, "/docs and /openapi.json are public.",
            "Unset FLORIN_API_DOCS.",
        )  # fmt: skip


def of_state(directory: Path) -> Iterator[Diagnosis]:
    """Whether other users can read or change Florin's files. Blocking."""
    inspection = state_directory.inspect(directory)
    if inspection.open_to_others:
        shown = ", ".join(map(str, inspection.open_to_others[:SHOWN]))
        yield Diagnosis(
            "state_dir", "warning", str(directory),
            f"Other users can access {len(inspection.open_to_others)} of Florin's files: {shown}.",
            f"chmod -R go-rwx {shown}",
        )  # fmt: skip
    elif inspection.shared:
        yield Diagnosis(
            "state_dir", "warning", str(directory),
            "Other users can enter it, and it holds files not Florin's own (such as "
            f"{inspection.foreign[0]}).",
            "Set FLORIN_STATE_DIR to a directory that only Florin uses.",
        )  # fmt: skip
    else:
        yield Diagnosis("state_dir", "ok", str(directory), "Only Florin's user can access it.")
