"""No test reads or writes what is the user's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_a_run_keeps_florins_cache_and_leaves_nothing_behind(tmp_path: Path):
    user, temporary = tmp_path / "user", tmp_path / "temporary"
    for directory in (user / ".pip", temporary, tmp_path / "elsewhere"):
        directory.mkdir(parents=True)
    (user / ".pip" / "pip.conf").touch()
    show = (
        "import os, tests.support.own_home as run; from deploy.demo.cache import cache_home; "
        "print(os.environ['HOME'], cache_home(), os.environ['PIP_CONFIG_FILE'], 'VLLM_CACHE_ROOT' in os.environ); "
        "run.pytest_unconfigure()"
    )
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(user), "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(tmp_path / "elsewhere"), "VLLM_CACHE_ROOT": str(user / "vllm"),
    }  # fmt: skip
    shown = subprocess.run(
        [sys.executable, "-c", show], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    home, cache, pip, vllm = shown.stdout.split()
    assert Path(home).parent == temporary
    assert (cache, pip, vllm) == (
        str(tmp_path / "elsewhere" / "florin"),
        str(user / ".pip" / "pip.conf"),
        "False",
    )
    assert list(temporary.iterdir()) == []
    assert [path.name for path in user.iterdir()] == [".pip"]
