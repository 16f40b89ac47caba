from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.config import RELOADABLE, Settings, load_settings
from gateway.runtime.settings_reload import Reload, compare, received, reread


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FLORIN_"):
            monkeypatch.delenv(name)
    return tmp_path


def test_what_may_change_changes_and_the_rest_waits():
    before = Settings(max_n=3, port=1, redis_url="unix:///embedded")
    after = Settings(max_n=4, port=2, issuer="Acme")
    reload = compare(before, after)
    assert set(reload.changed) == {"max_n", "issuer"}
    assert reload.waiting == ("port",)
    assert (reload.settings.max_n, reload.settings.port) == (4, 1)
    assert reload.settings.redis_url == "unix:///embedded"


def test_a_worker_gets_what_its_parent_has_read():
    before = Settings(max_n=3)
    sent = compare(before, Settings(max_n=4, retry_budget=0.5, media_hosts="cdn.example.com")).message
    assert received(before, json.loads(json.dumps(sent))).settings == Settings(
        max_n=4, retry_budget=0.5, media_hosts="cdn.example.com"
    )


def test_a_wrong_file_changes_nothing(elsewhere: Path):
    current = load_settings()
    (elsewhere / "florin.yaml").write_text("max_n: 4\nprobe_interval: often\n")
    reload = reread(current)
    assert reload.settings == current
    assert "FLORIN_PROBE_INTERVAL" in reload.refused
    (elsewhere / "florin.yaml").write_text("max_n: 4\n")
    assert reread(current) == Reload(current.model_copy(update={"max_n": 4}), ("max_n",))


def test_nothing_that_was_opened_at_the_start_can_be_reloaded():
    fixed = {"host", "port", "workers", "state_dir", "redis_url", "ledger_url", "operator_key", "tls_cert"}
    assert RELOADABLE
    assert not RELOADABLE & fixed
