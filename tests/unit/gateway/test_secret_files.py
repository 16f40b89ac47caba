"""Secrets from files: what mounts them, what is refused, and that a change is noticed."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from gateway.config import Settings, SettingsError, load_settings, secret_files
from gateway.config.secret_files import SECRETS, SecretFileError, export_others, open_to_others, variable
from gateway.runtime.exposure import of_secret_files
from gateway.runtime.settings_reload import SecretWatch, received, reread
from gateway.runtime.unknown_variables import unknown

SECRET = "0123456789abcdef" * 2


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in SECRETS:
        monkeypatch.delenv(f"FLORIN_{name.upper()}", raising=False)
        monkeypatch.delenv(variable(name), raising=False)
    return tmp_path


def put(path: Path, text: str | bytes, mode: int = 0o400) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(mode)
    return path


def test_a_file_stands_for_the_value(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLORIN_REDIS_URL_FILE", str(put(elsewhere / "redis", "redis://:hunter2@a\n")))
    monkeypatch.setenv("FLORIN_OIDC_CLIENT_SECRET_FILE", str(put(elsewhere / "oidc", "s3cret")))
    put(elsewhere / "cache", SECRET)
    (elsewhere / "florin.yaml").write_text("cache_secret_file: cache\nredis_url: redis://of-the-file\n")
    settings = load_settings()
    assert settings.redis_url == "redis://:hunter2@a"  # the environment wins over florin.yaml
    assert settings.oidc_client_secret.get_secret_value() == "s3cret"
    assert settings.cache_secret == SECRET
    assert set(secret_files()) == {"redis_url", "oidc_client_secret", "cache_secret"}
    assert not list(unknown(os.environ))
    monkeypatch.delenv("FLORIN_REDIS_URL_FILE")
    monkeypatch.setenv("FLORIN_REDIS_URL", "redis://plain")
    (elsewhere / "florin.yaml").write_text("redis_url_file: redis\n")
    assert load_settings().redis_url == "redis://plain"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        ("dir", "is not a file"),
        ("pipe", "is not a file"),
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"a\nb\n", "does not hold one line"),
        (b"\xff\xfe", "does not hold one line"),
        (b"x" * 70_000, "does not hold one line"),
        (b"http://hunter2@a", "FLORIN_REDIS_URL: must begin with"),
    ],
)
def test_one_that_cannot_be_used_is_told_in_words(content, words, elsewhere, monkeypatch):
    path = elsewhere / "redis"
    if content == "dir":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        put(path, content)
    monkeypatch.setenv("FLORIN_REDIS_URL_FILE", str(path))
    with pytest.raises(SettingsError, match=words) as refused:
        load_settings()
    assert "FLORIN_REDIS_URL" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    monkeypatch.delenv("FLORIN_REDIS_URL_FILE")
    (elsewhere / "florin.yaml").write_text("redis_url_file: redis\n")
    with pytest.raises(SettingsError, match=r"redis_url_file|REDIS_URL"):
        load_settings()


def test_value_and_file_together_are_refused(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    put(elsewhere / "redis", "redis://a")
    monkeypatch.setenv("FLORIN_REDIS_URL", "redis://b")
    monkeypatch.setenv("FLORIN_REDIS_URL_FILE", "redis")
    with pytest.raises(SettingsError, match="FLORIN_REDIS_URL_FILE: FLORIN_REDIS_URL is also set"):
        load_settings()
    monkeypatch.delenv("FLORIN_REDIS_URL")
    monkeypatch.delenv("FLORIN_REDIS_URL_FILE")
    (elsewhere / "florin.yaml").write_text("redis_url_file: redis\nredis_url: redis://b\n")
    with pytest.raises(SettingsError, match=r"florin.yaml: redis_url_file: redis_url is also set"):
        load_settings()


def test_what_libraries_read_may_stand_in_files_too(elsewhere: Path):
    environ = {"HF_TOKEN_FILE": str(put(elsewhere / "hf", "hf_x\n"))}
    export_others(environ)
    assert environ["HF_TOKEN"] == "hf_x"
    with pytest.raises(SecretFileError, match="HF_TOKEN is also set"):
        export_others(environ)
    with pytest.raises(SecretFileError, match=r"AWS_SECRET_ACCESS_KEY_FILE: .* cannot be read"):
        export_others({"AWS_SECRET_ACCESS_KEY_FILE": "/nowhere"})


def test_the_doctor_warns_of_files_that_others_can_read(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    path = put(elsewhere / "cache", SECRET, 0o444)
    monkeypatch.setenv("FLORIN_CACHE_SECRET_FILE", str(path))
    [found] = of_secret_files()
    assert (found.status, found.subject) == ("warning", str(path))
    assert "FLORIN_CACHE_SECRET_FILE (mode 0444)" in found.message
    path.chmod(0o440)
    assert not list(of_secret_files())
    assert not list(open_to_others({"x": elsewhere / "gone"}))
    (elsewhere / "florin.yaml").write_text("a: [")
    [found] = of_secret_files()
    assert "cannot be read again" in found.message


def test_a_changed_file_is_taken_and_nothing_else(elsewhere, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    path = put(elsewhere / "cache", SECRET)
    monkeypatch.setenv("FLORIN_CACHE_SECRET_FILE", str(path))
    monkeypatch.setenv("FLORIN_REDIS_URL_FILE", str(put(elsewhere / "redis", "redis://:hunter2@a")))
    current, now = load_settings(), [0.0]
    watch = SecretWatch(lambda: now[0])
    now[0] = 10
    assert not watch.changed()
    put(path, SECRET[::-1])
    put(elsewhere / "redis", "redis://:hunter3@a")
    (elsewhere / "florin.yaml").write_text("keep_alive: 5\n")
    assert not watch.changed()  # it looked a moment ago
    now[0] = 20
    assert watch.changed()
    assert not watch.changed()
    reload = reread(current, only=SECRETS)
    assert (reload.changed, reload.waiting) == (("cache_secret",), ("redis_url",))
    assert received(current, reload.message).settings.cache_secret == SECRET[::-1]
    assert reload.settings.keep_alive == current.keep_alive  # florin.yaml is not read by the way
    said = caplog.text
    assert "FLORIN_CACHE_SECRET changed" in said
    assert "FLORIN_REDIS_URL" in said
    assert not any(secret in said for secret in (SECRET, SECRET[::-1], "hunter"))
    path.unlink()
    now[0] = 30
    assert watch.changed()
    assert "No such file" in reread(current, only=SECRETS).refused  # and what was read stays


def test_short_cache_secrets_are_refused():
    with pytest.raises(ValueError, match="at least 32 characters"):
        Settings(cache_secret="short")
