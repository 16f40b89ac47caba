"""Forms made from the fields of an API body, and the body that a form that was sent asks for. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from gateway.console.api_client import ApiError
from gateway.schemas.options import OptionField, options_of
from gateway.schemas.typed_text import NONE, duration, labels, parsed, words, written

_INPUTS: Final = {"switch": "checkbox", "labels": "textarea", "list": "textarea", "count": "text"}
_SEPARATED: Final = {
    "list": " Separated by blanks.",
    "words": " Separated by blanks.",
    "labels": " One on each line.",
}
_YES, _NO = "yes", "no"


@dataclass(frozen=True, slots=True)
class FormField:
    """Arguments of the template's macro `ui.field`."""

    name: str
    label: str
    value: Any
    kind: str
    help: str
    options: list[tuple[str, str]] | None
    required: bool
    placeholder: str
    changed: bool
    """It is not as it is by default."""
    attrs: dict[str, str] = field(default_factory=dict)


def fields_of(body: type[BaseModel], *names: str, section: str = "", values: Any = None) -> list[FormField]:
    """Fields for those that carry an `Option`, or for those named, in that order. `values`: an object that
    has them, to be changed; None: a new one."""
    known = {option.path[-1]: option for option in options_of(body, *filter(None, [section]))}
    return [_field(known[name], values) for name in names or known]


def body_of(
    body: type[BaseModel], text: Callable[[str], str], *names: str, section: str = ""
) -> dict[str, Any]:
    """What the form says of these fields; `text`: of a field of the form. An empty one has its default.
    Raises ApiError."""
    values: dict[str, Any] = {}
    for option in options_of(body, *filter(None, [section])):
        *sections, name = option.path
        if names and name not in names:
            continue
        part = values
        for within in sections:
            part = part.setdefault(within, {})
        try:
            part[name] = _parsed(option, text(".".join(option.path)).strip())
        except ValueError as error:
            raise ApiError(400, "invalid_value", f"{option.label}: {error}.", name) from error
    return values


def _parsed(option: OptionField, typed: str) -> Any:
    """Raises ValueError."""
    match option.kind:
        case "switch" if option.option.unset:
            return {_YES: True, _NO: False}.get(typed)
        case "switch":
            return bool(typed)
        case "labels":
            return labels(line.strip() for line in typed.splitlines() if line.strip())
        case "list" | "words":
            entries = words(typed)
            if option.option.clears and entries == [NONE]:
                return []
            return entries or (None if option.default is None else list(option.default))
        case _:
            return parsed(option.kind, typed) if typed else option.default


def _field(option: OptionField, values: Any) -> FormField:
    value = option.default if values is None else functools.reduce(getattr, option.path, values)
    info, choices = option.info, _choices(option)
    return FormField(
        name=".".join(option.path),
        label=option.label,
        value=shown(option, value),
        kind="text" if choices else _INPUTS.get(option.kind, "text"),
        help=f"{_help(option)}{_SEPARATED.get(option.kind, '')}",
        options=choices,
        required=(option.required and not option.option.unset) or option.kind == "choice",
        placeholder=option.option.unset or next(iter(_lines((info.examples or [""])[0])), ""),
        changed=value != option.default,
        attrs={"inputmode": "numeric"} if option.kind == "count" else {},
    )


def shown(option: OptionField, value: Any) -> Any:
    """As people type it: `10 GB` where that is exact."""
    if option.kind == "switch":
        return {None: "", True: _YES, False: _NO}[value] if option.option.unset else value
    if value is None:
        return ""
    if option.kind == "size":
        return written("size", value)
    if option.kind == "duration":
        return duration(value)
    if option.kind == "number":
        return f"{value:g}"
    empty = NONE if option.kind == "list" and option.default is None else ""
    return "\n".join(_lines(value)) or empty


def _help(option: OptionField) -> str:
    return (option.info.description or "") if option.switches_off else option.help


def _choices(option: OptionField) -> list[tuple[str, str]] | None:
    """What a select offers, as (value, label)."""
    if option.kind == "choice":
        return list(option.values.items())
    if option.kind == "switch" and (unset := option.option.unset):
        return [("", unset.capitalize()), *((value, option.option.choices[value]) for value in (_YES, _NO))]
    return None


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{name}={text}" for name, text in sorted(value.items()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from map(str, value)
    else:
        yield str(value)
