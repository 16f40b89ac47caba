"""The suite has a HOME of its own, so that it finds on every machine what it finds on a fresh one, and leaves the
user's caches and settings alone. Kept are Florin's cache, where the engines' environment and the tests' tools are
built once per machine, and where pip and npm look for packages.

pyproject.toml has pytest load this before everything else, since libraries read HOME when they are imported.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from deploy.demo.cache import cache_home

PREFIX = "florin-tests-home-"
LEAD_ELSEWHERE = ("XDG_", "HF_", "HUGGINGFACE_", "TORCH", "TRANSFORMERS_", "TRITON_", "VLLM_")
"""Variables that begin so name caches and settings outside HOME."""
_begun: list[Path] = []


def begin() -> None:
    home = Path.home()
    if home.name.startswith(PREFIX):
        return  # the workers of a run share its HOME
    configuration = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    kept = {
        "PIP_CONFIG_FILE": (configuration / "pip" / "pip.conf", home / ".pip" / "pip.conf"),
        "NPM_CONFIG_USERCONFIG": (home / ".npmrc",),
        "PYENV_ROOT": (home / ".pyenv",),
    }
    for name, paths in kept.items():
        for path in filter(Path.exists, paths):
            os.environ.setdefault(name, str(path))
    cache = cache_home()
    cache.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    _begun.append(own)
    (own / ".cache").mkdir()
    (own / ".cache" / "florin").symlink_to(cache)
    for name in [name for name in os.environ if name.startswith(LEAD_ELSEWHERE)]:
        del os.environ[name]
    os.environ["HOME"] = str(own)


def pytest_unconfigure() -> None:
    while _begun:
        shutil.rmtree(_begun.pop(), ignore_errors=True)


begin()
