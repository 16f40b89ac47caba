"""Reads a base model's config.json on this host and derives the names it is known by."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from adapters.checks.tokenizer_files import FileInvalidError, chat_template
from adapters.errors import NotFoundError
from adapters.model import BaseModel

_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_MAX_CONFIG_BYTES = 4 * 1024 * 1024


def read_base_config(root: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any] | None:
    """The config.json of the model at `root`: a directory, a config file, or a name in the Hub's cache.

    None if the model is not on this host. Raises NotFoundError if it is but the file is unusable. Blocking;
    never accesses the network.
    """
    path = _config_path(root, environ)
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_CONFIG_BYTES + 1)
        config = json.loads(raw) if len(raw) <= _MAX_CONFIG_BYTES else None
    except (OSError, ValueError, RecursionError) as error:
        raise NotFoundError(f"{path} cannot be read as a model's config.json: {error}.") from error
    if not isinstance(config, dict):
        raise NotFoundError(f"{path} is not a model's config.json: it is not a JSON object.")
    return config


def read_base(name: str, root: str, environ: Mapping[str, str] = os.environ) -> BaseModel | None:
    """The base model `name` that adapters are checked against, read from `root` as in `read_base_config`,
    with the same errors. Blocking."""
    config = read_base_config(root, environ)
    if config is None:
        return None
    named = config.get("_name_or_path")  # older transformers recorded the loaded name here
    aliases = (*base_aliases(name, root), *([named] if isinstance(named, str) and named else []))
    return BaseModel(name, tuple(dict.fromkeys(aliases)), config, read_chat_template(root, environ))


def read_chat_template(root: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Hex SHA-256 of the chat template of the model at `root`; empty if it has none, None if its tokenizer
    files are missing or unreadable. Blocking."""
    path = _config_path(root, environ)
    if path is None:
        return None
    try:
        return chat_template(path.parent)
    except (FileInvalidError, OSError):
        return None


def base_aliases(name: str, root: str = "", *, local: bool = True) -> tuple[str, ...]:
    """Other names that adapters may use for base model `name`, which engines load from `root`. `local`:
    whether `root` may be looked for on this host."""
    aliases = []
    if root and root != name:
        aliases.append(root)
    if local and root.startswith("/") and Path(root).exists():
        aliases.append(str(Path(root).resolve()))
    return tuple(dict.fromkeys(alias for alias in aliases if alias != name))


def may_be_read(root: str, folders: Iterable[Path]) -> bool:
    """Whether a model's place that an engine names may be read on this host. An engine may name any file, so
    only names of repositories in the Hub's cache are read, and models in `folders`. Blocking."""
    if _REPOSITORY.fullmatch(root) and not Path(root).exists():
        return True
    if not root.startswith("/") or "\0" in root or not Path(root).is_dir():
        return False
    config = (Path(root) / "config.json").resolve()
    return any(config.is_relative_to(folder.resolve()) for folder in folders)


def _config_path(root: str, environ: Mapping[str, str]) -> Path | None:
    if not root or "\0" in root:
        return None
    local = Path(root).expanduser()
    if local.is_absolute() or local.is_dir():
        path = local if local.is_file() else local / "config.json"
        return path if path.is_file() else None
    if not _REPOSITORY.fullmatch(root):
        return None
    repository = _hub_cache(environ) / f"models--{root.replace('/', '--')}"
    try:
        revision = (repository / "refs" / "main").read_text().strip()
    except OSError:
        return None
    path = repository / "snapshots" / Path(revision).name / "config.json"
    return path if path.is_file() else None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    """The cache directory of huggingface_hub, by its own rules."""
    for variable in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environ.get(variable):
            return Path(environ[variable]).expanduser()
    home = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    return Path(home).expanduser() / "hub"
