"""Renders exceptions of the admin and finance API as OpenAI error objects: one handler per exception tree."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from adapters.errors import AdaptersError
from gateway.api.responses import ClientStalledError
from gateway.api.unknown_paths import nothing_at
from gateway.errors import FlorinError, for_tenant
from gateway.metering.ledger.database import LedgerUnavailableError
from gateway.operations.authorization import worded
from gateway.operations.unknown_fields import unknown_field

log = logging.getLogger(__name__)


def install(app: FastAPI) -> None:
    app.add_exception_handler(FlorinError, _florin)
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
    where = ".".join(str(part) for part in first["loc"] if part != "body") or None
    if first["type"] == "json_invalid":
        return _render(FlorinError("invalid_json", "The body is not valid JSON."))
    what = first["msg"].removeprefix("Value error, ").rstrip(".")
    body = getattr(request.scope.get("route"), "body_field", None)
    if first["type"] == "extra_forbidden" and body is not None:
        unknown = unknown_field(TypeAdapter(body.field_info.annotation).json_schema(), first["loc"][1:])
        what = f"{unknown}{'' if unknown.meant else '.'} Fields here: {', '.join(unknown.allowed)}"
    return _render(FlorinError("invalid_value", f"{where or 'The body'}: {what}.", param=where))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_value")
    message = str(error.detail)
    if error.status_code == 404:
        message = nothing_at(request.url.path)
    return _render(FlorinError(code, message, status=error.status_code))


async def _gone(_: Request, __: Exception) -> Response:
    """The client disconnected while sending its body: not an error, and the response is not received."""
    return Response(status_code=400)


async def _defect(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientStalledError):
        log.info("%s %s: client does not read the response", request.method, request.url.path)
    else:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return _render(FlorinError("internal_error", "Internal error in Florin; see the gateway's log."))
