"""Answers of the API for tests, made from its own models: a field that changes there changes here."""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import EnumType
from types import NoneType, UnionType
from typing import Any, Literal, NewType, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter

from gateway.schemas.base import Json

_EMPTY: dict[Any, Any] = {
    str: "",
    int: 0,
    float: 0.0,
    bool: False,
    tuple: (),
    list: [],
    dict: {},
    object: None,
}


def sample(answer: type[BaseModel], **fields: Any) -> Json:
    """The JSON of an `answer` with these fields; the others are null, empty, zero, or the first of a choice."""
    values = {
        name: _least(info.annotation) for name, info in answer.model_fields.items() if info.is_required()
    }
    return answer.model_validate(values | fields).model_dump(mode="json", exclude_unset=True)


def _least(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _least(arguments[0])
    if origin in {Union, UnionType}:
        return None if NoneType in arguments else _least(arguments[0])
    if origin is Literal:
        return arguments[0]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return sample(annotation)
    if is_dataclass(annotation):
        return TypeAdapter(annotation).dump_python(annotation(), mode="json")
    if isinstance(annotation, EnumType):
        return next(iter(annotation))
    if isinstance(annotation, NewType):
        return _least(annotation.__supertype__)
    return _EMPTY[origin or annotation]
