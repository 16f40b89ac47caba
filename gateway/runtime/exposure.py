"""Checks what a gateway exposes, for `florin doctor` and for its log at start-up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from adapters.model import Engine
from adapters.reconcile import exposure
from adapters.reconcile.diagnosis import Diagnosis
from adapters.security.renewal import Identity
from gateway.config import Settings, secret_files
from gateway.config.secret_files import open_to_others, variable

REMEDY = (
    "Set FLORIN_TLS_CERT and FLORIN_TLS_KEY. If a proxy in front terminates TLS and nothing else can reach "
    "this port, set FLORIN_BEHIND_PROXY=true."
)


def of_listeners(settings: Settings, addresses: Sequence[str] = ()) -> list[Diagnosis]:
    """`addresses`: those bound, if known: the main port's, and the admin port's if there is one."""
    hosts = [settings.host, *([settings.admin_host] if settings.admin_port is not None else [])]
    parts = ["The gateway"] if len(hosts) == 1 else ["The data plane", "The admin and finance API"]
    diagnoses = []
    for host, what in zip(addresses or hosts, parts, strict=True):
        if settings.uds and what != "The admin and finance API":
            text = f"{what} listens on a Unix socket only."
            diagnoses.append(Diagnosis("listener", "ok", str(settings.uds), text))
            continue
        tls = settings.tls_cert is not None
        proxy = settings.behind_proxy
        diagnoses.append(exposure.of_listener(host, tls=tls, behind_proxy=proxy, what=what, remedy=REMEDY))
    return diagnoses


def exposure_of(
    settings: Settings, identities: Iterable[Identity], engines: Iterable[Engine], now: float
) -> list[Diagnosis]:
    """`identities`: those of `TransportSecurity`; `now`: Unix seconds. Reads file modes in the state
    directory, so it blocks."""
    return [
        *of_listeners(settings),
        *exposure.of_certificates(identities, now),
        *exposure.of_engines(engines),
        *exposure.of_docs(_docs_host(settings), served=settings.api_docs),
        *exposure.of_state(settings.state_dir),
        *of_secret_files(),
    ]


def of_secret_files() -> Iterator[Diagnosis]:
    """Whether other users can read files with secrets. Blocking."""
    try:
        files = secret_files()
    except Exception as error:  # noqa: BLE001  # florin.yaml was changed since the start, and may be anything
        yield Diagnosis("secret_file", "warning", "", f"The settings cannot be read again: {error}", "")
        return
    for name, path, mode in open_to_others(files):
        yield Diagnosis(
            "secret_file", "warning", str(path),
            f"All users of this machine can read the file of {variable(name)} (mode {mode:04o}).",
            f"chmod 400 {path}, or `defaultMode: 0400` for a secret that Kubernetes mounts.",
        )  # fmt: skip


def _docs_host(settings: Settings) -> str:
    if settings.admin_port is not None:
        return settings.admin_host
    return "localhost" if settings.uds else settings.host
