"""The bench goes on without a peer that does not work."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.overhead import contestants, peers
from loadtests.overhead.peers import Peer, PeerUnavailableError


@pytest.mark.parametrize("name", peers.PEERS)
def test_the_pinned_version_is_the_locked_one(name: str):
    package = (peers.REQUIREMENTS / f"{name}.in").read_text().partition("[")[0].partition("==")[0].strip()
    locked = (peers.REQUIREMENTS / f"{name}.txt").read_text()
    assert f"\n{package}=={peers.version(name)} " in locked


def test_a_peer_that_cannot_be_installed_is_reported(monkeypatch, tmp_path: Path):
    def fails(command: list[str]) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="no matching distribution")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(peers, "_run", fails)
    with pytest.raises(PeerUnavailableError, match=r"smg cannot be installed(.|\n)*no matching distribution"):
        peers.environment("smg")


def test_a_peer_that_does_not_start_is_reported_with_its_output(monkeypatch, tmp_path: Path):
    script = "import sys; sys.exit('no such option')"
    monkeypatch.setitem(peers.PEERS, "broken", Peer(lambda _: ["python", "-c", script]))
    monkeypatch.setattr(peers, "environment", lambda _: Path(sys.prefix))
    monkeypatch.setattr(peers, "version", lambda _: "1.0")
    with pytest.raises(PeerUnavailableError, match=r"broken does not work here(.|\n)*no such option"):
        contestants.peer("broken", "http://127.0.0.1:9", "fl-x", tmp_path)
