from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import SettingsError, load_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("FLORIN_PORT", "FLORIN_STATE_DIR", "FLORIN_REDIS_URL", "FLORIN_OPERATOR_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_environment_wins_over_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    (elsewhere / "florin.yaml").write_text("port: 9000\nworkers: 3\n")
    monkeypatch.setenv("FLORIN_PORT", "9001")
    settings = load_settings()
    assert (settings.port, settings.workers) == (9001, 3)


def test_relative_directories_become_absolute(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLORIN_STATE_DIR", "here")
    settings = load_settings()
    assert settings.state_dir == elsewhere / "here"
    assert settings.artifacts == elsewhere / "here" / "artifacts"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("port: 99999", "FLORIN_PORT"),
        ("porte: 5", "florin.yaml: porte"),
        ("a: [", "florin.yaml cannot be read"),
        ("- port", "florin.yaml cannot be read"),
        ("wal_full: maybe", "FLORIN_WAL_FULL"),
    ],
)
def test_a_wrong_file_is_told_in_words(elsewhere: Path, text: str, words: str):
    (elsewhere / "florin.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings()


def test_a_password_is_not_repeated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLORIN_REDIS_URL", "http://user:hunter2@host")
    with pytest.raises(SettingsError, match="FLORIN_REDIS_URL") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("url", ["nonsense", "oracle+nothing://x", "postgresql+asyncpg://u:hunter2@h/d"])
def test_a_ledger_that_nothing_here_can_open_is_refused_at_the_start(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FLORIN_LEDGER_URL", url)
    with pytest.raises(SettingsError, match="FLORIN_LEDGER_URL") as caught:
        load_settings()
    assert "hunter2" not in str(caught.value)
