"""What an API sends besides answers: errors, headers of its own, and keep-alives of streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gateway.errors import FlorinError

Headers = list[tuple[bytes, bytes]]


def _openai_error(error: FlorinError, request_id: str) -> bytes:  # noqa: ARG001  # other dialects name it
    return error.body()


@dataclass(frozen=True, slots=True)
class Dialect:
    """OpenAI's by default."""

    error_body: Callable[[FlorinError, str], bytes] = _openai_error
    """An error response's body, for an error and the request's id."""
    statuses: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Statuses of error codes, where they differ from those in `gateway.errors`."""
    headers: Callable[[Headers], Headers] | None = None
    """More response headers, for Florin's own; None: there are none."""
    keep_alive: bytes = b": keep-alive\n\n"
    """What a stream sends when it has nothing to send; clients ignore it."""

    def status(self, error: FlorinError) -> int:
        return self.statuses.get(error.code, error.status)


OPENAI = Dialect()
