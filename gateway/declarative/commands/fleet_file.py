"""Fleet files: parsed strictly, and written in a stable order that diffs well."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gateway.commands.client import Json, UsageError
from gateway.declarative.operations.sections import SECTIONS, as_text

HEAD = """\
# The registry of a Florin installation, written by `florin export`. `florin apply -f FILE` changes an
# installation to match it; `--dry-run` only shows what would change, and `--prune` also removes what the file
# does not list. The file contains no secrets: a key is stored as its SHA-256.
"""

_CORE = "tag:yaml.org,2002:"
_TAGS = {f"{_CORE}{tag}" for tag in ("null", "bool", "int", "float", "str", "map", "seq")}
_KEY_LENGTH = range(20, 513)
_SECRET = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)


def write(document: Json) -> str:
    """YAML with comments. The same document is always the same text."""
    text = f"{HEAD}\nflorin: {document['florin']}\n"
    for section, comment in SECTIONS.items():
        text += f"\n# {comment}\n{_dump({section: document[section]})}"
    return text


def _dump(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110)
    return text


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Never writes YAML aliases."""
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - PyYAML's signature
        """Indents list items."""
        del indentless
        super().increase_indent(flow, indentless=False)


@dataclass(frozen=True, slots=True)
class FleetFile:
    document: Json
    """As it is written: keys are references."""
    root: yaml.Node
    directory: Path
    """To which paths in it are relative."""

    def line(self, location: Sequence[str | int]) -> int:
        """The line of a place, or of what it is missing from."""
        node, line = self.root, 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                key, inner = next(((k, v) for k, v in node.value if k.value == part), (None, None))
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
                key = inner = node.value[part]
            else:
                break
            if key is None or inner is None:
                break
            node, line = inner, key.start_mark.line + 1
        return line

    def secrets(self) -> Iterator[tuple[str, Json]]:
        """Keys that have a secret, by id."""
        keys = self.document.get("keys")
        for key_id, key in (keys if isinstance(keys, dict) else {}).items():
            if isinstance(key, dict) and "secret" in key:
                yield key_id, key


def read(name: str) -> Json:
    """The document of a file, or of stdin for `-`, with keys replaced by their digests. Raises UsageError."""
    file = parsed(name)
    for key_id, key in file.secrets():
        key["secret"] = _digest(f"keys.{key_id}.secret", key["secret"], file.directory)
    return file.document


def parsed(name: str) -> FleetFile:
    """Raises UsageError."""
    root, document = _read(name)
    if root is None or not isinstance(document, dict):
        raise UsageError(f"{name} is not a fleet file: it must begin with `florin: 1`.")
    return FleetFile(document, root, Path() if name == "-" else Path(name).expanduser().parent)


def _read(name: str) -> tuple[yaml.Node | None, object]:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).expanduser().read_text("utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {name}: {error}.") from error
    try:
        root, document = _loaded(text)
        json.dumps(document, allow_nan=False)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{name} is not valid: {_sentence(error)}") from error
    return root, document


def read_card(name: str) -> Json:
    """A rate card from a YAML or JSON file, or from stdin for `-`: one object of a fleet file's `rate_cards`.
    Raises UsageError."""
    card = as_text(_read(name)[1])
    if not isinstance(card, dict):
        raise UsageError(f"{name} is not a rate card: it must have its fields, such as input_per_million.")
    return card


def placeholder(path: str, secret: object) -> str:
    """A digest in the place of that of a key which is not there to be read. Raises UsageError unless `secret`
    is written as it must be."""
    if isinstance(secret, str) and _SECRET.fullmatch(secret):
        return secret
    return f"sha256:{hashlib.sha256(':'.join(_reference(path, secret)).encode()).hexdigest()}"


class _Loader(yaml.SafeLoader):
    """A strict subset of YAML: no duplicate keys, no aliases, and no surprising conversions. Mapping keys are
    always text."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's attribute

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.get_mark()
            raise yaml.constructor.ConstructorError(None, None, "aliases (*) are not allowed", mark)
        return super().compose_node(parent, index)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002 - PyYAML's signature
        if node.tag not in _TAGS:
            raise yaml.constructor.ConstructorError(
                None, None, f"the tag {node.tag[:80]!r} is not allowed", node.start_mark
            )
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        del deep
        mapping: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a mapping key must be text", key.start_mark
                )
            if key.value in mapping:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key.value[:80]!r}", key.start_mark
                )
            mapping[key.value] = self.construct_object(value, deep=True)
        return mapping


for _tag, _pattern, _first in (
    ("null", r"~|null|", ["~", "n", ""]),
    ("bool", r"true|false", list("tf")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+0123456789.")),
):
    for _either in (_Loader, _Dumper):  # quotes text that would be read as a number
        _either.add_implicit_resolver(f"{_CORE}{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def load(text: str) -> object:
    return _loaded(text)[1]


def _loaded(text: str) -> tuple[yaml.Node | None, object]:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, None
        for node in _under(root, "prices"):
            node.tag = f"{_CORE}str"  # keeps 2.50 from becoming 2.5
        return root, loader.construct_document(root)
    finally:
        loader.dispose()


def _under(root: yaml.Node, section: str) -> Iterator[yaml.ScalarNode]:
    """The number nodes in a section."""
    nodes = [v for k, v in root.value if k.value == section] if isinstance(root, yaml.MappingNode) else []
    while nodes:
        node = nodes.pop()
        if isinstance(node, yaml.MappingNode):
            nodes += [v for _, v in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.ScalarNode) and node.tag.endswith((":int", ":float")):
            yield node


def _digest(path: str, secret: object, where: Path) -> str:
    """The digest to send for a secret. Errors never show a value that may be the secret itself."""
    if isinstance(secret, str) and _SECRET.fullmatch(secret):
        return secret
    kind, name = _reference(path, secret)
    if kind == "env":
        variable = os.environ.get(name)
        if variable is None:
            raise UsageError(f"{path}: the environment variable {name} is not set.")
        text = variable
    else:
        try:
            text = (where / Path(name).expanduser()).read_text("ascii")
        except (OSError, ValueError) as error:
            raise UsageError(f"{path}: cannot read a key from {name}: {_reason(error)}.") from error
    text = text.strip()
    if len(text) not in _KEY_LENGTH or not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(
            f"{path}: not a key; a key has {_KEY_LENGTH.start} to {_KEY_LENGTH.stop - 1} printable ASCII "
            "characters on one line."
        )
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _reference(path: str, secret: object) -> tuple[str, str]:
    """`env` and a variable's name, or `file` and a path. Raises UsageError."""
    match secret:
        case {"env": str(name), **rest} if not rest:
            return "env", name
        case {"file": str(name), **rest} if not rest:
            return "file", name
    raise UsageError(
        f"{path} must be `sha256:…` as florin export writes it, or {{env: NAME}} or {{file: PATH}}. "
        "The key itself does not belong in the file."
    )


def _reason(error: Exception) -> str:
    return error.strerror or "it cannot be opened" if isinstance(error, OSError) else "it is not ASCII"


def _sentence(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply."
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"{error.problem}, in line {mark.line + 1}, column {mark.column + 1}."
    return f"{error}."
