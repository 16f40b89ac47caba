"""Fetches adapters from the Hugging Face Hub: `hf://OWNER/REPO[@REVISION][/FOLDER]`.

The gateway's environment configures huggingface_hub as usual: `HF_ENDPOINT` (a mirror), `HF_TOKEN`,
`HF_HUB_CACHE`, `HF_HUB_OFFLINE=1` (cache only). The revision is first resolved to a commit; all files come
from that commit, and the registry shows it.
"""

from __future__ import annotations

import logging
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self
from urllib.parse import unquote

from huggingface_hub import constants, try_to_load_from_cache

from adapters.checks.adapter_folder import adapter_folder
from adapters.checks.file_kinds import FILES, KNOWN
from adapters.checks.findings import Findings
from adapters.progress import CHUNK, ProgressMeter
from adapters.sources.hub_client import HubClient, Listed, Remote
from adapters.sources.options import FETCHING, FetchOptions
from adapters.sources.public_uri import public
from adapters.sources.staging_area import SourceRefusedError, StagingArea, check_space, malformed, too_much

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_URI = re.compile(
    rf"hf://(?P<repository>{_NAME}/{_NAME})"
    r"(?:@(?P<revision>refs/[a-z]{1,20}/[^/@?#]{1,100}|[^/@?#]{1,200}))?"
    r"(?:/(?P<folder>[^?#\\\x00-\x1f]{0,500}))?"
)


def fetch(uri: str, destination: Path, *, options: FetchOptions, findings: Findings) -> str:
    """See `adapters.sources.Fetch`. Returns the URI with the resolved commit."""
    for noisy in ("httpx2", "huggingface_hub"):  # they log signed storage URLs
        logging.getLogger(noisy).setLevel(logging.ERROR)
    try:
        place = _Place.parse(uri)
        meter = ProgressMeter(FETCHING, options.progress)
        meter.tell()
        client = HubClient(place.repository, options, meter)
        if constants.is_offline_mode() and options.own_access:
            listed = _cached(place)
        else:
            listed = client.listed(place.revision, place.folder)
        adapter = adapter_folder([tuple(name.split("/")) for name in listed.files])
        adapter.check(f"in {place.folder or 'the repository'}", findings)
        if not findings:
            listed, place = listed.within("/".join(adapter.path)), place.within("/".join(adapter.path))
            staging = StagingArea(destination, options.max_bytes)
            _fetch(listed, place, staging, client, meter, cache_too=options.own_access)
            return place.at(listed.commit)
    except SourceRefusedError as refusal:
        refusal.add_to(findings)
    return public(uri)


@dataclass(frozen=True, slots=True)
class _Place:
    repository: str
    revision: str
    folder: str
    """Without leading and trailing slashes."""

    @classmethod
    def parse(cls, uri: str) -> Self:
        named = _URI.fullmatch(uri)
        folder = (named["folder"] or "").strip("/") if named else ""
        if named is None or (folder and {"..", ".", ""} & set(folder.split("/"))):
            forms = "hf://OWNER/REPO, hf://OWNER/REPO@REVISION, or one of these and /FOLDER"
            raise malformed(uri, "a valid repository", forms)
        return cls(named["repository"], unquote(named["revision"] or "main"), folder)

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}" if self.folder else name

    def within(self, folder: str) -> _Place:
        return replace(self, folder=self.path(folder).rstrip("/"))

    def at(self, commit: str) -> str:
        return f"hf://{self.repository}@{commit}" + (f"/{self.folder}" if self.folder else "")


def _fetch(
    listed: Listed,
    place: _Place,
    staging: StagingArea,
    client: HubClient,
    meter: ProgressMeter,
    *,
    cache_too: bool,
) -> None:
    names = [name for name in KNOWN if name in listed.files]
    total = sum(listed.files[name].size or 0 for name in names)
    check_space(staging.directory, total)
    meter.expect(total)
    with tempfile.TemporaryDirectory(prefix="hub-", dir=staging.directory.parent) as folder:
        for name in names:
            file, target = listed.files[name], staging.directory / name
            limit = staging.limit(name)
            if file.size is not None and file.size > limit:
                raise too_much(name, file.size, limit)
            cached = _in_cache(place, name, listed.commit) if cache_too else None
            if cached is not None:
                _copy(cached, name, staging, meter)
            else:
                most = limit if file.size is None else file.size
                client.download(place.path(name), listed.commit, most, Path(folder)).replace(target)
                staging.took(name, target.stat().st_size)
            file.check(target)
    meter.tell()


def _cached(place: _Place) -> Listed:
    """The revision's files in the local cache. Raises SourceRefusedError unless both are there."""
    paths = {name: _in_cache(place, name, place.revision) for name in KNOWN}
    config = paths[FILES[0]]
    if any(paths[name] is None for name in FILES) or config is None:
        raise SourceRefusedError(
            "source_offline",
            "HF_HUB_OFFLINE is set and the local cache does not have the files.",
            found=f"{place.at(place.revision)} missing or incomplete in the cache",
            expected=" and ".join(FILES),
        )
    files = {name: Remote.cached(path) for name, path in paths.items() if path is not None}
    depth = place.path("").count("/")
    return Listed(config.parents[depth].name, files)


def _in_cache(place: _Place, name: str, revision: str) -> Path | None:
    path = try_to_load_from_cache(
        place.repository, place.path(name), cache_dir=constants.HF_HUB_CACHE, revision=revision
    )
    return Path(path) if isinstance(path, str) else None


def _copy(cached: Path, name: str, staging: StagingArea, meter: ProgressMeter) -> None:
    with cached.open("rb") as file:
        size = staging.write(name, iter(lambda: file.read(CHUNK), b""))
    meter.add(size)
