"""What `florin doctor` says of who can reach what: listeners, certificates, files, keys, engines' ports."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import chain
from urllib.parse import urlsplit

import aiohttp

from adapters.model import Engine
from adapters.reconcile.diagnosis import SHOWN, Diagnosis
from adapters.reconcile.exposure import is_loopback
from gateway.config import Settings
from gateway.operations.state import State
from gateway.runtime.exposure import exposure_of
from gateway.tenants.bootstrap_key import BootstrapKeyFile
from gateway.tenants.directory import Key, Role, Tenant

SHORT_KEY = 20
"""Characters. A shorter bootstrap key may have been made up by a person, and could be guessed."""


async def of_exposure(state: State) -> list[Diagnosis]:
    engines = list(state.catalog.engines.values())
    remote = [e for e in engines if not is_loopback(urlsplit(e.url).hostname or "")]
    seen, open_ports = await asyncio.gather(
        asyncio.to_thread(exposure_of, state.settings, state.security.identities, engines, time.time()),
        answering_anybody(remote, state.settings.probe_timeout),
    )
    return [
        *seen,
        *of_ports(remote, open_ports),
        *of_keys(state.directory.keys.values(), state.directory.bootstrap_length),
        *of_key_file(state.bootstrap_key),
        *media_exposure(
            media_hosts(state.settings, state.directory.tenants.values()),
            {e.name: bool(e.agent) for e in engines},
        ),
    ]


async def answering_anybody(engines: Iterable[Engine], timeout: float) -> set[str]:
    """Names of the engines that list their models to a stranger: without a key, without a certificate."""
    checked = list(engines)
    # No verification: the check is who gets an answer, and nothing secret is sent.
    connector = aiohttp.TCPConnector(ssl=False)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=timeout), trust_env=False
    ) as stranger:
        answers = await asyncio.gather(*(_answers(stranger, engine) for engine in checked))
    return {engine.name for engine, answered in zip(checked, answers, strict=True) if answered}


async def _answers(stranger: aiohttp.ClientSession, engine: Engine) -> bool:
    try:
        async with stranger.get(engine.url + "/v1/models", allow_redirects=False) as response:
            return response.status == 200
    except (TimeoutError, aiohttp.ClientError, OSError):
        return False


def of_ports(remote: Iterable[Engine], open_ports: set[str]) -> Iterator[Diagnosis]:
    """`remote`: engines that are not on this host."""
    check, names = "engine_ports", sorted(open_ports)
    if names:
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        yield Diagnosis(
            check, "warning", names[0] if len(names) == 1 else "",
            f"{', '.join(names[:SHOWN])}{more} answer anybody who reaches their ports: without a key of "
            "Florin's, unmetered, and with any adapter.",
            "Let only the gateway reach these ports, by a firewall; or start the engines with mutual TLS "
            "(--ssl-certfile, --ssl-keyfile, --ssl-ca-certs, --ssl-cert-reqs 2).",
        )  # fmt: skip
    elif any(True for _ in remote):
        yield Diagnosis(check, "ok", "", "No engine on another host answers without credentials.")


def of_key_file(file: BootstrapKeyFile | None) -> Iterator[Diagnosis]:
    if file is not None and file.trouble:
        yield Diagnosis(
            "operator_key", "problem", "FLORIN_OPERATOR_KEY_FILE",
            f"The bootstrap key is not that of its file: {file.trouble}",
            "Correct the file: it is read again by itself. Until then the key that was read before, if any, "
            "stays valid.",
        )  # fmt: skip


def of_keys(keys: Iterable[Key], bootstrap: int) -> Iterator[Diagnosis]:
    """Roles in use, and a bootstrap key, of so many characters, that can be guessed."""
    check, valid = "keys", [key for key in keys if key.revoked is None]
    if 0 < bootstrap < SHORT_KEY:
        yield Diagnosis(
            check, "warning", "FLORIN_OPERATOR_KEY", f"The bootstrap key has {bootstrap} characters.",
            "Use a random one: openssl rand -hex 24. This key may do everything.",
        )  # fmt: skip
    count = Counter(key.role for key in valid)
    listed = ", ".join(f"{count[role]} {role}" for role in Role if count[role]) or "none in the registry"
    known = f"Keys by role: {listed}{' and the bootstrap key' if bootstrap else ''}."
    yield Diagnosis(check, "ok", "", known)


_MEDIA_CHECK = "media_policy"


def media_hosts(settings: Settings, tenants: Iterable[Tenant]) -> set[str]:
    """Hosts from which any tenant's media may come."""
    own = (tenant.policy.media_hosts or () for tenant in tenants)
    return {*settings.allowed_media_hosts, *chain.from_iterable(own)}


def media_exposure(hosts: Collection[str], by_agent: Mapping[str, bool]) -> Iterator[Diagnosis]:
    """From where engines may fetch media. `hosts`: those allowed to any tenant. `by_agent`: engine → whether
    `florin engine run` started it."""
    if not hosts:
        yield Diagnosis(_MEDIA_CHECK, "ok", "", "No host is allowed: engines fetch no media for clients.")
        return
    named = ", ".join(sorted(hosts))
    domains = " ".join(sorted({host.partition(":")[0] for host in hosts}))
    unseen = sorted(name for name, agent in by_agent.items() if not agent)
    for name in unseen:
        yield Diagnosis(
            _MEDIA_CHECK, "warning", name,
            f"Clients can make it fetch media from {named}. Florin cannot see whether it follows redirects "
            "from there into your network.",
            f"Start it with VLLM_MEDIA_URL_ALLOW_REDIRECTS=0 and --allowed-media-domains {domains}.",
        )  # fmt: skip
    if not unseen:
        yield Diagnosis(_MEDIA_CHECK, "ok", "", f"Engines fetch media only from {named}, without redirects.")
