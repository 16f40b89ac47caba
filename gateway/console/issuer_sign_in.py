"""Sign-in with the OpenID Connect issuer: the browser goes there, and comes back with a code.

What ties its return to its going (state, nonce, PKCE's verifier) waits in a cookie of that browser, so that
any worker can finish what another began, and nobody can finish it in another browser.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

import orjson
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from gateway.console.api_client import ApiError
from gateway.errors import CODES, FlorinError

if TYPE_CHECKING:
    from gateway.tenants.directory import Key
    from gateway.tenants.people.verification import People

PATH: Final = "/console/sign-in/oidc"
CALLBACK: Final = f"{PATH}/callback"
COOKIE: Final = "florin_sign_in"
_LONGEST: Final = 1000
"""Characters of the path to go on to."""


async def leave(people: People, request: Request, then: str, *, secure: bool) -> Response:
    """Send the browser to the issuer. `then`: where to go on afterwards. Raises ApiError."""
    from gateway.tenants.people import sign_in  # noqa: PLC0415  # it imports cryptography

    try:
        url, begun = await sign_in.begin(people, _callback(request, secure=secure))
    except FlorinError as error:
        raise _failed(error) from error
    kept = [begun.state, begun.nonce, begun.verifier, then[:_LONGEST]]
    response = RedirectResponse(url, 303)
    response.set_cookie(
        COOKIE,
        base64.urlsafe_b64encode(orjson.dumps(kept)).decode(),
        max_age=sign_in.SECONDS,
        path=PATH,
        httponly=True,
        samesite="lax",  # the way back is a link on the issuer's page
        secure=secure,
    )
    return response


async def come_back(people: People, request: Request, *, secure: bool) -> tuple[Key, str]:
    """Who has come back from the issuer, and where to go on. Raises ApiError."""
    from gateway.tenants.people import pkce, sign_in  # noqa: PLC0415  # likewise

    try:
        state, nonce, verifier, then = orjson.loads(base64.urlsafe_b64decode(request.cookies.get(COOKIE, "")))
        begun = pkce.Request(str(state), str(nonce), str(verifier))
    except (ValueError, TypeError) as error:
        text = "This browser has begun no sign-in, or too long ago. Begin again."
        raise ApiError(401, "invalid_token", text) from error
    answer = dict(request.query_params)
    try:
        key = await sign_in.finish(people, begun, answer, _callback(request, secure=secure))
    except FlorinError as error:
        raise _failed(error) from error
    return key, str(then)


def _callback(request: Request, *, secure: bool) -> str:
    """The URL to come back to. The issuer only sends browsers to those registered with it."""
    return f"{'https' if secure else 'http'}://{request.url.netloc}{CALLBACK}"


def _failed(error: FlorinError) -> ApiError:
    return ApiError(CODES[error.code].status, error.code, str(error))
