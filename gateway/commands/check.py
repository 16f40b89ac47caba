"""florin adapter check: an adapter's checks on this machine, before anything is registered."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adapters.artifacts import digest_of
from adapters.base_models import read_base
from adapters.errors import Finding, NotFoundError, RejectedError
from adapters.findings import Findings
from adapters.model import BaseModel
from adapters.sources import archive
from adapters.validate import AdapterFacts, validate
from gateway.commands.adapters import app
from gateway.commands.client import Json, UsageError
from gateway.commands.output import busy, clean, facts, fail, findings_table, say, show
from gateway.commands.session import REFUSED, Session, command
from gateway.config import Settings

_HIGHEST_RANK = 512
"""The most that `--max-lora-rank` may be set to: the limit where nobody names one."""
_MAX_BYTES: int = Settings.model_fields["max_adapter_bytes"].default


@dataclass(frozen=True, slots=True)
class _Against:
    base: BaseModel
    ranks: tuple[int, ...]
    """Of the engines; empty when nobody was asked."""


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
        int, typer.Option(min=1, envvar="FLORIN_MAX_ADAPTER_BYTES", help="Largest size of its files.")
    ] = _MAX_BYTES,
    assume_base: Annotated[
        bool,
        typer.Option("--assume-base", help="Do not compare the base model's name; shapes are still checked."),
    ] = False,
) -> None:
    """Check an adapter as `adapter add` would, and register nothing. Needs no gateway when --base is a path.

    Prints each check that failed, and how to fix it. Exit code 0: it would be taken, perhaps with warnings; 1: it
    would be refused.

    Example: florin adapter check ./out/checkpoint-300 --base /models/Qwen3-8B --max-rank 64
    """
    if not path.exists():
        raise UsageError(f"{path} is not there: name a directory, or an archive.")
    against = _against(session, base)
    try:
        with busy(f"Checking {path} …"), _directory(path, max_bytes) as directory:
            found = validate(
                directory,
                base=against.base,
                max_rank=max_rank or max(against.ranks, default=_HIGHEST_RANK),
                max_bytes=max_bytes,
                assume_base=assume_base,
                adapter=str(path),
                fleet_ranks=() if max_rank else against.ranks,
            )
            digest = f"sha256:{digest_of(directory)}"
    except RejectedError as refusal:
        _report(session, path, against, refusal.findings, None)
        raise typer.Exit(REFUSED) from refusal
    _report(session, path, against, found.warnings, _told(found, digest))


def _against(session: Session, base: str | None) -> _Against:
    """Raises UsageError, and what the gateway's client raises."""
    if base is not None:
        try:
            local = read_base(base, base)
        except NotFoundError as error:
            raise UsageError(f"--base: {error}") from error
        if local is not None:
            return _Against(local, ())
        if Path(base).exists() or base.startswith((".", "/", "~")):
            raise UsageError(f"--base: there is no config.json of a model at {base}.")
    known = {b["base_model"]: b for b in session.api.get("/admin/v1/bases")["data"]}
    if base is None and len(known) != 1:
        raise UsageError(
            f"Name the base model with --base: the gateway serves {', '.join(sorted(known)) or 'none'}."
        )
    entry = known.get(base) if base is not None else next(iter(known.values()))
    if entry is None:
        raise UsageError(
            f"--base: {base!r} is neither in the hub's cache on this machine nor served by the gateway; it "
            f"serves {', '.join(sorted(known)) or 'none'}."
        )
    model = BaseModel(
        entry["base_model"], tuple(entry["aliases"]), entry["config"], entry.get("chat_template")
    )
    return _Against(model, tuple(entry["ranks"]))


@contextmanager
def _directory(path: Path, max_bytes: int) -> Iterator[Path]:
    """The adapter's files as a directory. Raises RejectedError for an archive that is none."""
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="florin-check-") as made:
        findings = Findings()
        try:
            archive.unpack(path, Path(made), max_bytes=max_bytes, findings=findings)
        except OSError as error:
            raise UsageError(f"{path} cannot be read ({error}).") from error
        findings.refuse_if_any(str(path))
        yield Path(made)


def _told(found: AdapterFacts, digest: str) -> Json:
    told = {name: value for name, value in asdict(found).items() if name != "warnings"}
    return {"digest": digest, **told}


def _report(
    session: Session, path: Path, against: _Against, findings: tuple[Finding, ...], told: Json | None
) -> None:
    body: Json = {
        "path": str(path),
        "base_model": against.base.name,
        "passed": told is not None,
        "findings": [asdict(finding) for finding in findings],
        "facts": told,
    }
    session.result(body, _people)


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
