"""The file of the bootstrap key. tests/field/test_leaked_operator_key.py shows how a gateway follows it."""

from __future__ import annotations

import logging
from pathlib import Path

from adapters.security.secret_files import write_private
from gateway.tenants.bootstrap_key import BootstrapKeyFile
from gateway.tenants.directory import Directory


def test_a_worker_that_cannot_read_it_starts_without_and_takes_it_later(tmp_path: Path, caplog):
    directory = Directory()
    file = BootstrapKeyFile(tmp_path / "key", directory)
    assert "cannot be read" in file.trouble
    assert (directory.bootstrap_length, caplog.records[0].levelno) == (0, logging.ERROR)
    assert file.read_changed() is None
    assert len(caplog.records) == 1, "said once"
    write_private(tmp_path / "key", "operator-key")
    key = file.read_changed()
    assert key is not None
    file.use(key)
    assert (file.trouble, directory.is_operator_key("operator-key")) == ("", True)
    assert directory.find(b"operator-key") is directory.by_id("bootstrap")


def test_it_is_tried_again_unchanged_only_when_asked(tmp_path: Path, monkeypatch):
    write_private(tmp_path / "key", "operator-key")
    file = BootstrapKeyFile(tmp_path / "key", Directory())
    monkeypatch.setattr(
        "gateway.tenants.bootstrap_key.read_key", lambda _: "another-key"
    )  # a file system that lies
    assert file.read_changed() is None
    file.read_again()
    assert file.read_changed() == "another-key"
