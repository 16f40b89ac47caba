"""florin engine token …"""

from __future__ import annotations

import sys

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, when
from gateway.commands.session import Session, command
from gateway.fleet.engines.schemas.enrolment import CreatedToken, NewToken
from gateway.schemas.typed_text import parsed

_tokens = typer.Typer(
    no_args_is_help=True, help="Enrolment tokens, which GPU hosts exchange for their own keys."
)
app = typer.Typer()
app.add_typer(_tokens, name="token")


@command(_tokens, "create")
@with_options(NewToken)
def create(session: Session, *, changes: Json) -> None:
    """Create a single-use token that enrols one GPU host as one engine. What is not pinned here is fixed by
    the host's first registration. If the host is already enrolled, using the token replaces its key.

    Example: florin engine token create --name gpu1 --gpu-type H100 > token
    """
    session.result(session.api.post("/admin/v1/enrolment-tokens", changes, CreatedToken), _people)


def _people(token: CreatedToken) -> None:
    sys.stdout.write(f"{token.token}\n")
    engine = clean(token.engine)
    note(
        f"Token {clean(token.id)} for engine {engine}: single use, valid until {when(token.expires)}. On "
        f"the host: florin engine run --name {engine} --token-file FILE -- vllm serve …"
    )


def seconds(text: str, option: str) -> int:
    """Parses `90s`, `30m`, `1h`, `7d`. Raises UsageError."""
    try:
        return int(parsed("duration", text))
    except ValueError as error:
        raise UsageError(f"{option}: {error}.") from error
