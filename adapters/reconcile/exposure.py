"""What can be reached, read or overheard by those who should not. Pure, but for `of_state`: findings for
`florin doctor` and for the first lines of a log."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from adapters.model import Engine
from adapters.reconcile.diagnosis import SHOWN, Diagnosis
from adapters.security import state_directory
from adapters.security.tls import Identity, day

SOON_DAYS = 14
"""Before its end, a certificate should have been renewed."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`, an address or a name. A name counts only if it is reserved
    for that."""
    name = host.strip("[]").partition("%")[0].rstrip(".").lower()
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def of_listener(host: str, *, tls: bool, behind_proxy: bool, what: str, remedy: str) -> Diagnosis:
    """`what` listens at `host`, in a sentence's beginning: "The gateway"."""
    check = "listener"
    if tls:
        return Diagnosis(check, "ok", host, f"{what} speaks TLS.")
    if is_loopback(host):
        return Diagnosis(check, "ok", host, f"{what} listens on this machine only.")
    if behind_proxy:
        said = f"{what} speaks plain HTTP on {host}; TLS ends at a proxy in front (FLORIN_BEHIND_PROXY)."
        return Diagnosis(check, "ok", host, said)
    return Diagnosis(
        check, "warning", host,
        f"{what} speaks plain HTTP on {host}: whoever is on the way reads every key and prompt.",
        remedy,
    )  # fmt: skip


def of_certificates(identities: Iterable[Identity], now: float) -> Iterator[Diagnosis]:
    """`now`: Unix seconds."""
    check = "certificate"
    for one in identities:
        left, until = one.pair.not_after - now, day(one.pair.not_after)
        if left <= 0:
            yield Diagnosis(
                check, "problem", one.name, f"It expired on {until}: it is refused by all who verify it.",
                f"Renew {one.files[0]}; it is taken into use without a restart.",
            )  # fmt: skip
        elif one.trouble:
            yield Diagnosis(
                check, "warning", one.name,
                f"The renewed certificate is not used, and the old one stays until {until}: {one.trouble}",
                "Put a certificate and its key there; they are taken into use without a restart.",
            )  # fmt: skip
        elif left < SOON_DAYS * 86_400:
            yield Diagnosis(
                check, "warning", one.name, f"It expires on {until}.",
                f"Renew {one.files[0]}; it is taken into use without a restart.",
            )  # fmt: skip
        else:
            yield Diagnosis(check, "ok", one.name, f"It is valid until {until}.")


def of_engines(engines: Iterable[Engine]) -> Iterator[Diagnosis]:
    """Whose prompts and answers cross a network in plain text."""
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
        f"Prompts and answers go to {', '.join(names[:SHOWN])}{more} in plain text, and whoever reaches "
        "these engines can use them past Florin.",
        "Start them with --ssl-certfile, --ssl-keyfile, --ssl-ca-certs and --ssl-cert-reqs 2, and set "
        "FLORIN_ENGINE_CA, FLORIN_ENGINE_CERT and FLORIN_ENGINE_KEY. On a private network that nobody else "
        "is on, this can stay.",
    )  # fmt: skip


def of_docs(host: str, *, served: bool) -> Iterator[Diagnosis]:
    if served and not is_loopback(host):
        yield Diagnosis(
            "api_docs", "warning", host, "/docs, /redoc and /openapi.json are served to everybody.",
            "Unset FLORIN_API_DOCS.",
        )  # fmt: skip


def of_state(directory: Path) -> Iterator[Diagnosis]:
    """Whether others can read, or change, what Florin keeps. Blocking."""
    found = state_directory.look(directory)
    if found.open_to_others:
        shown = ", ".join(map(str, found.open_to_others[:SHOWN]))
        yield Diagnosis(
            "state_dir", "warning", str(directory),
            f"Others can get at {len(found.open_to_others)} of Florin's files: {shown}.",
            f"chmod -R go-rwx {shown}",
        )  # fmt: skip
    elif found.shared:
        yield Diagnosis(
            "state_dir", "warning", str(directory),
            f"Others can enter it, and it holds files that are not Florin's ({found.foreign[0]}, for one).",
            "Give Florin a directory of its own: FLORIN_STATE_DIR.",
        )  # fmt: skip
    else:
        yield Diagnosis("state_dir", "ok", str(directory), "Only Florin's user can get at what is in it.")
