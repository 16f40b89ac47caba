"""Options made from the fields of an API body: `--requests-per-minute 600`, `--max-bytes 10GB`.

`with_options` gives a command an option for each field that carries an `Option`, and calls it with `changes`:
the part of the body that was asked for. The gateway validates it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel

from gateway.commands.client import Json, UsageError
from gateway.schemas.options import OptionField, options_of
from gateway.schemas.typed_text import NONE, duration, labels, parsed

_METAVARS = {
    "count": "N",
    "number": "N",
    "size": "SIZE",
    "money": "AMOUNT",
    "decimal": "DECIMAL",
    "duration": "TIME",
    "labels": "LABEL=VALUE",
}


def with_options(
    body: type[BaseModel],
    *sections: str,
    only: Sequence[str] = (),
    but: Sequence[str] = (),
    changes_only: bool = False,
    all_optional: bool = False,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`sections`: only these parts of `body`. `only`: these fields. `but`: fields that the command asks for
    in its own way. `changes_only`: what is left out stays, so no default is shown. What the API requires, the
    command requires; `all_optional`: a file may have it instead."""
    fields = [field for section in sections or ("",) for field in options_of(body, *filter(None, [section]))]
    fields = [
        field
        for field in fields
        if field.path[-1] in (only or (field.path[-1],)) and field.path[-1] not in but
    ]

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            changes: Json = {}
            for field in fields:
                typed = kwargs.pop(field.name)
                if typed is not None:
                    put(changes, field, typed)
            function(*args, changes=changes, **kwargs)

        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "changes"]
        required = {field.name for field in fields if field.required and not all_optional}
        options = (_parameter(f, defaults=not changes_only, required=f.name in required) for f in fields)
        parameters = [*own, *options]
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # inspect's protocol
        return run

    return register


def put(body: Json, field: OptionField, typed: Any) -> None:
    """Set the field to what was typed. Raises UsageError."""
    *sections, name = field.path
    for section in sections:
        body = body.setdefault(section, {})
    try:
        body[name] = _value(field, typed)
    except ValueError as error:
        advice = ", or `none`" if field.option.clears else ""
        raise UsageError(f"{field.flag.partition('/')[0]}: {error}{advice}.") from error


def absolute(source: str, flag: str = "--source") -> str:
    """The absolute path, or a URI unchanged. Raises UsageError if empty."""
    if not source:
        raise UsageError(f"{flag} is empty: name the directory with the adapter's files.")
    if "://" in source:
        return source
    try:
        return str(Path(source).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{flag}: {source!r} is not a usable path ({error}).") from error


def _value(field: OptionField, typed: Any) -> Any:
    """Raises ValueError, UsageError."""
    match field.kind:
        case "switch":
            return not typed if field.switches_off else typed
        case "labels":
            return labels(typed)
        case "list":
            return _emptied(typed) if field.option.clears else list(typed)
        case _ if field.option.clears and typed == NONE:
            return None
        case "path":
            return absolute(typed, field.flag)
        case _:
            return parsed(field.kind, typed) if isinstance(typed, str) else typed


def _emptied(values: Iterable[str]) -> list[str]:
    """Raises ValueError."""
    given = list(values)
    if NONE in given and len(given) > 1:
        raise ValueError("`none` stands alone")
    return [] if given == [NONE] else given


def _parameter(field: OptionField, *, defaults: bool, required: bool) -> inspect.Parameter:
    # A count that `none` may clear, or that may be written as 100k, is text until it is parsed.
    kind: Any = str
    settings: dict[str, Any] = {"metavar": field.option.metavar or _METAVARS.get(field.kind)}
    if field.kind == "switch":
        kind, settings = bool, {}
    elif field.kind == "list":
        kind = list[int] if field.lists_numbers else list[str]
    elif field.kind == "labels":
        kind = list[str]
    elif field.kind == "choice":
        kind, settings = field.type, {}
    elif field.kind == "count" and field.least is not None and not field.option.clears:
        kind, settings = int, {"min": field.least, "max": field.most}
    elif field.kind == "number" and field.least is not None and not field.option.clears:
        kind, settings = float, {"min": field.least, "max": field.most}
    words = field.help
    if field.kind in {"list", "labels"}:
        words += " Repeatable; replaces all; `none` empties it." if field.option.clears else " Repeatable."
    if defaults and not field.required and (field.default or field.default == 0) and field.kind != "switch":
        shown = ", ".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        if field.kind == "duration":
            shown = duration(field.default)
        words += f" Default: {shown}."
    option = typer.Option(field.flag, help=words, show_default=False, **settings)
    default = inspect.Parameter.empty if required else None
    annotation = Annotated[kind if required else kind | None, option]  # type: ignore[valid-type]  # a type that varies
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )
