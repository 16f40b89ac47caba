"""What other processes of the same user can read of an agent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SPY = """
import os, sys
from adapters.engine_agent.key_protection import conceal_memory
if os.geteuid() == 0:  # root reads everything: try as somebody else
    os.setgid(65534)
    os.setuid(65534)
if sys.argv[1] == "conceal":
    assert conceal_memory()
else:
    import ctypes
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user has concealed it already
pid = os.getpid()
child = os.fork()
if child == 0:
    import ctypes
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
    read = []
    for name in ("environ", "mem", "fd"):
        try:
            path = f"/proc/{pid}/{name}"
            os.listdir(path) if name == "fd" else os.close(os.open(path, os.O_RDONLY))
            read.append(name)
        except OSError:
            pass
    print(" ".join(read), flush=True)
    os._exit(0)
os.waitpid(child, 0)
"""

ANEW = """
import json, os, sys
from adapters.engine_agent.key_protection import handed_over, re_execute
handed = handed_over()
if not handed:
    re_execute([sys.executable, *sys.orig_argv[1:]], {"PATH": os.environ["PATH"]}, {"FLORIN_OPERATOR_KEY": "s3cret"})
environ = open("/proc/self/environ").read()
print(json.dumps([os.getpid(), handed, handed_over(), "s3cret" in environ, sorted(os.environ)]))
"""


def run(script: str, *args: str, **env: str) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", script, *args], text=True, stdout=subprocess.PIPE, env={**os.environ, **env}
    )
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return process, said.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
@pytest.mark.parametrize(("how", "read"), [("conceal", ""), ("not", "environ")])
def test_processes_of_the_same_user_cannot_read_memory_or_environment(how, read):
    """Without it, at least the environment is readable; memory is as the system's ptrace policy has it."""
    assert run(SPY, how)[1].partition(" ")[0] == read


@pytest.mark.skipif(sys.platform != "linux", reason="/proc")
def test_a_secret_is_handed_over_once_and_stands_in_no_environment():
    process, said = run(ANEW, FLORIN_OPERATOR_KEY="s3cret")
    pid, handed, again, shown, environ = __import__("json").loads(said)
    assert pid == process.pid
    assert (handed, again, shown) == ({"FLORIN_OPERATOR_KEY": "s3cret"}, {}, False)
    assert "FLORIN_HANDED_OVER" not in environ


@pytest.mark.parametrize("rubbish", ["", "x", "99999", "-1", "²"])
def test_rubbish_hands_over_nothing(monkeypatch, rubbish):
    from adapters.engine_agent.key_protection import HANDED, handed_over

    monkeypatch.setenv(HANDED, rubbish)
    assert handed_over() == {}
