"""florin cost sample"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.client import UsageError
from gateway.commands.output import busy, note, say
from gateway.commands.session import Session, command

app = typer.Typer()


@command(app, "sample")
def sample(
    session: Session,
    directory: Annotated[Path, typer.Argument(help="Where to write it; made if it does not exist.")],
) -> None:
    """Write a made-up month, October 2026, to try the finance commands: a ledger and a GPU provider's bill.
    Needs no gateway and no engine.

    Example: florin cost sample ./october
    """
    from gateway.costs.sample_month.month import write  # loads the ledger

    try:
        with busy("Writing a month of records…"):
            files = write(directory)
    except FileExistsError as error:
        raise UsageError(f"{error.filename} already exists: name another directory.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {directory} ({error.strerror}).") from error
    body = {"directory": str(directory), "files": [str(file) for file in files]}
    session.result(body, lambda _: _written(directory))


def _written(directory: Path) -> None:
    say(f"Wrote October 2026 to {directory}: ledger.db and bill.csv.")
    serve = f"FLORIN_STATE_DIR={shlex.quote(str(directory))} FLORIN_OPERATOR_KEY=… florin serve"
    note(f"To try it: {serve}, and then florin cost report --month 2026-10")
