"""The list of models in that API's shape. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qs

from gateway.errors import FlorinError

Headers = list[tuple[bytes, bytes]]

_ASKING: Final = frozenset({b"anthropic-version", b"x-api-key"})
DEFAULT_LIMIT: Final = 20
MAX_LIMIT: Final = 1000


def asks(headers: Headers) -> bool:
    """Whether a request for models comes from a client of that API."""
    return any(name in _ASKING for name, _ in headers)


def card(model: dict[str, Any]) -> dict[str, Any]:
    """That API's object for OpenAI's. A prompt and its answer share the context, so that each may fill it."""
    context = model["max_model_len"]
    created = datetime.fromtimestamp(model["created"], UTC).isoformat().replace("+00:00", "Z")
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created,
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def page(cards: Sequence[dict[str, Any]], query: bytes) -> dict[str, Any]:
    """A page of the list. `cards`: OpenAI's objects. Raises FlorinError."""
    parameters = {name: values[-1] for name, values in parse_qs(query.decode("ascii", "replace")).items()}
    limit = parameters.get("limit", str(DEFAULT_LIMIT))
    if not (limit.isascii() and limit.isdigit() and 0 < len(limit) < 5 and 1 <= int(limit) <= MAX_LIMIT):
        raise _wrong("limit", f"be an integer from 1 to {MAX_LIMIT}")
    if "after_id" in parameters:
        start = _position(cards, parameters, "after_id") + 1
        end = start + int(limit)
        more = end < len(cards)
    elif "before_id" in parameters:
        end = _position(cards, parameters, "before_id")
        start = max(0, end - int(limit))
        more = start > 0
    else:
        start, end = 0, int(limit)
        more = end < len(cards)
    data = [card(model) for model in cards[start:end]]
    return {
        "data": data,
        "has_more": more,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
    }


def _position(cards: Sequence[dict[str, Any]], parameters: dict[str, str], name: str) -> int:
    for number, model in enumerate(cards):
        if model["id"] == parameters[name]:
            return number
    raise _wrong(name, "be the id of a model in the list")


def _wrong(name: str, must: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` must {must}.", param=name)
