"""Wraps huggingface_hub: lists the files of a revision and downloads one of them.

The library resumes interrupted downloads a limited number of times; this module retries beyond that. The
library reports progress only through progress bars, so a custom bar counts the bytes here and aborts
downloads that are too large or too slow.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx2
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
)

from adapters.progress import CHUNK, ProgressMeter
from adapters.sources.archive_download import check_hash
from adapters.sources.download import SLOWEST, DownloadInterruptedError, unavailable
from adapters.sources.options import FetchOptions
from adapters.sources.staging_area import SourceRefusedError, too_much

T = TypeVar("T")

_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


@dataclass(frozen=True, slots=True)
class Remote:
    """A file in a commit."""

    size: int | None
    """None if the Hub does not report it."""
    sha256: str | None
    """Hex SHA-256, for files in git-lfs."""
    blob: str | None
    """Hex git blob id, for other files."""

    @classmethod
    def cached(cls, path: Path) -> Self:
        """A file in the Hub's cache; its link target is named by the hash."""
        target = path.resolve()
        named = target.name if path.is_symlink() and _HASH.fullmatch(target.name) else ""
        size = target.stat().st_size
        return cls(size, named if len(named) == 64 else None, named if len(named) == 40 else None)

    def check(self, path: Path) -> None:
        """Raises SourceRefusedError if the file at `path` is not this one."""
        check_hash(path, self.sha256)
        if self.sha256 is None and self.blob is not None and (blob := _git_blob(path)) != self.blob:
            raise SourceRefusedError(
                "hash_mismatch",
                "The downloaded bytes do not match the file's hash.",
                found=f"blob {blob}",
                expected=self.blob,
            )


@dataclass(frozen=True, slots=True)
class Listed:
    commit: str
    files: dict[str, Remote]
    """By path in the requested folder."""

    def within(self, folder: str) -> Listed:
        prefix = f"{folder}/" if folder else ""
        files = {
            path.removeprefix(prefix): file for path, file in self.files.items() if path.startswith(prefix)
        }
        return Listed(self.commit, files)


class HubClient:
    def __init__(self, repository: str, options: FetchOptions, meter: ProgressMeter) -> None:
        self._repository = repository
        self._token = None if options.own_access else False  # None: HF_TOKEN
        self._options = options
        self._meter = meter

    def listed(self, revision: str, folder: str) -> Listed:
        """Raises SourceRefusedError."""

        def ask() -> Listed:
            model = HfApi(token=self._token).model_info(
                self._repository, revision=revision, files_metadata=True, timeout=self._options.stall_seconds
            )
            files = {
                file.rfilename: Remote(file.size, file.lfs.sha256 if file.lfs else None, file.blob_id)
                for file in model.siblings or ()
            }
            if not _HASH.fullmatch(str(model.sha)):
                raise ValueError("no commit")
            return Listed(str(model.sha), files).within(folder)

        return self._persist(ask)

    def download(self, path: str, commit: str, most: int, folder: Path) -> Path:
        """Download a file of at most `most` bytes into `folder` and return its path. Raises
        SourceRefusedError."""

        def ask() -> Path:
            before = self._meter.done
            try:
                downloaded = hf_hub_download(
                    self._repository,
                    path,
                    revision=commit,
                    local_dir=folder,
                    token=self._token,
                    tqdm_class=_bar(self._meter, before, path, most, self._options.stall_seconds),
                )
            except BaseException:
                self._meter.add(before - self._meter.done)
                raise
            return Path(downloaded)

        return self._persist(ask)

    def _persist(self, ask: Callable[[], T]) -> T:
        for attempt in range(self._options.attempts + 1):
            try:
                return _asked(ask)
            except DownloadInterruptedError as error:
                if attempt == self._options.attempts:
                    raise unavailable("The repository", str(error)) from error
                end = time.monotonic() + self._options.pause(attempt)
                while (left := end - time.monotonic()) > 0:
                    self._meter.tick()
                    time.sleep(min(left, 0.1))
        raise AssertionError("the last attempt returns or raises")


def _asked(ask: Callable[[], T]) -> T:
    """Call `ask`, translating the library's errors to SourceRefusedError and DownloadInterruptedError."""
    try:
        return ask()
    except OfflineModeIsEnabled:
        raise _refused("source_offline", "HF_HUB_OFFLINE") from None
    except HFValidationError:
        raise _refused("source_missing", "an invalid repository name") from None
    except GatedRepoError:
        raise _refused("source_denied", "a gated repository") from None
    except HfHubHTTPError as error:
        raise _translated(error) from None
    except (httpx2.HTTPError, LocalEntryNotFoundError) as error:
        raise DownloadInterruptedError(type(error).__name__) from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:  # the server is not a Hub
        raise _refused("source_unavailable", type(error).__name__) from error
    except OSError as error:
        if error.errno is not None:
            raise
        raise DownloadInterruptedError("the download has a different size than the file") from error


def _translated(error: HfHubHTTPError) -> Exception:
    status = error.response.status_code
    if status in (401, 403) and error.response.headers.get("x-error-code") != "RepoNotFound":
        return _refused("source_denied", f"status {status}")
    if status == 404 or error.response.headers.get("x-error-code") == "RepoNotFound":
        what = error.response.headers.get("x-error-code", f"status {status}")
        return _refused("source_missing", f"{what}, for this token")
    if status in (408, 409, 416, 429) or status >= 500:
        return DownloadInterruptedError(f"the Hub returned HTTP {status}")
    return _refused("source_unavailable", f"status {status}")


def _refused(code: str, actual: str) -> SourceRefusedError:
    message, expected = _SENTENCES[code]
    return SourceRefusedError(code, message, found=actual, expected=expected)


_SENTENCES = {
    "source_offline": ("HF_HUB_OFFLINE is set.", "access to the Hub"),
    "source_missing": ("The Hub has no such repository or revision.", "a repository that the token can read"),
    "source_denied": ("The Hub denies the gateway access.", "a token with access, in HF_TOKEN"),
    "source_unavailable": ("The Hub returned an unexpected response.", "a Hub at HF_ENDPOINT"),
}


def _bar(meter: ProgressMeter, before: int, path: str, most: int, stall: float) -> type[Any]:
    """A progress bar class for the library that feeds `meter` from `before` on. Raises SourceRefusedError
    beyond `most` bytes, and DownloadInterruptedError if the download is too slow."""

    class Bar:
        def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
            self.n = initial
            self.total = most
            self._window = (time.monotonic(), initial)  # mutable, as `n`

        def update(self, more: float | None = 1) -> None:
            self.n += int(more or 0)
            if self.n > most:
                raise too_much(path, self.n, most)
            since, then = self._window
            now = time.monotonic()
            if now - since >= stall:
                if self.n - then < SLOWEST * stall:
                    raise DownloadInterruptedError(f"only {self.n - then} bytes in {now - since:.0f} s")
                self._window = (now, self.n)
            meter.add(before + self.n - meter.done)

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            """`close`, `refresh`, `set_description` …: no-ops, because nothing is drawn."""
            if name.startswith("_") or name == "update_transfer":
                raise AttributeError(name)
            return lambda *_, **__: None

    return Bar


def _git_blob(path: Path) -> str:
    digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
