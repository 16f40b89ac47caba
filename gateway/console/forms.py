"""Forms made from the fields of an API body, and the body that a form that was sent asks for. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import BaseModel

from gateway.console.api_client import ApiError
from gateway.schemas.options import OptionField, options_of
from gateway.schemas.typed_text import duration, labels, parsed, words

_INPUTS: Final = {"switch": "checkbox", "labels": "textarea", "list": "textarea", "count": "text"}
_POWERS: Final = ((4, "TB"), (3, "GB"), (2, "MB"))


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
    attrs: dict[str, str] = field(default_factory=dict)


def fields_of(body: type[BaseModel], *names: str, section: str = "", values: Any = None) -> list[FormField]:
    """Of those that carry an `Option`, or of those named, in that order. `values`: an object that has them,
    to be changed; None: a new one."""
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
        case "switch":
            return bool(typed)
        case "labels":
            return labels(line.strip() for line in typed.splitlines() if line.strip())
        case "list" | "words":
            return words(typed) or list(option.default)
        case _:
            return parsed(option.kind, typed) if typed else option.default


def _field(option: OptionField, values: Any) -> FormField:
    value = option.default if values is None else functools.reduce(getattr, option.path, values)
    info = option.info
    return FormField(
        name=".".join(option.path),
        label=option.label,
        value=shown(option, value),
        kind=_INPUTS.get(option.kind, "text"),
        help=(info.description or "") if option.switches_off else option.help,
        options=list(option.values.items()) if option.kind == "choice" else None,
        required=option.required or option.kind == "choice",
        placeholder=next(iter(_lines(info.examples[0])), "") if info.examples else "",
        attrs={"inputmode": "numeric"} if option.kind == "count" else {},
    )


def shown(option: OptionField, value: Any) -> Any:
    """As people type it: `10 GB` where that is exact."""
    if value is None:
        return ""
    if option.kind == "size":
        powers = (f"{value // 1000**p} {unit}" for p, unit in _POWERS if value and value % 1000**p == 0)
        return next(powers, str(value))
    if option.kind == "switch":
        return value
    if option.kind == "duration":
        return duration(value)
    if option.kind == "number":
        return f"{value:g}"
    return "\n".join(_lines(value))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{name}={text}" for name, text in sorted(value.items()))
    elif isinstance(value, Iterable) and not isinstance(value, str):
        yield from map(str, value)
    else:
        yield str(value)
