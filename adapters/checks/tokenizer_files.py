"""What lies beside an adapter's two files: tokenizer and chat template, which engines never look at.

vLLM tokenizes and renders chats for every adapter with the base model's files. So an adapter that was trained
with more tokens, or in another chat format, loads and answers, only not as it was trained.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from adapters.checks.findings import Findings, shown
from adapters.model import BaseModel

MAX_FILE_BYTES = 4 * 1024 * 1024
_TOKENIZER_HEAD_BYTES = 4 * 1024 * 1024
"""Of tokenizer.json, which may be large: its added tokens stand before its vocabulary."""

_TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")
"""Where transformers looks, the strongest first."""


class FileInvalidError(Exception):
    """The message names the file and says what is wrong with it."""


def chat_template(directory: Path) -> str | None:
    """SHA-256, hex, of the chat template in a model's or an adapter's directory; empty when it has none, None
    when there is no tokenizer file at all. Line ends, and those at the end, do not count: rendering drops
    them. Raises FileInvalidError, OSError. Blocking."""
    texts = [text for name in _TEMPLATE_FILES if (text := _template_in(directory / name)) is not None]
    if not texts:
        return (
            "" if any((directory / name).is_file() for name in ("tokenizer.json", *_TEMPLATE_FILES)) else None
        )
    return template_digest(texts[0])


def template_digest(template: str) -> str:
    """SHA-256, hex, or empty for an empty one. Line ends, and those at the end, do not count: rendering drops
    them."""
    text = template.replace("\r\n", "\n").rstrip("\n")
    return hashlib.sha256(text.encode()).hexdigest() if text else ""


def check_tokenizer_files(
    directory: Path, *, base: BaseModel, vocabulary: int | None, findings: Findings
) -> None:
    """Compares what lies in an adapter's directory with `base`, whose tokens are `vocabulary` in number.
    Raises OSError. Blocking."""
    bad: dict[str, None] = {}
    for check in (_check_vocabulary, _check_template):
        try:
            check(directory, base, vocabulary, findings)
        except FileInvalidError as error:
            bad[str(error)] = None
    for message in bad:
        findings.add(
            "file_invalid",
            "A file beside the adapter could not be checked; engines do not read it.",
            found=shown(message),
            expected="a sound tokenizer file, or none",
        )


def _check_template(directory: Path, base: BaseModel, vocabulary: int | None, findings: Findings) -> None:
    del vocabulary
    template = chat_template(directory)
    if not template or template == base.chat_template:
        return
    if base.chat_template is None:
        findings.add(
            "chat_template_unknown",
            "Engines render chats with the base model's template, whatever the adapter came with.",
            found=f"a chat template, SHA-256 {template[:12]}…",
            expected="the base model's, which Florin does not know",
        )
        return
    findings.add(
        "chat_template_differs",
        "Engines render chats with the base model's template, not with the one that came with the adapter.",
        found=f"a chat template, SHA-256 {template[:12]}…",
        expected=f"SHA-256 {base.chat_template[:12]}…" if base.chat_template else "none: the base has none",
    )


def added_tokens(directory: Path) -> dict[str, int]:
    """Token → id, as the three files say it that may. Raises FileInvalidError, OSError."""
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


def _check_vocabulary(directory: Path, base: BaseModel, vocabulary: int | None, findings: Findings) -> None:
    del base
    tokens = added_tokens(directory)
    if vocabulary is None:
        return
    beyond = {token: number for token, number in tokens.items() if number >= vocabulary}
    # Padding never reaches an engine, and is what many a training run adds.
    beyond.pop(_padding(directory), None)
    if beyond:
        names = ", ".join(shown(token) for token in sorted(beyond, key=beyond.__getitem__)[:3])
        findings.add(
            "vocabulary_changed",
            f"The adapter's tokenizer has {len(beyond)} tokens that the base model has no room for.",
            found=f"{names} with ids up to {max(beyond.values())}",
            expected=f"ids below the base model's vocab_size, {vocabulary}",
        )


def _padding(directory: Path) -> str:
    token = _object(directory / "tokenizer_config.json").get("pad_token")
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _template_in(path: Path) -> str | None:
    """The template that this file gives, None when it gives none."""
    if path.suffix == ".jinja":
        raw = _read(path, MAX_FILE_BYTES)
        try:
            return None if raw is None else raw.decode()
        except UnicodeDecodeError as error:
            raise FileInvalidError(f"{path.name} is not UTF-8") from error
    template = _object(path).get("chat_template")
    if isinstance(template, list):  # several by name: chats use this one
        named = [entry for entry in template if isinstance(entry, dict) and entry.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`; empty when the file is not there."""
    raw = _read(path, MAX_FILE_BYTES)
    if raw is None:
        return {}
    try:
        value = json.loads(raw.decode())
        json.dumps(value, ensure_ascii=False).encode()  # lone surrogates are no text
    except (ValueError, RecursionError) as error:
        raise FileInvalidError(f"{path.name} is not valid JSON: {str(error)[:120]}") from error
    if not isinstance(value, dict):
        raise FileInvalidError(f"{path.name} holds no JSON object")
    return value


def _tokenizer_added(path: Path) -> list[Any]:
    """`added_tokens` of a tokenizer.json, read from its head alone: the vocabulary may be tens of MB."""
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
        raise FileInvalidError(f"{path.name} has more than {limit} bytes")
    return raw
