"""Enrolment of a GPU host: its token (`engine token`), and how it gets and keeps its key (`engine enrol`, and
the start of `engine run`).

The key is generated here, written to a file, and only then presented to the gateway together with the token:
after a crash in between, the next attempt continues with the same key.
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
from gateway.commands.client import Api, ApiError, Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, when
from gateway.commands.session import HostKeyFile, Session, command
from gateway.fleet.engines.schemas.hosts import CreatedToken, Enrolment, NewToken
from gateway.schemas.base import Named
from gateway.tenants.keys.schemas import Key

app = typer.Typer()
_tokens = typer.Typer(
    no_args_is_help=True, help="Enrolment tokens, which GPU hosts exchange for their own keys."
)
app.add_typer(_tokens, name="token")

TOKEN = "FLORIN_ENGINE_TOKEN"  # noqa: S105 - a variable's name
OPERATOR_KEY = "FLORIN_OPERATOR_KEY"
_BY_TOKEN = "# by token sha256:"  # noqa: S105 - the beginning of a comment

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help=f"File (mode 0600) with a token from `florin engine token create`; or set {TOKEN}.",
        show_default=False,
    ),
]


@dataclass(frozen=True, slots=True)
class HostKey:
    key: str
    reread: Callable[[], str] | None = None
    """Reads the stored key again; None if it is not stored."""


@command(app, "enrol", key_file=HostKeyFile)
def enrol(
    session: Session,
    *,
    name: Annotated[str, typer.Option(help="The engine's name, as in the token.")],
    token_file: TokenFile = None,
) -> None:
    """On a GPU host: exchange a token for the host's own key, which `florin engine run` then uses. A running
    agent picks up the new key. `engine run --token-file` does the same at start.

    Example: florin engine enrol --name gpu1 --token-file token
    """
    check_name(name)
    token = _token(token_file, os.environ) or _asked()
    if token is None:
        raise UsageError(f"No token: use --token-file, or set {TOKEN}.")
    path = kept_at(session, name)
    exchange(session.gateway, name, token, path)
    session.result(
        {"engine": name, "key_file": str(path)},
        lambda _: say(f"Enrolled this host as engine {name}; its key is in {path}."),
    )


def host_key(session: Session, name: str, token_file: Path | None, handed: dict[str, str]) -> HostKey:
    """The agent's key: from a token, from the key file, or an operator's key. `handed`: secrets that were in
    the environment. Raises UsageError, ApiError, UnreachableError."""
    path = kept_at(session, name)
    if token := _token(token_file, handed):
        exchange(session.gateway, name, token, path)
    elif session.key_file is None and not path.exists():
        if key := handed.get(OPERATOR_KEY) or session.operator_key or _operators_file():
            note(
                "Using an operator key on a GPU host: anyone who controls the host is then an operator. "
                f"Enrol the host instead: florin engine token create --name {name}"
            )
            return HostKey(Api.to(session.gateway, key).key)
        if (token := _asked()) is None:
            raise UsageError(
                f"This host has no key: create a token with `florin engine token create --name {name}`, and "
                f"pass it with --token-file or in {TOKEN}."
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
    """Ensure that `path` contains the key that the token was exchanged for, now or earlier. Never overwrites
    a key that did not come from a token. Raises UsageError, ApiError, UnreachableError."""
    mark = f"{_BY_TOKEN}{_sha256(token)}"
    pending = path.with_name(f"{path.name}.pending")
    try:
        if _marked(path, mark):
            return
        if path.exists() and not _marked(path, _BY_TOKEN):
            raise UsageError(
                f"{path} contains a key that did not come from a token: remove it, or use another --key-file."
            )
        begun = _marked(pending, mark)
        if not begun:
            write_private(pending, f"{mark}\nfl_{name}_{secrets.token_urlsafe(24)}\n")
        _offer(url, name, token, _kept(pending), begun=begun)
        pending.replace(path)
    except OSError as error:
        raise UsageError(f"Cannot store the key at {path}: {error.strerror or error}.") from error


def _offer(url: str, name: str, token: str, key: str, *, begun: bool) -> None:
    """`begun`: the key may already have been accepted, and the response lost."""
    try:
        enrolment = Enrolment(engine=name, secret=f"sha256:{_sha256(key)}")
        Api.to(url, token).post("/admin/v1/enrol", enrolment.model_dump(), Key)
    except ApiError as error:
        # A used token is revoked; a platform's stays valid, and then the key is known already.
        if begun and error.code in {"revoked_api_key", "conflict"} and _accepted(url, name, key):
            return
        raise ApiError(error.status, error.gateway_message, error.code) from error


def _accepted(url: str, name: str, key: str) -> bool:
    try:
        Api.to(url, key).get(f"/admin/v1/engines/{segment(name)}", Named)
    except ApiError as error:
        return error.status == 404  # the key is known, the engine not yet
    return True


def _marked(path: Path, mark: str) -> bool:
    """Whether the file has a key below a line that begins with `mark`. Raises UsageError if others can read
    the file."""
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
    """A missing token file is not an error: the host may have been enrolled long ago."""
    if file is not None:
        path = file.expanduser()
        return _kept(path) if path.exists() else None
    return environ.get(TOKEN) or None


def _asked() -> str | None:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    token: str = typer.prompt("Enrolment token", hide_input=True, err=True)
    return token.strip()


def check_name(name: str) -> None:
    """Raises UsageError for an invalid engine name."""
    from adapters import model  # loads pydantic
    from adapters.errors import InvalidNameError

    try:
        model.check_name("engine", name)
    except InvalidNameError as error:
        raise UsageError(str(error)) from error


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@command(_tokens, "create")
@with_options(NewToken)
def create(session: Session, *, changes: Json) -> None:
    """Create a single-use token that enrols one GPU host as one engine. What is not pinned here is fixed by
    the host's first registration. If the host is already enrolled, using the token replaces its key.

    Example: florin engine token create --name gpu1 --gpu-type H100 > token
    """
    session.result(session.api.post("/admin/v1/enrolment-tokens", changes, CreatedToken), _created)


def _created(token: CreatedToken) -> None:
    sys.stdout.write(f"{token.token}\n")
    engine = clean(token.engine)
    note(
        f"Token {clean(token.id)} for engine {engine}: single use, valid until {when(token.expires)}. On "
        f"the host: florin engine run --name {engine} --token-file FILE -- vllm serve …"
    )
