"""What each route of the admin and finance API answers: stand-ins of a gateway may answer nothing else."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute, iter_route_contexts
from starlette.routing import compile_path

from gateway.app import Florin
from gateway.config import Settings
from gateway.schemas.base import Answer


@cache
def described() -> dict[str, Any]:
    """The API's description, as test_reference.py holds the page to be: to generate it takes a second."""
    page = Path(__file__).parents[2] / "docs" / "reference" / "openapi.json"
    description: dict[str, Any] = json.loads(page.read_text())
    return description


def check_answer(method: str, path: str, body: dict[str, Any]) -> None:
    """Raises AssertionError, ValidationError if the route's model does not allow it. `path`: with its query."""
    model = _model(method, path.partition("?")[0])
    if model is not None:
        aliases = {info.serialization_alias or info.alias for info in model.model_fields.values()}
        unknown = body.keys() - model.model_fields.keys() - aliases
        assert not unknown, f"{method} {path} answers a {model.__name__}, which has no {', '.join(unknown)}"
        model.model_validate(body)


def _model(method: str, path: str) -> type[Answer] | None:
    for methods, pattern, model in _models():
        if method in methods and pattern.match(path):
            return model
    return None


@cache
def _models() -> list[tuple[set[str], re.Pattern[str], type[Answer] | None]]:
    """In the order in which the gateway tries them."""
    models = []
    for context in iter_route_contexts(Florin(Settings.model_construct()).api.routes):
        route = context.original_route
        if isinstance(route, APIRoute):
            answer = route.response_model
            typed = isinstance(answer, type) and issubclass(answer, Answer)
            models.append(
                (context.methods or set(), compile_path(context.path)[0], answer if typed else None)
            )
    return models
