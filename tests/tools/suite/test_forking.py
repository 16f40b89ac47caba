"""What is forked cannot be told from what is executed, but by what it took to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.support.fork_server import SUPPORTED
from tests.support.forking import FORKED, Forking, start

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="everything is executed here")

TELL = """
import json, os, sys
fds = [int(fd) for fd in os.listdir("/proc/self/fd")]  # with the one by which it is read
print(json.dumps({
    "parent": os.getppid(), "group": os.getpgid(0), "folder": os.getcwd(), "environ": dict(os.environ),
    "umask": os.umask(0), "argv": sys.argv, "fds": [fd for fd in fds if os.path.exists(f"/proc/self/fd/{fd}")],
    "imported": "gateway.app" in sys.modules,
}))
"""


def run(program: str, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", FORKED + program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_it_is_a_child_with_everything_that_was_asked_for(tmp_path: Path):
    with (tmp_path / "open").open("w") as file:
        options = {
            "cwd": tmp_path,
            "env": {**os.environ, "A": "1"},
            "umask": 0o27,
            "pass_fds": [file.fileno()],
        }
        shown = json.loads(run(TELL, "x", "y z", **options).stdout)
        assert shown["fds"] == [0, 1, 2, file.fileno()]
    assert shown["imported"]
    assert (shown["parent"], shown["group"]) == (os.getpid(), os.getpgid(0))
    assert (shown["folder"], shown["umask"], shown["argv"]) == (str(tmp_path), 0o27, ["-c", "x", "y z"])
    assert shown["environ"] == options["env"]


@pytest.mark.usefixtures("executed")
def test_with_the_fixture_it_is_executed():
    assert not json.loads(run(TELL).stdout)["imported"]


@pytest.mark.parametrize(
    ("program", "code", "errors"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('wrong')", 1, "wrong\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
        ("import atexit, sys; atexit.register(sys.stderr.write, 'at the end')", 0, "at the end"),
    ],
)
def test_it_ends_as_a_program_does(program: str, code: int, errors: str):
    done = run(program)
    assert done.returncode == code
    assert done.stderr.endswith(errors)


def test_input_comes_and_signals_reach_it_and_its_session():
    program = FORKED + "import sys; print(input(), flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write("hello\n")
        process.stdin.flush()
        assert process.stdout.readline() == "hello\n"
        assert os.getsid(process.pid) == process.pid
        assert psutil.Process(process.pid) in psutil.Process().children()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT


def test_signals_that_are_blocked_where_the_server_starts_reach_what_it_forks(
    monkeypatch: pytest.MonkeyPatch,
):
    """multiprocessing blocks SIGINT and SIGTERM while it starts its tracker, which may be what starts the server."""
    program = FORKED + "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with ExitStack() as stack:
        try:
            connection = start(stack, "from tests.support.fork_server import main; main({fd}, ())")
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        forking = Forking(lambda: connection)
        monkeypatch.setattr(subprocess, "_fork_exec", forking.fork_exec)
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")
