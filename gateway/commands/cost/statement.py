"""florin cost statement"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.client import segment
from gateway.commands.download import download
from gateway.commands.output import note
from gateway.commands.session import Session, command

app = typer.Typer()


@command(app, "statement")
def statement(
    session: Session,
    *,
    tenant: Annotated[str, typer.Option(help="The tenant.")],
    month: Annotated[str, typer.Option(help="Month in UTC, for example 2026-07.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: TENANT-MONTH.html.")
    ] = None,
) -> None:
    """Write a tenant's monthly statement as an HTML page that prints on one sheet of A4.

    Preliminary until the month is closed. Example: florin cost statement --tenant acme --month 2026-07
    """
    path = output or Path(f"{tenant}-{month}.html".replace("/", "-"))
    saved = download(session.api, f"/finance/v1/statements/{segment(tenant)}", {"month": month}, path)
    body = {"file": str(path), "bytes": saved.size, "tenant": tenant, "month": month}
    session.result(body, lambda _: note(f"{path}: {saved.size:,} bytes."))
