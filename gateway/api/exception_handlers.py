"""Renders exceptions of the admin and finance API as OpenAI error objects: one handler per exception tree."""

from __future__ import annotations

import logging
from typing import Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from adapters.errors import AdaptersError
from gateway.api.responses import ClientStalledError
from gateway.api.unknown_paths import nothing_at
from gateway.costs.field_error import FieldError
from gateway.errors import FlorinError, for_tenant, method_not_allowed
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations.authorization import worded
from gateway.operations.unknown_fields import unknown_field

log = logging.getLogger(__name__)

_METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


def install(app: FastAPI) -> None:
    app.add_exception_handler(FlorinError, _florin)
    app.add_exception_handler(FieldError, _field)
    app.add_exception_handler(AdaptersError, _adapters)
    app.add_exception_handler(LedgerUnavailableError, _ledger)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(Exception, _defect)


def _render(error: FlorinError) -> Response:
    return Response(error.body(), error.status, error.headers, "application/json")


async def _florin(_: Request, error: Exception) -> Response:
    assert isinstance(error, FlorinError)
    return _render(error)


async def _field(request: Request, error: Exception) -> Response:
    """Logged, since it may be about stored data."""
    assert isinstance(error, FieldError)
    log.info("%s %s: %s", request.method, request.url.path, error.message)
    return _render(FlorinError("invalid_value", error.message, param=error.param))


async def _adapters(request: Request, error: Exception) -> Response:
    assert isinstance(error, AdaptersError)
    if request.url.path.startswith("/admin/"):
        return _render(worded(error, getattr(request.state, "authority", None)))
    log.info("%s %s: %s", request.method, request.url.path, error)
    return _render(for_tenant(error))


async def _ledger(_: Request, error: Exception) -> Response:
    return _render(FlorinError("ledger_unavailable", str(error), retry_after=1))


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"][1:])) or None  # the first is path, query or body
    if first["type"] == "json_invalid":
        return _render(FlorinError("invalid_json", "The body is not valid JSON."))
    if where is None and not isinstance(first["input"], dict):
        return _render(_no_object(first["input"]))
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    body = getattr(request.scope.get("route"), "body_field", None)
    if first["type"] == "extra_forbidden" and body is not None:
        unknown = unknown_field(TypeAdapter(body.field_info.annotation).json_schema(), first["loc"][1:])
        what = unknown.sentence("field").rstrip(".")
    return _render(FlorinError("invalid_value", f"{where or 'The body'}: {what}.", param=where))


def _no_object(body: object) -> FlorinError:
    if isinstance(body, bytes):  # it was not parsed
        message = "Send the body with the header `content-type: application/json`."
        return FlorinError("invalid_value", message, param="content-type", status=415)
    return FlorinError("invalid_json", "The body must be a JSON object.")


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    if error.status_code == 404:
        return _render(FlorinError("not_found", nothing_at(path)))
    if error.status_code == 405:
        return _render(method_not_allowed(path, *_methods(request)))
    return _render(FlorinError("invalid_value", str(error.detail), status=error.status_code))


def _methods(request: Request) -> list[str]:
    """Those that the path supports. FastAPI does not say them, since each has a route of its own."""

    def supported(method: str) -> bool:
        scope = {**request.scope, "method": "GET" if method == "HEAD" else method}  # see `gate`
        return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)

    return [method for method in _METHODS if supported(method)]


async def _gone(_: Request, __: Exception) -> Response:
    """The client disconnected while sending its body: not an error, and the response is not received."""
    return Response(status_code=400)


async def _defect(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientStalledError):
        log.info("%s %s: client does not read the response", request.method, request.url.path)
    else:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _render(FlorinError("internal_error", "Internal error in Florin; see the gateway's log."))
