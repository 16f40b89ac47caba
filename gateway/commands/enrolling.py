"""How a host comes to its key and keeps it: `florin engine enrol`, and what `engine run` does first.

The key is made here, written to a file beside its later place, and only then offered to the gateway with the
token: whatever dies in between, the next attempt goes on with the same key.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from adapters.security.secret_files import KeyFileError, read_key, read_private, write_private
from gateway.commands.client import Api, ApiError, UsageError, segment
from gateway.commands.output import note, say
from gateway.commands.session import HostKeyFile, Session, command

app = typer.Typer()

TOKEN = "FLORIN_ENGINE_TOKEN"  # noqa: S105 - a variable's name
OPERATOR_KEY = "FLORIN_OPERATOR_KEY"
_BY_TOKEN = "# by token sha256:"  # noqa: S105 - the beginning of a comment

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help=f"A file (mode 0600) with the token of `florin engine token create`; or set {TOKEN}.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class HostKey:
    key: str
    reread: Callable[[], str] | None = None
    """The key as it is kept now; None: it is kept nowhere."""


@command(app, "enrol", key_file=HostKeyFile)
def enrol(
    session: Session,
    *,
    name: Annotated[str, typer.Option(help="The engine's name, as in the token.")],
    token_file: TokenFile = None,
) -> None:
    """On a GPU host: exchange a token for this host's own key, which `florin engine run` then uses. An agent
    that runs takes the new key up by itself. `engine run --token-file` does the same at its start.

    Example: florin engine enrol --name gpu1 --token-file token
    """
    check_name(name)
    token = _token(token_file, os.environ) or _asked()
    if token is None:
        raise UsageError(f"There is no token: name its file with --token-file, or set {TOKEN}.")
    path = kept_at(session, name)
    exchange(session.gateway, name, token, path)
    session.result(
        {"engine": name, "key_file": str(path)},
        lambda b: say(f"This host is enrolled as engine {b['engine']}: its key is in {b['key_file']}."),
    )


def host_key(session: Session, name: str, token_file: Path | None, handed: dict[str, str]) -> HostKey:
    """The key that an agent works with: what a token brings, what is kept, or what an operator gave.
    `handed`: secrets that were in the environment. Raises UsageError, ApiError, UnreachableError."""
    path = kept_at(session, name)
    if token := _token(token_file, handed):
        exchange(session.gateway, name, token, path)
    elif session.key_file is None and not path.exists():
        if key := handed.get(OPERATOR_KEY) or session.operator_key or _operators_file():
            note(
                "An operator's key on a GPU host: whoever takes the host can do all that operators can. "
                f"Enrol it instead: florin engine token create --name {name}"
            )
            return HostKey(Api.to(session.gateway, key).key)
        if (token := _asked()) is None:
            raise UsageError(
                f"This host has no key: make a token with `florin engine token create --name {name}`, and "
                f"give it here with --token-file or in {TOKEN}."
            )
        exchange(session.gateway, name, token, path)
    return HostKey(Api.to(session.gateway, _kept(path)).key, lambda: _kept_or_nothing(path))


def _operators_file() -> str:
    file = os.environ.get(f"{OPERATOR_KEY}_FILE")
    return _kept(Path(file).expanduser()) if file else ""


def kept_at(session: Session, name: str) -> Path:
    if session.key_file is not None:
        return session.key_file.expanduser().absolute()
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(home).expanduser().absolute() / "florin" / "engines" / name / "key"


def exchange(url: str, name: str, token: str, path: Path) -> None:
    """Afterwards `path` holds the key that the token was exchanged for, now or earlier. What no token brought
    is not written over: it may be another's key. Raises UsageError, ApiError, UnreachableError."""
    mark = f"{_BY_TOKEN}{_sha256(token)}"
    pending = path.with_name(f"{path.name}.pending")
    try:
        if _marked(path, mark):
            return
        if path.exists() and not _marked(path, _BY_TOKEN):
            raise UsageError(
                f"{path} holds a key that no token brought: remove it first, or name another --key-file."
            )
        begun = _marked(pending, mark)
        if not begun:
            write_private(pending, f"{mark}\nfl_{name}_{secrets.token_urlsafe(24)}\n")
        _offer(url, name, token, _kept(pending), begun=begun)
        pending.replace(path)
    except OSError as error:
        raise UsageError(f"The key cannot be kept at {path}: {error.strerror or error}.") from error


def _offer(url: str, name: str, token: str, key: str, *, begun: bool) -> None:
    """`begun`: this key may have been taken already, and the answer been lost."""
    try:
        Api.to(url, token).post("/admin/v1/enrol", {"engine": name, "secret": f"sha256:{_sha256(key)}"})
    except ApiError as error:
        if begun and error.code == "revoked_api_key" and _accepted(url, name, key):
            return
        raise ApiError(error.status, error.said, error.code) from error


def _accepted(url: str, name: str, key: str) -> bool:
    try:
        Api.to(url, key).get(f"/admin/v1/engines/{segment(name)}")
    except ApiError as error:
        return error.status == 404  # the key is known, the engine not yet
    return True


def _marked(path: Path, mark: str) -> bool:
    """Whether there is a key under a line that begins so. Raises UsageError for a file that others can
    read."""
    if not path.exists():
        return False
    try:
        return bool(read_key(path)) and any(x.startswith(mark) for x in read_private(path).splitlines())
    except KeyFileError as error:
        raise UsageError(str(error)) from error


def _kept(path: Path) -> str:
    try:
        return read_key(path)
    except KeyFileError as error:
        raise UsageError(str(error)) from error


def _kept_or_nothing(path: Path) -> str:
    try:
        return read_key(path)
    except KeyFileError:
        return ""


def _token(file: Path | None, environ: os._Environ[str] | dict[str, str]) -> str | None:
    """Of a token file that is gone nothing is said: the host may have been enrolled long ago."""
    if file is not None:
        path = file.expanduser()
        return _kept(path) if path.exists() else None
    return environ.get(TOKEN) or None


def _asked() -> str | None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    said: str = typer.prompt("Enrolment token", hide_input=True, err=True)
    return said.strip()


def check_name(name: str) -> None:
    """Raises UsageError for a name that no engine can have."""
    from adapters import model  # loads pydantic, and is for this check alone
    from adapters.errors import InvalidNameError

    try:
        model.check_name("engine", name)
    except InvalidNameError as error:
        raise UsageError(str(error)) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
