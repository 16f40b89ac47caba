"""florin adapter check: run the registration checks locally, without registering anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import busy, clean, facts, fail, findings_table, say, show
from gateway.commands.session import REFUSED, Session, command
from gateway.fleet.adapters.schemas.adapters import NewAdapter

if TYPE_CHECKING:
    from gateway.fleet.adapters.commands.local_check import CheckedAdapter

app = typer.Typer()


@command(app, "check")
@with_options(NewAdapter, only=("assume_base", "unverified_shapes"))
def check(
    session: Session,
    path: Annotated[Path, typer.Argument(help="Directory or archive (tar, zip) of the adapter.")],
    *,
    base: Annotated[
        str | None,
        typer.Option(
            help="The base model: its directory, its config.json, or its name. A name is looked up in the "
            "local hub cache, then at the gateway. Default: the gateway's only base model.",
        ),
    ] = None,
    max_rank: Annotated[
        int | None,
        typer.Option(min=1, help="The engines' --max-lora-rank. Default: as the gateway knows it."),
    ] = None,
    max_bytes: Annotated[
        int | None,
        typer.Option(
            min=1,
            envvar="FLORIN_MAX_ADAPTER_BYTES",
            help="Maximum size of the files. Default: 2 GiB, like the gateway's setting.",
        ),
    ] = None,
    changes: Json,
) -> None:
    """Check an adapter as `adapter add` would, without registering it. --base PATH needs no gateway.

    Prints each failed check and how to fix it. Exit code 0: the adapter would be accepted, possibly with
    warnings; 1: it would be refused.

    Example: florin adapter check ./out/checkpoint-300 --base /models/Qwen3-8B --max-rank 64
    """
    from gateway.fleet.adapters.commands import local_check  # loads numpy and all checks

    if not path.exists():
        raise UsageError(f"{path} does not exist: name a directory or an archive.")
    against = local_check.against(session, base)
    with busy(f"Checking {path} …"):
        checked = local_check.check(path, against, max_rank=max_rank, max_bytes=max_bytes, **changes)
    session.result(checked, _people)
    if not checked.passed:
        raise typer.Exit(REFUSED)


def _people(checked: CheckedAdapter) -> None:
    findings = [finding.model_dump() for finding in checked.findings]
    if checked.facts is None:
        errors = sum(finding.severity == "error" for finding in checked.findings)
        fail(f"{checked.path} would be refused: {counted(errors, 'check')} failed.", findings)
        return
    if findings:
        show(findings_table(findings))
    say(f"{clean(checked.path)} passes for {clean(checked.base_model)}.")
    show(facts([(name.replace("_", " "), value) for name, value in checked.facts.items()]))
