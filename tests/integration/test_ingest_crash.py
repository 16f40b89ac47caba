"""Whoever takes an adapter in may die, or run out of disk, at any line: the version is whole then, or not there,
and nothing else stays once somebody starts again."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.archives import adapter_files, tar_bytes
from tests.support.forking import FORKED
from tests.support.forms import some_of

DRIVER = (
    FORKED
    + r"""
import errno, json, os, resource, signal, sys
from pathlib import Path

from adapters.registry.artifacts import ArtifactStore, digest_of
from adapters.checks.findings import Findings
from adapters.checks.file_kinds import FILES
from adapters.sources import fetch
from adapters.sources.options import FetchOptions
import adapters.registry.artifacts, adapters.sources.archive, adapters.sources.file, adapters.sources.tar_archive

base, source, end, step = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
WATCHED = {m.__file__ for name, m in sys.modules.items() if name.startswith(("adapters.sources.", "adapters.registry.artifacts"))}


def ingest(root):
    store = ArtifactStore(root)
    store.open()
    with store.staging() as staged:
        findings = Findings()
        fetch(source, staged, options=FetchOptions(max_bytes=1 << 20), findings=findings)
        assert not findings, findings.all()
        return store.publish(staged)


def end_at(n):
    left = n

    def trace(frame, event, arg):
        nonlocal left
        if frame.f_code.co_filename not in WATCHED:
            return None
        if event == "line":
            left -= 1
            if left == 0 and end == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if left == 0:
                raise OSError(errno.ENOSPC if end == "full" else errno.EROFS, "as if")
        return trace

    sys.settrace(trace)


def child(root, n):
    if end == "limited":
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n, n))
    else:
        end_at(n)
    try:
        ingest(root)
    except OSError:
        os._exit(1)
    os._exit(0)


ended = whole = 0
n = 0
while True:
    n += step
    root = base / str(n)
    pid = os.fork()
    if pid == 0:
        child(root, n)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    there = [path for path in root.glob("[!.]*")]
    for path in there:
        assert {file.name for file in path.iterdir()} == set(FILES), (n, path)
        assert digest_of(path) == path.name, n
    whole += bool(there) and status != 0
    ArtifactStore(root).open()
    assert not list((root / ".staging").iterdir()), n
    assert ingest(root).path.is_dir()
    assert len(list(root.glob("[!.]*"))) == 1
    if status == 0:
        break
    assert status == (-9 if end == "killed" else 1), (n, status)
    ended += 1
print(json.dumps({"ended": ended, "whole": whole}))
"""
)


STEPS = {"killed": 5, "full": 11, "read-only": 11, "limited": 300}
CASES = [f"{end}, {kind}" for end in STEPS for kind in ("directory", "archive")]


@pytest.mark.parametrize("case", some_of(CASES, "killed, archive", "limited, directory"))
def test_wherever_it_ends(tmp_path, case):
    end, kind = case.split(", ")
    files = adapter_files(tmp_path)
    source = tmp_path / "packed-0"
    if kind == "archive":
        source = tmp_path / "packed.tar.gz"
        source.write_bytes(tar_bytes(files))
    base = tmp_path / "roots"
    base.mkdir()
    driver = subprocess.run(
        [sys.executable, "-c", DRIVER, base, source, end, str(STEPS[end])],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert driver.returncode == 0, driver.stderr
    result = json.loads(driver.stdout)
    assert result["ended"] > (5 if end == "limited" else 10)
    assert result["whole"] > 0 or end == "limited"
