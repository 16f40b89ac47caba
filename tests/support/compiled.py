"""`python -m pytest --noconftest -p tests.support.compiled` compiles all tests and what they import, and runs none.
Workers that begin together would each do it all; collecting the tests compiles them too, for twice the time.

pytest compiles test modules in a way of its own, and has no public name for doing only that. If a new pytest does it
otherwise, nothing breaks but the saving: tests/tools/test_compiled.py fails.
"""

from __future__ import annotations

import compileall
import re
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

FOLDERS = ("adapters", "deploy", "gateway", "loadtests", "tests")
REWRITTEN = re.compile(r"(/test_[^/]*|/conftest)\.py$")


def pytest_cmdline_main(config: pytest.Config) -> int:
    for folder in FOLDERS:
        root = config.rootpath / folder
        compileall.compile_dir(root, quiet=1, rx=REWRITTEN)
        for path in filter(lambda path: REWRITTEN.search(str(path)), root.rglob("*.py")):
            compile_test(path, config)
    return 0


def compile_test(path: Path, config: pytest.Config) -> None:
    directory = rewrite.get_cache_dir(path)
    directory.mkdir(exist_ok=True)
    compiled = directory / (path.stem + rewrite.PYC_TAIL)
    if rewrite._read_pyc(path, compiled) is None:
        source_hash, code = rewrite._rewrite_test(path, config)
        rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, compiled)
