"""Sign-ins on this machine: one file for each gateway in the user's configuration folder, readable by nobody
else. A token that expires is renewed when it is needed."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.security.secret_files import NotPrivateError, read_secret, write_private
from gateway.commands.client import Json, UnreachableError, UsageError
from gateway.tenants.people.commands.issuer_client import IssuerRefusalError, ask, discover, endpoint, payload

_EARLY = 60.0
"""Seconds before its end at which a token is renewed."""


@dataclass(frozen=True, slots=True)
class SignIn:
    gateway: str
    issuer: str
    client_id: str
    kind: str
    """Which of the issuer's tokens the gateway takes: `id_token` or `access_token`."""
    token: str
    expires: float
    """Unix seconds."""
    refresh_token: str = ""


def of_answer(
    answer: Json, *, gateway: str, issuer: str, client_id: str, kind: str, now: float, refresh_token: str = ""
) -> SignIn:
    """The sign-in that a token endpoint's answer makes. Raises IssuerRefusalError."""
    token = answer.get(kind)
    if not isinstance(token, str) or not token.isascii() or not token.isprintable():
        raise IssuerRefusalError("", f"The issuer sent no {kind.replace('_', ' ')}.")
    expires = payload(token).get("exp")
    if not isinstance(expires, int | float):
        seconds = answer.get("expires_in")
        expires = now + (seconds if isinstance(seconds, int | float) else 0)
    renewed = answer.get("refresh_token")
    refresh = renewed if isinstance(renewed, str) else refresh_token
    return SignIn(gateway, issuer, client_id, kind, token, float(expires), refresh)


def path_of(gateway: str) -> Path:
    base = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))  # noqa: PTH111  # never raises
    name = hashlib.sha256(gateway.rstrip("/").encode()).hexdigest()[:24]
    return base / "florin" / "sign-ins" / f"{name}.json"


def read(gateway: str) -> SignIn | None:
    """Raises UsageError for a file that others can read, or that is damaged."""
    path = path_of(gateway)
    try:
        sign_in = SignIn(**json.loads(read_secret(path)))
        if not isinstance(sign_in.expires, int | float) or not isinstance(sign_in.token, str):
            raise TypeError(path)
    except FileNotFoundError:
        return None
    except NotPrivateError as error:
        raise UsageError(f"{error}. Or sign in again: florin logout, florin login") from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: sign in again with `florin login`.") from error
    return sign_in if sign_in.gateway == gateway.rstrip("/") else None


def write(sign_in: SignIn) -> None:
    write_private(path_of(sign_in.gateway), json.dumps(asdict(sign_in)) + "\n")


def forget(gateway: str) -> None:
    path_of(gateway).unlink(missing_ok=True)


def token(gateway: str, clock: Callable[[], float] = time.time) -> str:
    """A token for this gateway, renewed if it is about to expire; empty if nobody has signed in. Raises
    UsageError, UnreachableError."""
    sign_in = read(gateway)
    if sign_in is None or sign_in.expires - _EARLY > clock():
        return sign_in.token if sign_in else ""
    with _locked(path_of(gateway)):  # issuers may take a refresh token only once
        sign_in = read(gateway)
        if sign_in is None or sign_in.expires - _EARLY > clock():
            return sign_in.token if sign_in else ""
        if not sign_in.refresh_token:
            if sign_in.expires > clock():
                return sign_in.token
            raise UsageError(f"Your sign-in at {gateway} has expired: sign in again with `florin login`.")
        try:
            renewed = _renewed(sign_in, clock())
        except UnreachableError:
            if sign_in.expires > clock():
                return sign_in.token
            raise
        except IssuerRefusalError as error:
            raise UsageError(f"{error} Sign in again with `florin login`.") from error
        write(renewed)
    return renewed.token


def _renewed(sign_in: SignIn, now: float) -> SignIn:
    form = {
        "grant_type": "refresh_token",
        "refresh_token": sign_in.refresh_token,
        "client_id": sign_in.client_id,
    }
    answer = ask(endpoint(discover(sign_in.issuer), "token_endpoint"), form)
    renewed = of_answer(
        answer,
        gateway=sign_in.gateway,
        issuer=sign_in.issuer,
        client_id=sign_in.client_id,
        kind=sign_in.kind,
        now=now,
        refresh_token=sign_in.refresh_token,
    )
    if renewed.expires <= now:
        raise IssuerRefusalError("", "The issuer renewed nothing: the new token has expired, too.")
    return renewed


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
