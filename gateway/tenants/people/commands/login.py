"""florin login, florin logout."""

from __future__ import annotations

import contextlib
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Final

import typer

from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError
from gateway.commands.output import clean, note, say, when
from gateway.commands.session import Session, command
from gateway.tenants.people.commands import sign_ins
from gateway.tenants.people.commands.issuer_client import IssuerRefusalError, ask, discover, endpoint, payload
from gateway.tenants.people.pkce import Request, scopes_for
from gateway.tenants.people.schemas import Issuer, Me, SignInOffer

app = typer.Typer()

_WAIT_SECONDS: Final = 300.0
_DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"


@command(app, "login")
def login(
    session: Session,
    *,
    device: Annotated[
        bool, typer.Option("--device", help="Sign in with a browser on another machine, by a short code.")
    ] = False,
    browser: Annotated[bool, typer.Option(help="Open a browser; otherwise, only print the URL.")] = True,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port for the browser's return; 0 picks a free one.")
    ] = 0,
) -> None:
    """Sign in as yourself, with the gateway's OpenID Connect issuer. Other commands then need no key.

    Example: florin login --gateway https://florin.example.com
    """
    gateway = session.gateway.rstrip("/")
    offer = Api.to(gateway, "none").get("/admin/v1/sign-in", SignInOffer).oidc
    if offer is None:
        raise UsageError(f"The gateway at {gateway} has no issuer to sign in with: use a key.")
    with _refusals():
        document = discover(offer.issuer)
        answer = (
            _with_device(offer, document) if device else _with_browser(offer, document, port, browser=browser)
        )
        sign_in = sign_ins.of_answer(
            answer,
            gateway=gateway,
            issuer=offer.issuer,
            client_id=offer.client_id,
            kind=offer.token,
            now=time.time(),
        )
    me = Api.to(gateway, sign_in.token).get("/admin/v1/me", Me)
    sign_ins.write(sign_in)
    session.result(me, partial(_signed_in, renewed=bool(sign_in.refresh_token)))
    if session.operator_key or session.key_file:
        note("A key is set (FLORIN_KEY or FLORIN_OPERATOR_KEY): commands use it, and not this sign-in.")


@command(app, "logout")
def logout(session: Session) -> None:
    """End the sign-in at this gateway: revoke its refresh token, and forget it.

    Example: florin logout
    """
    gateway = session.gateway.rstrip("/")
    sign_in, revoked = None, False
    with contextlib.suppress(UsageError):  # what cannot be read is removed all the same
        sign_in = sign_ins.read(gateway)
    sign_ins.forget(gateway)
    if sign_in is not None and sign_in.refresh_token:
        with contextlib.suppress(IssuerRefusalError, UnreachableError, UsageError):
            where = endpoint(discover(sign_in.issuer), "revocation_endpoint")
            ask(where, {"token": sign_in.refresh_token, "client_id": sign_in.client_id})
            revoked = True
    signed_out = sign_in is not None
    result = {"gateway": gateway, "signed_out": signed_out, "revoked": revoked}
    session.result(result, lambda _: _signed_out(gateway, signed_out=signed_out, revoked=revoked))


def _signed_in(me: Me, *, renewed: bool) -> None:
    owner = f" of {me.tenant}" if me.tenant else ""
    say(f"Signed in as {clean(me.label or me.id)} ({clean(me.id)}), role {me.role}{owner}.")
    after = "; commands renew it" if renewed else ", and cannot be renewed: the issuer sent no refresh token"
    say(f"This token is valid until {when(me.expires)}{after}.")


def _signed_out(gateway: str, *, signed_out: bool, revoked: bool) -> None:
    say("Signed out." if signed_out else f"Not signed in at {gateway}.")
    if signed_out and not revoked:
        note("The issuer has not revoked anything: its session in your browser may continue.")


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except IssuerRefusalError as error:
        raise ApiError(0, str(error), error.code) from error


def _with_browser(offer: Issuer, document: Json, port: int, *, browser: bool) -> Json:
    """The token endpoint's answer to a code. Raises IssuerRefusalError, UnreachableError, UsageError."""
    from gateway.tenants.people.commands.callback_server import listening  # with a web server

    request = Request.new()
    with listening(port) as callback:
        callback.state = request.state
        url = request.url(
            endpoint(document, "authorization_endpoint"),
            client_id=offer.client_id,
            redirect=callback.url,
            scopes=_scopes(offer, document),
            audience=offer.audience,
            prompt=offer.prompt,
        )
        note(f"{'If no browser opens, go to' if browser else 'Go to'} {url}")
        if browser:  # in a thread: a browser in the terminal runs until it has come back to us
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        code = callback.wait(offer.issuer, _WAIT_SECONDS)
        redirect = callback.url
    answer = ask(
        endpoint(document, "token_endpoint"),
        {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "client_id": offer.client_id,
            "code_verifier": request.verifier,
        },
    )
    if payload(str(answer.get("id_token"))).get("nonce") != request.nonce:
        raise IssuerRefusalError("", "The issuer's token was not made for this sign-in.")
    return answer


def _with_device(offer: Issuer, document: Json, sleep: Callable[[float], None] = time.sleep) -> Json:
    """The token endpoint's answer once somebody has entered the code (RFC 8628). Raises IssuerRefusalError,
    UnreachableError, UsageError."""
    form = {"client_id": offer.client_id, "scope": " ".join(_scopes(offer, document))}
    if offer.audience:
        form["audience"] = offer.audience
    begun = ask(endpoint(document, "device_authorization_endpoint"), form)
    where = begun.get("verification_uri_complete") or begun.get("verification_uri")
    note(f"Go to {clean(where)} and enter the code {clean(begun.get('user_code'))}")
    poll = {
        "grant_type": _DEVICE_GRANT,
        "device_code": str(begun.get("device_code")),
        "client_id": offer.client_id,
    }
    interval = max(1.0, _number(begun.get("interval"), 5.0))
    until = time.monotonic() + min(_number(begun.get("expires_in"), _WAIT_SECONDS), 1800.0)
    while time.monotonic() < until:
        try:
            return ask(endpoint(document, "token_endpoint"), poll)
        except IssuerRefusalError as refusal:
            if refusal.code == "slow_down":
                interval += 5
            elif refusal.code != "authorization_pending":
                raise
        sleep(interval)
    raise UsageError("The code was not entered in time.")


def _number(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else default


def _scopes(offer: Issuer, document: Json) -> list[str]:
    return scopes_for(offer.scopes, document.get("scopes_supported") or ())
