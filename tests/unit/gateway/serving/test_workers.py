"""What the processes that `workers` forks have in common."""

from __future__ import annotations

import subprocess
import sys

from tests.support.forking import FORKED

SCRIPT = (
    FORKED
    + """
import logging, sys
from pathlib import Path
from gateway.config import Settings
from gateway.observability import logs
from gateway.observability.logs import log_to_stderr
from gateway.runtime.worker_watch import WorkerWatch
from gateway.serving.runner import Stop
from gateway.serving.workers import WorkerGroup

logs.FLUSH_SECONDS = 60
log_to_stderr()
sys.setswitchinterval(60)  # the thread that writes the log gets no turn while another one has work
settings = Settings(state_dir=Path(sys.argv[1]), operator_key="k" * 32)
group = WorkerGroup(settings, [], Stop(), lambda: None, WorkerWatch(1))
process = group._fork("child", logging.getLogger("florin").error, "why it ends")
process.join()
sys.exit(process.exitcode)
"""
)


def test_the_last_lines_of_a_forked_process_are_written(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.count("why it ends")) == (0, 1), done.stderr
