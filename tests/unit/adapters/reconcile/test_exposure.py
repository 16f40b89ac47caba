"""What is exposed, and in which words it is told: tables."""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from adapters.model import Engine
from adapters.reconcile import exposure
from adapters.reconcile.exposure import is_loopback
from adapters.security import state_directory
from adapters.security.tls import Pair
from gateway.config import Settings
from gateway.runtime.exposure import exposure_of, of_listeners

NOW = 1_800_000_000.0
DAY = 86_400.0


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1", True), ("127.8.9.10", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("LOCALHOST.", True), ("gpu.localhost", True), ("::ffff:127.0.0.1", True), ("0.0.0.0", False),
        ("::", False), ("", False), ("10.0.0.7", False), ("localhost.example", False), ("127.0.0.1.nip.io", False),
        ("fe80::1%eth0", False), ("2130706433", False),
    ],
)  # fmt: skip
def test_what_only_this_machine_reaches(host, ours):
    assert is_loopback(host) is ours


@pytest.mark.parametrize(
    ("host", "settings", "status", "said"),
    [
        ("127.0.0.1", {}, "ok", "on this machine only"),
        ("0.0.0.0", {}, "warning", "speaks plain HTTP on 0.0.0.0"),
        ("::", {}, "warning", "anyone on the network path can read keys and prompts"),
        ("10.0.0.1", {"behind_proxy": True}, "ok", "a proxy terminates TLS"),
        ("10.0.0.1", {"tls_cert": Path("/c"), "tls_key": Path("/k")}, "ok", "speaks TLS"),
    ],
)
def test_the_listener(host, settings, status, said):
    (found,) = of_listeners(Settings(**settings), [host])
    assert found.status == status
    assert said in found.message
    assert bool(found.remedy) == (status != "ok")


def test_each_port_is_looked_at():
    public, admin = of_listeners(Settings(uds=Path("/run/florin"), admin_host="0.0.0.0", admin_port=8081))
    assert (public.status, admin.status) == ("ok", "warning")
    assert admin.message.startswith("The admin and finance API speaks plain HTTP on 0.0.0.0")


@dataclass
class Shown:
    """What `of_certificates` looks at of an identity."""

    pair: Pair
    trouble: str = ""
    name: str = "server"
    files: tuple[Path, Path] = field(default=(Path("/c.pem"), Path("/k.pem")))


@pytest.mark.parametrize(
    ("days", "trouble", "status", "said"),
    [
        (30, "", "ok", "valid until"),
        (13, "", "warning", "expires on"),
        (-1, "", "problem", "expired on"),
        (0, "", "problem", "expired on"),
        (
            30,
            "the key does not fit.",
            "warning",
            "old one stays until 2027-02-14 08:00 UTC: the key does not fit.",
        ),
        (-1, "the key does not fit.", "problem", "expired on"),
    ],
)
def test_certificates(days, trouble, status, said):
    pair = Pair(b"", NOW - 90 * DAY, NOW + days * DAY, "CN=x")
    [found] = exposure.of_certificates([Shown(pair, trouble)], NOW)
    assert (found.status, found.subject) == (status, "server")
    assert said in found.message


def engine(name: str, url: str, agent: str = "") -> Engine:
    return Engine(name=name, url=url, base_model="base", gpu_type="h100", slots=1, max_rank=8, agent=agent)


@pytest.mark.parametrize(
    ("engines", "named"),
    [
        ([], None),
        ([engine("a", "http://127.0.0.1:8000"), engine("b", "https://10.0.0.7:8000")], None),
        ([engine("a", "http://10.0.0.7:8000")], "a"),
        ([engine("b", "https://10.0.0.7:8000", "http://10.0.0.7:99")], "b"),
        ([engine(n, "http://gpu:8000") for n in "gfedcba"], "a, b, c, d, e and 2 more"),
    ],
)
def test_engines_in_plain_text(engines, named):
    found = list(exposure.of_engines(engines))
    assert len(found) == (named is not None)
    assert all(f"go to {named} in plain text" in one.message for one in found)


def test_docs_are_told_where_others_see_them():
    assert not list(exposure.of_docs("127.0.0.1", served=True))
    assert not list(exposure.of_docs("0.0.0.0", served=False))
    assert [one.check for one in exposure.of_docs("0.0.0.0", served=True)] == ["api_docs"]


def test_all_of_it_for_doctor(tmp_path):
    (tmp_path / "state").mkdir(mode=0o700)
    settings = Settings(state_dir=tmp_path / "state", host="0.0.0.0", api_docs=True)
    found = exposure_of(settings, [], [engine("a", "http://10.0.0.7:8000")], time.time())
    assert {one.check: one.status for one in found} == {
        "listener": "warning", "engine_tls": "warning", "api_docs": "warning", "state_dir": "ok"
    }  # fmt: skip


# -- the state directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """As an earlier version, or somebody's `cp -r`, may have left it."""
    directory = tmp_path / "state"
    (directory / "usage" / "deep").mkdir(parents=True)
    (directory / "artifacts").mkdir()
    for name in ("ledger.db", "ledger.db-wal", "usage/1.log", "usage/deep/x", "artifacts/weights"):
        (directory / name).write_text("x")
    for place, directories, files in os.walk(directory):
        for name in (*directories, *files):
            Path(place, name).chmod(0o777)
    directory.chmod(0o777)
    return directory


def test_an_open_state_directory_is_closed_with_all_that_is_florins(state, caplog):
    before = state_directory.inspect(state)
    assert len(before.open_to_others) == 7
    assert [f.status for f in exposure.of_state(state)] == ["warning"]
    state_directory.make_private(state)
    assert "7 files and directories" in caplog.text
    assert mode(state) == 0o700
    assert mode(state / "usage" / "deep" / "x") == 0o700
    assert (
        mode(state / "artifacts") == mode(state / "artifacts" / "weights") == 0o777
    )  # engines may be others
    assert state_directory.inspect(state) == state_directory.Found((), (), shared=False)
    assert [f.status for f in exposure.of_state(state)] == ["ok"]
    caplog.clear()
    state_directory.make_private(state)
    assert not caplog.text


def test_a_directory_that_holds_others_things_keeps_its_mode_and_they_theirs(state, caplog):
    (state / "homework.txt").write_text("x")
    (state / "homework.txt").chmod(0o644)
    state_directory.make_private(state)
    assert mode(state) == 0o777
    assert mode(state / "homework.txt") == 0o644
    assert mode(state / "ledger.db") == 0o700
    assert "contains foreign files (such as homework.txt)" in caplog.text
    [found] = exposure.of_state(state)
    assert found.status == "warning"
    assert "homework.txt" in found.message


def test_links_are_not_followed(state, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o755)  # whatever the umask
    (tmp_path / "elsewhere" / "file").write_text("x")
    (tmp_path / "elsewhere" / "file").chmod(0o644)
    (state / "usage" / "link").symlink_to(tmp_path / "elsewhere")
    (state / "ledger.db-shm").symlink_to(tmp_path / "elsewhere" / "file")
    state_directory.make_private(state)
    assert mode(tmp_path / "elsewhere" / "file") == 0o644
    assert mode(tmp_path / "elsewhere") == 0o755


def test_shared_directory_is_never_made_private(state):
    state.chmod(0o1777)
    state_directory.make_private(state)
    assert mode(state) == 0o1777
