"""Key files: read only where nobody else can, and written so that nobody ever could."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from adapters.security.secret_files import MAX_BYTES, KeyFileError, read_key, write_private


def key_file(tmp_path: Path, content: bytes = b"fl_a_secret\n", mode: int = 0o600) -> Path:
    path = tmp_path / "key"
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("content", [b"fl_a_secret", b"# by hand\n\n  fl_a_secret \nthe rest\n"])
def test_the_first_line_that_is_no_comment_is_the_key(tmp_path, content):
    assert read_key(key_file(tmp_path, content)) == "fl_a_secret"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o601, 0o666, 0o777])
def test_a_file_that_others_can_read_or_change_is_refused_with_the_remedy(tmp_path, mode):
    path = key_file(tmp_path, mode=mode)
    with pytest.raises(KeyFileError, match=f"chmod 600 {path}") as caught:
        read_key(path)
    assert "secret" not in str(caught.value).replace("holds a secret", "")


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_one_that_only_its_owner_reads_is_taken(tmp_path, mode):
    assert read_key(key_file(tmp_path, mode=mode)) == "fl_a_secret"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_mounted_secret_of_roots_may_be_its_groups_and_one_of_a_users_only_its_own_groups(tmp_path):
    path = key_file(tmp_path, mode=0o640)
    os.chown(path, 0, 10002)
    assert read_key(path) == "fl_a_secret"
    os.chown(path, 10002, 10002)  # as a pod's token: the kubelet gives it to runAsUser and fsGroup
    assert read_key(path) == "fl_a_secret"
    os.chown(path, 65534, 100)
    with pytest.raises(KeyFileError, match="chmod 600"):
        read_key(path)


def test_a_link_to_a_good_file_is_followed_and_to_an_open_one_refused(tmp_path):
    path = key_file(tmp_path)
    link = tmp_path / "link"
    link.symlink_to(path)
    assert read_key(link) == "fl_a_secret"
    path.chmod(0o644)
    with pytest.raises(KeyFileError, match="accessible to others"):
        read_key(link)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "contains no key"),
        (b"# only a comment\n", "contains no key"),
        (b"two words\n", "not valid in a key"),
        (b"\xff\xfe", "not ASCII"),
        (b"a\x00b", "not valid in a key"),
        (b"k" * (MAX_BYTES + 1), "larger than"),
    ],
)
def test_what_is_no_key_is_refused(tmp_path, content, words):
    with pytest.raises(KeyFileError, match=words):
        read_key(key_file(tmp_path, content))


def test_what_is_no_file_is_refused_and_a_pipe_does_not_hang(tmp_path):
    with pytest.raises(KeyFileError, match="No such file"):
        read_key(tmp_path / "none")
    with pytest.raises(KeyFileError, match="is not a file"):
        read_key(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(KeyFileError, match="is not a file"):
        read_key(tmp_path / "pipe")


def test_what_is_written_is_private_whatever_the_umask(tmp_path):
    path = tmp_path / "new" / "key"
    before = os.umask(0)
    try:
        write_private(path, "one\n")
        write_private(path, "two\n")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_text() == "two\n"
    assert list(path.parent.iterdir()) == [path]
