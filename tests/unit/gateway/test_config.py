from __future__ import annotations

import re
from pathlib import Path

import pytest

from adapters.security.secret_files import write_private
from gateway.config import Settings, SettingsError, load_settings


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "FLORIN_PORT",
        "FLORIN_STATE_DIR",
        "FLORIN_REDIS_URL",
        "FLORIN_OPERATOR_KEY",
        "FLORIN_OPERATOR_KEY_FILE",
    ):
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
        ("porte: 5", "florin.yaml: porte: there is no such setting. Did you mean port?"),
        ("FLORIN_PORT: 5", "florin.yaml: FLORIN_PORT: there is no such setting. Did you mean port?"),
        ("a: [", "florin.yaml cannot be read"),
        ("- port", "florin.yaml cannot be read: it must map settings to values"),
        ("port: 1\nmax_n: 2\nport: 3", "cannot be read: line 3: 'port' is already in line 1"),
        ("max_n: 2\nport: {{ PORT }}", 'found unhashable key\n.*florin.yaml", line 2'),
        ("wal_full: maybe", "FLORIN_WAL_FULL"),
        ("redis_url: http://a", "FLORIN_REDIS_URL"),
        ("redis_url: redis+sentinel://a,b", "FLORIN_REDIS_URL"),
        ("artifact_bucket: s3://bucket/../other", "FLORIN_ARTIFACT_BUCKET"),
        ("controller_subject: system:serviceaccount:a:b", "FLORIN_HOST_ISSUER"),
        ("artifact_bucket: s3://bucket/a//b", "FLORIN_ARTIFACT_BUCKET"),
    ],
)
def test_a_wrong_file_is_told_in_words(elsewhere: Path, text: str, words: str):
    (elsewhere / "florin.yaml").write_text(text)
    with pytest.raises(SettingsError, match=words):
        load_settings()


def test_every_setting_is_described_and_used():
    folder = Path(__file__).parents[3] / "gateway"
    text = "".join(path.read_text() for path in folder.rglob("*.py"))
    for name, field in Settings.model_fields.items():
        assert field.description, f"{name} has no description"
        assert re.search(rf"\.{name}\b", text), f"nothing reads {name}"


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


def test_the_bootstrap_key_may_stand_in_a_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_private(elsewhere / "key", "s3cret-key\n")
    monkeypatch.setenv("FLORIN_OPERATOR_KEY_FILE", "key")
    settings = load_settings()
    assert settings.bootstrap_key == "s3cret-key"
    assert settings.operator_key.get_secret_value() == ""
    monkeypatch.chdir("/")
    assert settings.bootstrap_key == "s3cret-key"


def test_a_file_that_cannot_be_the_bootstrap_key_is_told_in_words(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
):
    key = elsewhere / "key"
    monkeypatch.setenv("FLORIN_OPERATOR_KEY_FILE", str(key))
    with pytest.raises(SettingsError, match=r"FLORIN_OPERATOR_KEY_FILE: .* No such file"):
        load_settings()
    key.write_text("s3cret-key")
    key.chmod(0o644)
    with pytest.raises(SettingsError, match=rf"FLORIN_OPERATOR_KEY_FILE: .* chmod 600 {key}") as caught:
        load_settings()
    assert "s3cret-key" not in str(caught.value)
    key.chmod(0o600)
    monkeypatch.setenv("FLORIN_OPERATOR_KEY", "another")
    with pytest.raises(SettingsError, match="set only one of them"):
        load_settings()


def test_without_either_there_is_no_bootstrap_key():
    assert load_settings().bootstrap_key == ""
    assert load_settings(operator_key="given").bootstrap_key == "given"
