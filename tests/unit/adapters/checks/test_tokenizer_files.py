"""Tokens and chat templates beside an adapter: what engines, which never read them, would get wrong."""

from __future__ import annotations

import json
from hashlib import sha256

import pytest

from adapters.checks.base_models import read_base, read_chat_template
from adapters.checks.findings import Findings
from adapters.checks.tokenizer_files import FileInvalidError, chat_template, check_tokenizer_files
from adapters.model import BaseModel

TEXT = "{% for m in messages %}{{ m.content }}{% endfor %}"
HASH = sha256(TEXT.encode()).hexdigest()


def write(directory, **files):
    """`chat_template__jinja=…`: a text, or JSON."""
    directory.mkdir(exist_ok=True)
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def codes(directory, template: str | None = HASH, vocabulary: int | None = 100) -> dict[str, str]:
    findings = Findings()
    base = BaseModel("base", chat_template=template)
    check_tokenizer_files(directory, base=base, vocabulary=vocabulary, findings=findings)
    return {finding.code: finding.found for finding in findings.all()}


@pytest.mark.parametrize(
    "files",
    [
        {"chat_template__jinja": TEXT},
        {"chat_template__jinja": TEXT + "\n"},
        {"chat_template__json": {"chat_template": TEXT}},
        {"tokenizer_config__json": {"chat_template": TEXT}},
        {"tokenizer_config__json": {"chat_template": [{"name": "tools", "template": "x"},
                                                      {"name": "default", "template": TEXT}]}},
        {"chat_template__jinja": TEXT, "tokenizer_config__json": {"chat_template": "of old"}},
    ],
)  # fmt: skip
def test_a_template_is_found_where_transformers_looks(tmp_path, files):
    assert chat_template(write(tmp_path, **files)) == HASH
    assert codes(tmp_path) == {}
    assert set(codes(tmp_path, template=None)) == {"chat_template_unknown"}
    assert set(codes(tmp_path, template="")) == {"chat_template_differs"}
    assert set(codes(tmp_path, template=sha256(b"other").hexdigest())) == {"chat_template_differs"}


def test_no_template_is_empty_and_no_tokenizer_unknown(tmp_path):
    assert chat_template(tmp_path) is None
    assert codes(tmp_path) == {}
    assert chat_template(write(tmp_path, tokenizer_config__json={})) == ""
    assert codes(tmp_path) == {}


def test_a_base_model_brings_its_template(tmp_path):
    model = write(tmp_path / "base", config__json={"hidden_size": 1, "_name_or_path": "org/base"})
    assert read_chat_template(str(model), {}) is None
    write(model, chat_template__jinja=TEXT)
    assert read_chat_template(str(model), {}) == HASH
    assert read_chat_template(str(model / "config.json"), {}) == HASH
    base = read_base("base", str(model), {})
    assert base
    assert (base.chat_template, base.aliases[-1]) == (HASH, "org/base")
    assert read_base("base", str(tmp_path / "elsewhere"), {}) is None
    write(model, tokenizer_config__json="[")
    (model / "chat_template.jinja").unlink()
    assert read_chat_template(str(model), {}) is None


@pytest.mark.parametrize(
    "files",
    [
        {"added_tokens__json": {"<a>": 99, "<b>": 100}},
        {"tokenizer_config__json": {"added_tokens_decoder": {"100": {"content": "<b>"}}}},
        {"tokenizer__json": {"version": "1.0", "added_tokens": [{"id": 100, "content": "<b>"}], "model": {}}},
    ],
)
def test_tokens_beyond_the_bases_vocabulary_are_refused(tmp_path, files):
    write(tmp_path, **files)
    assert codes(tmp_path) == {"vocabulary_changed": "'<b>' with ids up to 100"}
    assert codes(tmp_path, vocabulary=101) == {}
    assert codes(tmp_path, vocabulary=None) == {}


def test_a_padding_token_of_its_own_is_no_change_but_one_more_is(tmp_path):
    write(tmp_path, added_tokens__json={"<pad>": 100}, tokenizer_config__json={"pad_token": "<pad>"})
    assert codes(tmp_path) == {}
    write(tmp_path, tokenizer_config__json={"pad_token": {"content": "<pad>"}})
    assert codes(tmp_path) == {}
    write(tmp_path, added_tokens__json={"<pad>": 100, "<x>": 101})
    assert codes(tmp_path) == {"vocabulary_changed": "'<x>' with ids up to 101"}


@pytest.mark.parametrize("text", ["", "{", "[]", "7", '{"x": "\\ud800"}', "[" * 100_000, '{"a": NaN'])
@pytest.mark.parametrize("name", ["added_tokens__json", "tokenizer_config__json", "chat_template__json"])
def test_what_cannot_be_read_is_told_once_and_refuses_nothing(tmp_path, name, text):
    write(tmp_path, **{name: text})
    assert list(codes(tmp_path)) == ["file_invalid"]


def test_files_of_absurd_size_are_not_read(tmp_path):
    with (tmp_path / "tokenizer_config.json").open("wb") as file:
        file.truncate(2**30)
    with pytest.raises(FileInvalidError, match="bytes"):
        chat_template(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        {"added_tokens": {"100": "<b>"}},
        {"added_tokens": [7, {"id": "100", "content": "<b>"}, {"id": 100}, {"content": "<b>"}, None]},
        {"model": {"vocab": {"a": 100}}},
    ],
)
def test_entries_of_other_forms_are_passed_over(tmp_path, content):
    assert codes(write(tmp_path, tokenizer__json=content)) == {}


def test_the_added_tokens_are_read_from_the_head_of_a_large_tokenizer(tmp_path):
    vocabulary = {f"token-{number}": number for number in range(400_000)}
    added = [{"id": 400_000, "content": "<new>"}]
    write(tmp_path, tokenizer__json={"added_tokens": added, "model": {"vocab": vocabulary}})
    assert (tmp_path / "tokenizer.json").stat().st_size > 4 * 1024 * 1024
    assert set(codes(tmp_path, vocabulary=400_000)) == {"vocabulary_changed"}
