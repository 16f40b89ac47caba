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
from gateway.commands.issuer_client import IssuerRefusalError, ask, discover, endpoint, payload

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
        found = SignIn(**json.loads(read_secret(path)))
        if not isinstance(found.expires, int | float) or not isinstance(found.token, str):
            raise TypeError(path)
    except FileNotFoundError:
        return None
    except NotPrivateError as error:
        raise UsageError(f"{error}. Or sign in again: florin logout, florin login") from error
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path} cannot be read: sign in again with `florin login`.") from error
    return found if found.gateway == gateway.rstrip("/") else None


def write(sign_in: SignIn) -> None:
    write_private(path_of(sign_in.gateway), json.dumps(asdict(sign_in)) + "\n")


def forget(gateway: str) -> None:
    path_of(gateway).unlink(missing_ok=True)


def token(gateway: str, clock: Callable[[], float] = time.time) -> str:
    """A token for this gateway, renewed if it is about to expire; empty if nobody has signed in. Raises
    UsageError, UnreachableError."""
    found = read(gateway)
    if found is None or found.expires - _EARLY > clock():
        return found.token if found else ""
    with _locked(path_of(gateway)):  # issuers may take a refresh token only once
        found = read(gateway)
        if found is None or found.expires - _EARLY > clock():
            return found.token if found else ""
        if not found.refresh_token:
            if found.expires > clock():
                return found.token
            raise UsageError(f"Your sign-in at {gateway} has expired: sign in again with `florin login`.")
        try:
            renewed = _renewed(found, clock())
        except UnreachableError:
            if found.expires > clock():
                return found.token
            raise
        except IssuerRefusalError as error:
            raise UsageError(f"{error} Sign in again with `florin login`.") from error
        write(renewed)
    return renewed.token


def _renewed(found: SignIn, now: float) -> SignIn:
    form = {
        "grant_type": "refresh_token",
        "refresh_token": found.refresh_token,
        "client_id": found.client_id,
    }
    answer = ask(endpoint(discover(found.issuer), "token_endpoint"), form)
    made = of_answer(
        answer,
        gateway=found.gateway,
        issuer=found.issuer,
        client_id=found.client_id,
        kind=found.kind,
        now=now,
        refresh_token=found.refresh_token,
    )
    if made.expires <= now:
        raise IssuerRefusalError("", "The issuer renewed nothing: the new token has expired, too.")
    return made


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
