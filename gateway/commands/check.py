"""florin adapter check: an adapter's checks on this machine, before anything is registered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import busy, clean, facts, fail, findings_table, say, show
from gateway.commands.session import REFUSED, Session, command

app = typer.Typer()


@command(app, "check")
def check(
    session: Session,
    path: Annotated[Path, typer.Argument(help="The adapter's directory, or an archive of one (tar, zip).")],
    *,
    base: Annotated[
        str | None,
        typer.Option(
            help="The base model: its directory, its config.json, or its name. A name is looked up in the "
            "hub's cache on this machine, then at the gateway. Left out: the gateway's only one.",
        ),
    ] = None,
    max_rank: Annotated[
        int | None,
        typer.Option(
            min=1, help="What the engines take (--max-lora-rank). Left out: what the gateway knows."
        ),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="FLORIN_MAX_ADAPTER_BYTES",
            help="Largest size of its files. Left out: 2 GiB, as a gateway's own setting.",
        ),
    ] = None,
    assume_base: Annotated[
        bool,
        typer.Option("--assume-base", help="Do not compare the base model's name; shapes are still checked."),
    ] = False,
) -> None:
    """Check an adapter as `adapter add` would, and register nothing. Needs no gateway when --base is a path.

    Prints each check that failed, and how to fix it. Exit code 0: it would be taken, perhaps with warnings;
    1: it would be refused.

    Example: florin adapter check ./out/checkpoint-300 --base /models/Qwen3-8B --max-rank 64
    """
    from gateway.commands import local_check  # numpy and all the checks: here alone

    if not path.exists():
        raise UsageError(f"{path} is not there: name a directory, or an archive.")
    against = local_check.against(session, base)
    with busy(f"Checking {path} …"):
        body = local_check.check(
            path, against, max_rank=max_rank, max_bytes=max_bytes, assume_base=assume_base
        )
    session.result(body, _people)
    if not body["passed"]:
        raise typer.Exit(REFUSED)


def _people(body: Json) -> None:
    findings: list[dict[str, Any]] = body["findings"]
    errors = sum(f["severity"] == "error" for f in findings)
    if body["facts"] is None:
        fail(f"{body['path']} would be refused: {errors} of its checks failed.", findings)
        return
    if findings:
        show(findings_table(findings))
    say(f"{clean(body['path'])} passes for {clean(body['base_model'])}.")
    show(facts([(name.replace("_", " "), value) for name, value in body["facts"].items()]))
