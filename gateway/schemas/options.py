"""How people fill in a field, on the command line and in the console's forms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import EnumType
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Kind = Literal[
    "text", "count", "number", "size", "money", "decimal", "duration", "switch", "choice", "list", "words",
    "labels", "path",
]  # fmt: skip
"""`count`: 600, 100k, 2M; `number`: with decimals; `size`: 10GB; `decimal`: exact, sent as text; `duration`:
30m, in seconds; `list`: given again for each; `words`: one text, comma-separated; `labels`: NAME=VALUE, given
again for each; `path`: of a file here, made absolute."""

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
    """What a form calls the values of a choice, where not as they are; of a switch that may be left open:
    `yes` and `no`."""
    unset: str = ""
    """What it means if the field is empty: `no limit`."""
    words: str = ""
    """How a value reads among others: `{} per month`; left out: the value and the label."""


@dataclass(frozen=True, slots=True)
class OptionField:
    """One field of a body that people fill in."""

    path: tuple[str, ...]
    """Where it belongs in the body: `("limits", "queued")`."""
    info: FieldInfo
    option: Option

    @property
    def name(self) -> str:
        """Name of the command's parameter."""
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
    def lists_numbers(self) -> bool:
        return _bare(get_args(self.type)[0]) is int

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def default(self) -> Any:
        return None if self.required else self.info.get_default(call_default_factory=True)

    @property
    def values(self) -> dict[str, str]:
        """The values of a choice → what a form calls them."""
        values = list(self.type) if isinstance(self.type, EnumType) else get_args(self.type)
        return {str(value): self.option.choices.get(value, str(value)) for value in values}

    def in_words(self, value: Any, text: str) -> str:
        """`text`: the value as text."""
        label = self.label[0].lower() + self.label[1:]
        if self.kind == "switch":
            return f"{'' if value else 'no '}{self.option.words or label}"
        return (self.option.words or f"{{}} {label}").format(text)

    @property
    def switches_off(self) -> bool:
        """Its flag switches off what is on."""
        return self.kind == "switch" and self.default is True and "/" not in self.flag

    @property
    def least(self) -> float | None:
        return next((_number(bound.ge) for bound in self._bounds if hasattr(bound, "ge")), None)

    @property
    def most(self) -> float | None:
        return next((_number(bound.le) for bound in self._bounds if hasattr(bound, "le")), None)

    @property
    def _bounds(self) -> list[Any]:
        return [*self.info.metadata, *_metadata(self.info.annotation)]


def _number(bound: Any) -> float:
    """A whole one as an integer."""
    return int(bound) if bound == int(bound) else float(bound)


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
    if isinstance(type_, EnumType):
        return "choice"
    return _BY_TYPE.get(get_origin(type_) or type_, "text")
