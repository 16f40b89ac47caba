"""The tables in which the catalog keeps documents of which there are many: as texts, parsed when read."""

from __future__ import annotations

from collections.abc import Iterator, KeysView, Mapping
from typing import Generic, TypeVar

import orjson

from adapters.model import D, Version, load

T = TypeVar("T")


class ParsedOnUse(Mapping[str, D], Generic[D]):
    """Documents that are parsed whenever they are read: of most, a worker needs nothing for hours, and the
    objects take more memory than the texts."""

    __slots__ = ("_kind", "texts")

    def __init__(self, kind: type[D], texts: Mapping[str, str]) -> None:
        self._kind: type[D] = kind
        self.texts = dict(texts)
        """Mutable: id → JSON."""

    def __getitem__(self, key: str) -> D:
        document: D = load(self._kind, self.texts[key])
        return document

    def __contains__(self, key: object) -> bool:
        return key in self.texts

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)

    def __len__(self) -> int:
        return len(self.texts)

    def keys(self) -> KeysView[str]:
        return self.texts.keys()

    def copy(self) -> ParsedOnUse[D]:
        return ParsedOnUse(self._kind, self.texts)

    def put(self, key: str, text: str | None) -> None:
        """Raises ValueError for a text that cannot be parsed."""
        if text is not None:
            load(self._kind, text)
        put_or_drop(self.texts, key, text)


class ByEngineName(Mapping[str, Version]):
    """Versions by their names on engines."""

    def __init__(self, versions: ParsedOnUse[Version]) -> None:
        self._versions = versions
        self.ids = {engine_name_of(text): id_ for id_, text in versions.texts.items()}
        """Mutable: the versions' ids."""

    def __getitem__(self, key: str) -> Version:
        return self._versions[self.ids[key]]

    def __contains__(self, key: object) -> bool:
        return key in self.ids

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)

    def keys(self) -> KeysView[str]:
        return self.ids.keys()


def engine_name_of(version: str) -> str:
    """The engine name in a version's JSON, in a fifth of the time of parsing it as a Version."""
    name: str = orjson.loads(version)["engine_name"]
    return name


def put_or_drop(table: dict[str, T], key: str, value: T | None) -> None:
    """Without a value, the key is dropped."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value
