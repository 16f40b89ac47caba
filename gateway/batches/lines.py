"""Lines of the input, output and error files. Pure."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import orjson

from gateway.dialects.endpoints import ENDPOINTS

MOST_ID: Final = 512
"""Characters of a `custom_id`."""
METHOD: Final = "POST"
BATCHED: Final = tuple(path for path, endpoint in ENDPOINTS.items() if not endpoint.free)
"""Endpoints of batches: those on which engines work."""
NOT_RUN: Final = {
    "batch_expired": "This request could not be executed before the completion window expired.",
    "batch_cancelled": "This request was not executed because the batch was cancelled.",
    "batch_failed": "This request was not executed because the batch failed.",
}
"""Code → message of a line that was never answered."""


@dataclass(frozen=True, slots=True)
class Line:
    """One request of an input file."""

    number: int
    """From 1."""
    custom_id: str
    body: dict[str, Any]


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a line, or the file (line None), is refused."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None

    def document(self) -> dict[str, Any]:
        return {"code": self.code, "message": self.message, "line": self.line, "param": self.param}


class BadLineError(Exception):
    def __init__(self, error: LineError) -> None:
        super().__init__(error.message)
        self.error = error


class LineSplitter:
    """Splits a file that arrives in chunks into numbered lines. Blank lines are counted, and skipped."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of a line."""
        self._limit = limit
        # Mutable: what follows the last line break, and the number of the last line.
        self._rest = bytearray()
        self._number = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes]]:
        """The lines that end in this chunk. Raises BadLineError for one that is too long."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._rest += chunk[start:end]
            yield from self._take()
            start = end + 1
        self._rest += chunk[start:]
        self._check(self._number + 1)

    def end(self) -> Iterator[tuple[int, bytes]]:
        """The last line, if no line break ends it."""
        yield from self._take()

    def _take(self) -> Iterator[tuple[int, bytes]]:
        self._number += 1
        self._check(self._number)
        line = bytes(self._rest).strip()
        self._rest.clear()
        if self._number == 1:
            line = line.removeprefix(BOM_UTF8)  # with which Windows' tools begin a file
        if line:
            yield self._number, line

    def _check(self, number: int) -> None:
        if len(self._rest) > self._limit:
            message = f"The line is longer than {self._limit:,} bytes."
            raise BadLineError(LineError("line_too_long", message, number))


def read_line(number: int, raw: bytes, endpoint: str) -> Line:
    """Parse and check a line of a batch for `endpoint`. Raises BadLineError."""

    def bad(code: str, message: str, param: str | None = None) -> BadLineError:
        return BadLineError(LineError(code, message, number, param))

    try:
        request = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise bad("invalid_json_line", f"The line is not valid JSON in UTF-8: {error}.") from None
    if type(request) is not dict:
        raise bad("invalid_json_line", "The line must be a JSON object.")
    custom_id = request.get("custom_id")
    if type(custom_id) is not str or not 0 < len(custom_id) <= MOST_ID:
        raise bad(
            "invalid_custom_id", f"`custom_id` must be a text of 1 to {MOST_ID} characters.", "custom_id"
        )
    if request.get("method") != METHOD:
        raise bad("invalid_method", f"`method` must be {METHOD}.", "method")
    if request.get("url") != endpoint:
        raise bad("invalid_url", f"`url` must be the batch's endpoint, {endpoint}.", "url")
    body = request.get("body")
    if type(body) is not dict:
        raise bad("invalid_body", "`body` must be a JSON object.", "body")
    if type(body.get("model")) is not str or not body["model"]:
        raise bad("invalid_model", "`body.model` must be the name of an adapter.", "body.model")
    if body.get("stream"):
        raise bad("stream_not_supported", "`body.stream` is not supported in batches.", "body.stream")
    return Line(number, custom_id, body)


def answered(batch: str, line: Line, status: int, request_id: str, body: bytes) -> bytes:
    """The line of the output or error file for an answer, whose body is JSON."""
    return _rendered(
        batch, line, {"status_code": status, "request_id": request_id, "body": orjson.Fragment(body)}, None
    )


def not_run(batch: str, line: Line, code: str) -> bytes:
    """The line of the error file for a request that was never answered."""
    return _rendered(batch, line, None, {"code": code, "message": NOT_RUN[code]})


def _rendered(batch: str, line: Line, response: Any, error: Any) -> bytes:
    name = blake2b(f"{batch}/{line.number}".encode(), digest_size=12).hexdigest()
    document = {
        "id": f"batch_req_{name}",
        "custom_id": line.custom_id,
        "response": response,
        "error": error,
    }
    return orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)
