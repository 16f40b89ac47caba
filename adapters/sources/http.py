"""Fetches adapters from web servers: an archive, or with a URL that ends in `/` a directory."""

from __future__ import annotations

import base64
import netrc
import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from yarl import URL

from adapters.checks.file_kinds import FILES, KNOWN
from adapters.checks.findings import Findings
from adapters.progress import ProgressMeter
from adapters.sources.archive_download import check_hash, fetch_archive
from adapters.sources.download import download, run
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.public_uri import public
from adapters.sources.staging_area import SourceRefusedError, StagingArea, malformed
from adapters.sources.web_client import WebClient

_FRAGMENT = re.compile(r"sha256=([0-9a-f]{64})", re.ASCII | re.IGNORECASE)


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `adapters.sources.Fetch`. The fragment `#sha256=<hex>` gives the archive's expected hash."""
    try:
        site, sha256 = _site(uri, options)
        if sha256 is None and site.url.raw_path.endswith("/"):
            meter = ProgressMeter(FETCHING, options.progress)
            run(_fetch_files(site, StagingArea(destination, options.max_bytes), options, meter), meter)
        else:
            fetch_archive(
                site.open,
                destination,
                options=options,
                findings=findings,
                check=lambda path, _: check_hash(path, sha256),
            )
    except SourceRefusedError as refusal:
        refusal.add_to(findings)
    return public(uri)


async def _fetch_files(
    site: WebClient, staging: StagingArea, options: FetchOptions, meter: ProgressMeter
) -> None:
    for name in KNOWN:
        there = replace(site, url=site.url.with_path(site.url.raw_path + name, encoded=True, keep_query=True))
        path = staging.directory / name
        try:
            await download(
                partial(there.open, plain=True),
                path,
                limit=staging.limit(name),
                what=name,
                options=options,
                meter=meter,
            )
        except SourceRefusedError as refusal:
            # Some servers answer "forbidden" instead of "not found" for missing files.
            if name in FILES or refusal.code not in ("source_missing", "source_denied"):
                raise
            path.unlink()
        else:
            staging.took(name, path.stat().st_size)
    meter.tell()


def _site(uri: str, options: FetchOptions) -> tuple[WebClient, str | None]:
    """The client for `uri`, and the hash in its fragment."""
    try:
        url = URL(uri, encoded=True)
        fragment = _FRAGMENT.fullmatch(url.raw_fragment)
        if (
            not url.raw_host
            or url.scheme not in ("http", "https")
            or bool(fragment) != bool(url.raw_fragment)
        ):
            raise ValueError("not the URL of an archive or a directory")
    except ValueError:
        forms = "https://HOST/PATH of an archive [#sha256=<hex>], or https://HOST/PATH/"
        raise malformed(uri, "a valid URL", forms) from None
    authorization = _authorization(url, netrc_too=options.own_access)
    site = WebClient(url.with_user(None).with_fragment(None), authorization, options)
    return site, fragment[1].lower() if fragment else None


def _authorization(url: URL, *, netrc_too: bool) -> str | None:
    """Credentials from the URL, or from the gateway user's .netrc for this host."""
    user, password = url.user, url.password
    if user is None and not netrc_too:
        return None
    if user is None:
        try:
            known = netrc.netrc(os.environ.get("NETRC"))
        except (OSError, netrc.NetrcParseError):
            return None
        if url.raw_host not in known.hosts:
            return None
        user, _, password = known.hosts[url.raw_host]
    return "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()
