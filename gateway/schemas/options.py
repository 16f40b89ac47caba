"""How people fill in a field, on the command line and in the console's forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Kind = Literal[
    "text", "count", "number", "size", "money", "duration", "switch", "choice", "list", "words", "labels",
    "path",
]  # fmt: skip
"""`count`: 600, 100k, 2M; `number`: with decimals; `size`: 10GB; `duration`: 30m, in seconds; `list`: given
again for each; `words`: one text, comma-separated; `labels`: NAME=VALUE, given again for each; `path`: of a
file here, made absolute."""

_BY_TYPE: Final[dict[Any, Kind]] = {
    Literal: "choice",
    tuple: "list",
    dict: "labels",
    bool: "switch",
    int: "count",
    float: "number",
}


@dataclass(frozen=True, slots=True)
class Option:
    """Part of a field's annotation: `Annotated[int | None, Option("Requests per minute")]`."""

    label: str = ""
    """In a form; left out: the field's name in words."""
    flag: str = ""
    """On the command line; left out: `--` and the field's name. Of a switch that is on: switches it off."""
    help: str = ""
    """Left out: the field's description."""
    kind: Kind | None = None
    """Left out: by the field's type."""
    metavar: str = ""
    hidden: bool = False
    """Neither an option nor in a form."""
    clears: bool = False
    """`none` empties it: for fields whose absence leaves them as they are."""
    choices: dict[str, str] = field(default_factory=dict)
    """What a form calls the values of a choice, where not as they are."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """One field of a body that people fill in."""

    path: tuple[str, ...]
    """Where it belongs in the body: `("limits", "queued")`."""
    info: FieldInfo
    option: Option

    @property
    def name(self) -> str:
        """Of the command's parameter."""
        return "_".join(self.path)

    @property
    def label(self) -> str:
        return self.option.label or self.path[-1].replace("_", " ").capitalize()

    @property
    def flag(self) -> str:
        return self.option.flag or f"--{self.path[-1].replace('_', '-')}"

    @property
    def help(self) -> str:
        return self.option.help or self.info.description or ""

    @property
    def kind(self) -> Kind:
        return self.option.kind or _kind(self.type)

    @property
    def type(self) -> Any:
        """Without `Annotated` and `| None`."""
        return _bare(self.info.annotation)

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def default(self) -> Any:
        return None if self.required else self.info.get_default(call_default_factory=True)

    @property
    def values(self) -> dict[str, str]:
        """Of a choice: value → what a form calls it."""
        return {value: self.option.choices.get(value, value) for value in get_args(self.type)}

    @property
    def switches_off(self) -> bool:
        """Its flag switches off what is on."""
        return self.kind == "switch" and self.default is True and "/" not in self.flag

    @property
    def least(self) -> int | None:
        return next((int(str(bound.ge)) for bound in self._bounds if isinstance(bound, Ge)), None)

    @property
    def most(self) -> int | None:
        return next((int(str(bound.le)) for bound in self._bounds if isinstance(bound, Le)), None)

    @property
    def _bounds(self) -> list[Any]:
        return [*self.info.metadata, *_metadata(self.info.annotation)]


def options_of(body: type[BaseModel], *path: str) -> Iterator[OptionField]:
    """The fields of `body` that carry an `Option`, with those of the bodies within it, in the order of their
    definitions. `path`: only the section there."""
    for name, info in body.model_fields.items():
        option = next((item for item in info.metadata if isinstance(item, Option)), None)
        within = _bare(info.annotation)
        if option is not None:
            if not option.hidden and not path:
                yield OptionField((name,), info, option)
        elif isinstance(within, type) and issubclass(within, BaseModel) and path[:1] in {(), (name,)}:
            for inner in options_of(within, *path[1:]):
                yield OptionField((name, *inner.path), inner.info, inner.option)


def _bare(annotation: Any) -> Any:
    """The type within `Annotated[…]` and `… | None`."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) in {Union, UnionType}:
            annotation = next(item for item in get_args(annotation) if item is not type(None))
        else:
            return annotation


def _metadata(annotation: Any) -> Iterator[Any]:
    for argument in (annotation, *get_args(annotation)):
        for item in getattr(argument, "__metadata__", ()):
            yield from getattr(item, "metadata", ()) if isinstance(item, FieldInfo) else (item,)


def _kind(type_: Any) -> Kind:
    return _BY_TYPE.get(get_origin(type_) or type_, "text")
