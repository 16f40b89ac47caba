"""Where in a tree of files an adapter lies: at its top, or in the one folder that holds an adapter.

The same rule for directories, archives, repositories and buckets, so that the same content is judged the same
however it arrives. Pure but for `listed`.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.checks.file_kinds import FILES, OPENED_INSTEAD, check_beside
from adapters.checks.findings import Findings
from adapters.checks.trainer_output import missing_remedy

Parts = tuple[str, ...]
"""A file's path from the top: `("checkpoint-300", "optimizer.pt")`. A directory's ends with an empty part."""

DEPTH = 2
"""How many folders an adapter may lie below the top: an archive often has one of its own around all."""
_MAX_LISTED = 10_000


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    path: Parts
    names: frozenset[str]
    """Names of the files in it."""
    folders: frozenset[str]
    """Names of the folders in it."""
    rivals: tuple[str, ...]
    """Folders that hold an adapter each, where none is nearer to the top than all others."""

    def check(self, where: str, findings: Findings) -> None:
        """Judge it by its names. `where` says what was looked into, for findings."""
        check_beside(self.names, findings)
        for name in FILES:
            if name not in self.names:
                findings.add(
                    "file_missing",
                    f"{name} is missing.",
                    found=f"no such file {where}",
                    expected=" and ".join(FILES),
                    remedy=missing_remedy((*self.names, *self.folders), self.rivals),
                )


def adapter_folder(paths: Collection[Parts]) -> AdapterFolder:
    """The folder that has one of the adapter's files and is nearest to the top, if it is the only such one;
    else the top, or the single folder around all."""
    holding = {path[:-1] for path in paths if path[-1] in FILES and len(path) <= DEPTH + 1}
    if not holding:
        holding = {path[:-1] for path in paths if path[-1] in OPENED_INSTEAD and len(path) <= DEPTH + 1}
    nearest = {folder for folder in holding if len(folder) == min(map(len, holding))}
    chosen = nearest.pop() if len(nearest) == 1 else _around(paths)
    depth = len(chosen)
    inside = [path[depth:] for path in paths if path[:depth] == chosen]
    return AdapterFolder(
        chosen,
        frozenset(path[0] for path in inside if len(path) == 1 and path[0]),
        frozenset(path[0] for path in inside if len(path) > 1),
        tuple(sorted("/".join(folder[depth:]) for folder in nearest)),
    )


def _around(paths: Collection[Parts]) -> Parts:
    tops = {path[0] for path in paths}
    return tuple(tops) if len(tops) == 1 and all(len(path) > 1 for path in paths) else ()


def listed(directory: Path) -> set[Parts]:
    """The directory's files; those of its folders only if an adapter must be looked for there. Links to
    folders are not followed, and folders that cannot be read are taken for empty. Raises OSError."""
    paths = _entries(directory, ())
    level = paths if not {path[0] for path in paths} & set(FILES) else set()
    for _ in range(DEPTH):
        below: set[Parts] = set()
        for path in sorted(path for path in level if not path[-1]):
            with suppress(OSError):
                if len(paths) + len(below) < _MAX_LISTED:
                    below |= _entries(directory.joinpath(*path), path[:-1])
        paths |= below
        level = below
    return paths


def _entries(directory: Path, folder: Parts) -> set[Parts]:
    with os.scandir(directory) as entries:
        return {
            (*folder, entry.name, "")
            if entry.name not in FILES and entry.is_dir(follow_symlinks=False)
            else (*folder, entry.name)
            for entry in entries
        }


def directory_of(directory: Path) -> Path:
    """The adapter's own directory in this one, or this one. Never raises: the checks say what is wrong."""
    try:
        return directory.joinpath(*adapter_folder(listed(directory)).path)
    except OSError:
        return directory
