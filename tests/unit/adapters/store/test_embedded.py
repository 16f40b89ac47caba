"""The server that Florin starts: private, alone on its data, gone when Florin is."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import psutil
import pytest
from redis import Redis

from adapters.store import embedded
from adapters.store.embedded import EmbeddedError, EmbeddedValkey
from tests.support.waiting import until_now


def socket_of(server):
    return Path(unquote(server.url.removeprefix("unix://")))


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def gone(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_it_starts_answers_and_leaves_nothing_behind(tmp_path):
    with EmbeddedValkey(tmp_path) as server:
        with Redis.from_url(server.url) as redis:
            assert redis.ping()
            assert redis.config_get("port")["port"] == "0"
        pid, path = server.pid, socket_of(server)
        assert server.alive
        assert mode(path.parent) == 0o700
        assert mode(path) == 0o700
    assert gone(pid)
    assert not path.exists()
    assert not server.alive
    server.stop()


def test_what_it_knew_it_knows_after_a_restart(tmp_path):
    with EmbeddedValkey(tmp_path) as server, Redis.from_url(server.url) as redis:
        redis.set("k", "v")
    with EmbeddedValkey(tmp_path) as server, Redis.from_url(server.url) as redis:
        assert redis.get("k") == b"v"


def test_two_on_one_state_directory_are_refused(tmp_path):
    with EmbeddedValkey(tmp_path) as first:
        with pytest.raises(EmbeddedError, match=rf"process {os.getpid()}\).*FLORIN_STATE_DIR"):
            EmbeddedValkey(tmp_path, lock_timeout=0.1).start()
        assert first.alive
    with EmbeddedValkey(tmp_path) as second:
        assert second.alive


def test_a_server_that_was_killed_is_started_anew(tmp_path):
    with EmbeddedValkey(tmp_path) as server:
        first = server.pid
        assert server.start() == server.url
        assert server.pid == first, "it lives, so it stays"
        os.kill(first, signal.SIGKILL)
        until_now(lambda: not server.alive)
        assert socket_of(server).exists(), "a stale socket is part of this test"
        server.start()
        with Redis.from_url(server.url) as redis:
            assert redis.ping()


def test_it_ends_with_its_parent_however_that_ended(tmp_path):
    script = (
        "import sys, pathlib, time; from adapters.store.embedded import EmbeddedValkey\n"
        "s = EmbeddedValkey(pathlib.Path(sys.argv[1])); s.start(); print(s.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as starter:
        pid = int(starter.stdout.readline())
        starter.kill()
    with EmbeddedValkey(tmp_path) as successor:  # at once: it waits for the predecessor's server to end
        assert successor.alive
        until_now(lambda: gone(pid))  # its files are closed a moment earlier


def test_a_forked_child_does_not_stop_it(tmp_path):
    with EmbeddedValkey(tmp_path) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert server.alive


def test_a_long_path_is_no_obstacle(tmp_path):
    deep = tmp_path / ("long" * 20) / ("longer" * 10)
    with EmbeddedValkey(deep) as server:
        path = socket_of(server)
        assert len(bytes(path)) <= embedded.LONGEST_SOCKET_PATH
        assert mode(path.parent) == 0o700
        assert EmbeddedValkey(deep).url == server.url, "the same data, the same place"
        with Redis.from_url(server.url) as redis:
            assert redis.ping()
    assert not path.parent.exists()


def test_odd_names_of_directories(tmp_path):
    with EmbeddedValkey(tmp_path / "a b%20?#é") as server, Redis.from_url(server.url) as redis:
        assert redis.ping()


def test_a_directory_of_somebody_else_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded.os, "getuid", lambda: 54321)
    with pytest.raises(EmbeddedError, match="belongs to another user"):
        EmbeddedValkey(tmp_path).start()


def test_a_path_that_cannot_be_a_directory(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedError, match="cannot use"):
        EmbeddedValkey(tmp_path / "file").start()


def test_a_server_that_cannot_start_says_why(tmp_path):
    with EmbeddedValkey(tmp_path):
        pass
    manifest = next((tmp_path / "valkey" / "appendonlydir").glob("*.manifest"))
    manifest.write_text("nonsense\n")
    server = EmbeddedValkey(tmp_path)
    with pytest.raises(EmbeddedError, match=r"(?s)exited at start .*manifest"):
        server.start()
    assert server.pid is None


def test_one_that_does_not_get_ready_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "_responds", lambda path: False)
    server = EmbeddedValkey(tmp_path, start_timeout=0.05)
    with pytest.raises(EmbeddedError, match=r"not ready after 0\.05 s"):
        server.start()
    assert server.pid is None


def test_a_socket_that_is_not_a_server_is_no_answer(tmp_path):
    server = EmbeddedValkey(tmp_path)
    assert not server.answers
    with socket.socket(socket.AF_UNIX) as silent:
        socket_of(server).parent.mkdir()
        silent.bind(str(socket_of(server)))
        assert not server.answers
