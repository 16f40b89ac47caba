"""florin version"""

from __future__ import annotations

import time
from typing import Annotated

import typer

from gateway.commands.output import idle, print_json, say, show, table
from gateway.commands.session import Session, command
from gateway.installation.schemas import Gateway
from gateway.observability import build_info
from gateway.schemas.base import Listed

app = typer.Typer()


@command(app, "version")
def version(
    session: Session,
    *,
    gateways: Annotated[
        bool, typer.Option("--gateways", help="Ask the gateway which ones run, and what each of them is.")
    ] = False,
) -> None:
    """Print Florin's version and commit, or those of all running gateways.

    Example: florin version --gateways
    """
    if gateways:
        session.result(session.api.get("/admin/v1/gateways", Listed[Gateway]), _gateways)
    elif session.json:
        print_json({"version": build_info.version(), "commit": build_info.commit()})
    else:
        say(f"florin {build_info.build()}")


def _gateways(gateways: Listed[Gateway]) -> None:
    rows = [
        (
            gateway.name, gateway.version, gateway.commit,
            f"{gateway.ledger_url} {gateway.ledger}", gateway.redis_url,
            idle(max(0.0, time.time() - gateway.started / 1e6)), gateway.workers,
            f"{gateway.restarts}{_within_the_hour(gateway)}",
        )
        for gateway in gateways.data
    ]  # fmt: skip
    columns = ("gateway", "version", "commit", "ledger", "Redis", "up", "workers", "restarts")
    show(table(columns, rows, right=("up", "workers")))
    if len({gateway.ledger for gateway in gateways.data} - {""}) > 1:
        say("They do not share a ledger: each has only a part of the records. See florin doctor.")


def _within_the_hour(gateway: Gateway) -> str:
    codes = ", ".join(str(death.code) for death in gateway.deaths)
    return f" (last hour: exit code {codes})" if codes else ""
