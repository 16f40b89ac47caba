"""Checks the tokenizer and chat template files beside an adapter, which engines never read.

vLLM tokenizes and renders chats for every adapter with the base model's files. An adapter trained with extra
tokens or another chat format therefore loads and answers, but not as trained.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.model import BaseModel
from adapters.wording import counted

MAX_FILE_BYTES = 4 * 1024 * 1024
_TOKENIZER_HEAD_BYTES = 4 * 1024 * 1024
"""Bytes read of tokenizer.json, which may be large; its added tokens precede its vocabulary."""

_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Files in which transformers looks for it, highest precedence first."""


class FileInvalidError(Exception):
    """A file is invalid; the message names it and says why."""


def chat_template(directory: Path) -> str | None:
    """Hex SHA-256 of the chat template in a model's or adapter's directory; empty if it has none, None if
    there is no tokenizer file. See `template_digest`. Raises FileInvalidError, OSError. Blocking."""
    texts = [text for name in _TEMPLATE_FILES if (text := _template_in(directory / name)) is not None]
    if not texts:
        return (
            "" if any((directory / name).is_file() for name in ("tokenizer.json", *_TEMPLATE_FILES)) else None
        )
    return template_digest(texts[0])


def template_digest(template: str) -> str:
    """Hex SHA-256 of a template, or empty for an empty one. Ignores the kind of line endings and trailing
    newlines, which rendering drops."""
    text = template.replace("\r\n", "\n").rstrip("\n")
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def check_tokenizer_files(
    directory: Path, *, base: BaseModel, vocabulary: int | None, findings: Findings
) -> None:
    """Compare the files in an adapter's directory with `base`, which has `vocabulary` tokens. Raises OSError.
    Blocking."""
    bad: dict[str, None] = {}
    for check in (_check_vocabulary, _check_template):
        try:
            check(directory, base, vocabulary, findings)
        except FileInvalidError as error:
            bad[str(error)] = None
    for message in bad:
        findings.add(
            "file_invalid",
            "A tokenizer file beside the adapter could not be checked; engines do not read it.",
            found=shown(message),
            expected="a valid tokenizer file, or none",
        )


def _check_template(directory: Path, base: BaseModel, vocabulary: int | None, findings: Findings) -> None:
    del vocabulary
    template = chat_template(directory)
    if not template or template == base.chat_template:
        return
    if base.chat_template is None:
        findings.add(
            "chat_template_unknown",
            "Engines use the base model's chat template, which may differ from the adapter's.",
            found=f"a chat template, SHA-256 {template[:12]}…",
            expected="the base model's, which Florin does not know",
        )
        return
    findings.add(
        "chat_template_differs",
        "Engines use the base model's chat template, not the adapter's.",
        found=f"a chat template, SHA-256 {template[:12]}…",
        expected=f"SHA-256 {base.chat_template[:12]}…"
        if base.chat_template
        else "none: the base model has none",
    )


def added_tokens(directory: Path) -> dict[str, int]:
    """Token → id, from the three files that may define added tokens. Raises FileInvalidError, OSError."""
    listed = _object(directory / "added_tokens.json")
    tokens = {token: number for token, number in listed.items() if type(number) is int}
    decoder = _object(directory / "tokenizer_config.json").get("added_tokens_decoder")
    for number, entry in (decoder if isinstance(decoder, dict) else {}).items():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and number.isdecimal():
            tokens[entry["content"]] = int(number[:12])
    for entry in _tokenizer_added(directory / "tokenizer.json"):
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and type(entry.get("id")) is int:
            tokens[entry["content"]] = entry["id"]
    return tokens


def tokens_beyond(directory: Path, vocabulary: int) -> dict[str, int] | None:
    """Token → id, of those that are not among the first `vocabulary` ones and not padding, which never
    reaches an engine and which many training runs add. None if no file says which tokens there are. Raises
    FileInvalidError, OSError."""
    tokens = added_tokens(directory)
    padding = _padding(directory)
    beyond = {token: number for token, number in tokens.items() if number >= vocabulary and token != padding}
    return beyond if tokens else None


def _check_vocabulary(directory: Path, base: BaseModel, vocabulary: int | None, findings: Findings) -> None:
    del base
    if beyond := tokens_beyond(directory, 2**63 if vocabulary is None else vocabulary):
        names = ", ".join(shown(token) for token in sorted(beyond, key=beyond.__getitem__)[:3])
        findings.add(
            "vocabulary_changed",
            f"The adapter's tokenizer has {counted(len(beyond), 'token')} beyond the base model's "
            "vocabulary.",
            found=f"{names} with ids up to {max(beyond.values())}",
            expected=f"ids below the base model's vocab_size, {vocabulary}",
        )


def _padding(directory: Path) -> str:
    token = _object(directory / "tokenizer_config.json").get("pad_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _template_in(path: Path) -> str | None:
    """The template defined by this file, or None."""
    if path.suffix == ".jinja":
        raw = _read(path, MAX_FILE_BYTES)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise FileInvalidError(f"{path.name} is not UTF-8") from error
    template = _object(path).get("chat_template")
    if isinstance(template, list):  # named templates: chats use "default"
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty if the file does not exist."""
    raw = _read(path, MAX_FILE_BYTES)
    if raw is None:
        return {}
    try:
        value = json.loads(raw.decode())
        json.dumps(value, ensure_ascii=False).encode()  # rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise FileInvalidError(f"{path.name} is not valid JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise FileInvalidError(f"{path.name} is not a JSON object")
    return value


def _tokenizer_added(path: Path) -> list[Any]:
    """`added_tokens` of a tokenizer.json, read from its beginning only, because the vocabulary may be tens of
    MB."""
    if not path.is_file():
        return []
    with path.open("rb") as file:
        head = file.read(_TOKENIZER_HEAD_BYTES).decode(errors="replace")
    key, rest = '"added_tokens"', ""
    if key in head:
        rest = head.partition(key)[2].lstrip().removeprefix(":").lstrip()
    if not rest:
        return []
    try:
        tokens, _ = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError) as error:
        raise FileInvalidError(f"{path.name} is not valid JSON in its added_tokens") from error
    return tokens if isinstance(tokens, list) else []


def _read(path: Path, limit: int) -> bytes | None:
    if not path.is_file():
        return None
    with path.open("rb") as file:
        raw = file.read(limit + 1)
    if len(raw) > limit:
        raise FileInvalidError(f"{path.name} is larger than {limit} bytes")
    return raw
