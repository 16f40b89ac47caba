"""Where a base model's config.json is found, and by which names the model goes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from adapters.checks.base_models import base_aliases, may_be_read, read_base_config
from adapters.errors import NotFoundError

CONFIG = {"architectures": ["LlamaForCausalLM"]}


def cached(hub: Path, revision: str = "0123abcd") -> Path:
    """A model in a hub's cache, laid out as huggingface_hub does."""
    repository = hub / "models--tiny--base"
    snapshot = repository / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    return snapshot


def test_a_directory_and_a_config_file_are_read_where_they_lie(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert read_base_config(str(tmp_path), {}) == CONFIG
    assert read_base_config(str(tmp_path / "config.json"), {}) == CONFIG


@pytest.mark.parametrize(
    ("variable", "below"),
    [
        ("HF_HUB_CACHE", "."),
        ("HUGGINGFACE_HUB_CACHE", "."),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ],
)
def test_a_hub_name_is_looked_up_in_the_cache(tmp_path, variable, below):
    cached(tmp_path / below)
    assert read_base_config("tiny/base", {variable: str(tmp_path)}) == CONFIG
    assert read_base_config("tiny/other", {variable: str(tmp_path)}) is None


@pytest.mark.parametrize(
    "root", ["", "no/such/place/at/all", "/no/such/place", "x\0y", "../tiny--base", "a//b"]
)
def test_what_is_not_on_this_host_is_none(tmp_path, root):
    cached(tmp_path)
    assert read_base_config(root, {"HF_HUB_CACHE": str(tmp_path)}) is None


def test_an_engine_names_models_in_the_operators_folders_and_nothing_else(tmp_path: Path):
    models, secret = tmp_path / "models", tmp_path / "secret"
    for folder in (models / "base", secret):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    (models / "key.json").write_text("{}")
    (models / "way-out").symlink_to(secret)
    (models / "link").mkdir()
    (models / "link" / "config.json").symlink_to(secret / "config.json")
    assert may_be_read(str(models / "base"), [models])
    assert may_be_read("tiny/base", [])  # a repository in the Hub's cache
    for root in (
        secret, models / ".." / "secret", models / "key.json", models / "way-out", models / "link",
        "~/secret", ".", "..", "", f"{models}/base\0", f"file://{models}/base",
    ):  # fmt: skip
        assert not may_be_read(str(root), [models]), root
    assert not may_be_read(str(models / "base"), [])


def test_a_revision_cannot_lead_out_of_the_cache(tmp_path):
    cached(tmp_path / "hub")
    (tmp_path / "config.json").write_text('{"secret": 1}')
    (tmp_path / "hub" / "models--tiny--base" / "refs" / "main").write_text("../../..")
    assert read_base_config("tiny/base", {"HF_HUB_CACHE": str(tmp_path / "hub")}) is None


@pytest.mark.parametrize("raw", [b"", b"[]", b"{", b"\xff\xff", b" " * 5_000_000])
def test_an_unusable_config_is_an_error_that_names_it(tmp_path, raw):
    (tmp_path / "config.json").write_bytes(raw)
    with pytest.raises(NotFoundError, match=r"config\.json"):
        read_base_config(str(tmp_path), {})


def test_aliases_are_the_root_and_what_it_links_to(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real")
    assert base_aliases("tiny", "tiny") == ()
    assert base_aliases("tiny", "") == ()
    assert base_aliases("prod", "tiny/base") == ("tiny/base",)
    assert base_aliases("prod", str(link)) == (str(link), str(tmp_path / "real"))
    assert base_aliases("prod", str(tmp_path / "real")) == (str(tmp_path / "real"),)
