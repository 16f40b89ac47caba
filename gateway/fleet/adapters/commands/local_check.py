"""Implements `florin adapter check`: the checks of a registration, on local files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from adapters.checks.adapter_folder import directory_of
from adapters.checks.base_models import read_base
from adapters.checks.findings import Findings
from adapters.checks.validate import validate
from adapters.errors import Finding, NotFoundError, RejectedError
from adapters.model import BaseModel
from adapters.registry.artifacts import digest_of
from adapters.sources import archive
from gateway.commands.client import Json, UsageError
from gateway.commands.session import Session
from gateway.config import Settings
from gateway.fleet.adapters.schemas import adapters as schemas
from gateway.fleet.engines.schemas.engines import ServedBase
from gateway.schemas.base import Answer, Listed

_HIGHEST_RANK = 512
"""Upper limit of vLLM's `--max-lora-rank`: the default limit."""
_MAX_BYTES: int = Settings.model_fields["max_adapter_bytes"].default


@dataclass(frozen=True, slots=True)
class Against:
    base: BaseModel
    ranks: tuple[int, ...]
    """Highest ranks of the engines; empty if no gateway was asked."""
    text_rank: int | None = None
    """See `validate`."""


class CheckedAdapter(Answer):
    path: str
    base_model: str
    passed: bool
    findings: tuple[schemas.Finding, ...]
    facts: dict[str, Any] | None = Field(description="null unless it passed.")


def check(
    path: Path,
    against: Against,
    *,
    max_rank: int | None,
    max_bytes: int | None,
    assume_base: bool = False,
    unverified_shapes: bool = False,
) -> CheckedAdapter:
    """Raises UsageError if `path` cannot be read."""
    findings: tuple[Finding, ...]
    facts: Json | None = None
    limit = max_bytes or _MAX_BYTES
    try:
        with _directory(path, limit) as (directory, before):
            checked = validate(
                directory,
                base=against.base,
                max_rank=max_rank or max(against.ranks, default=_HIGHEST_RANK),
                max_bytes=limit,
                assume_base=assume_base,
                unverified_shapes=unverified_shapes,
                adapter=str(path),
                fleet_ranks=() if max_rank else against.ranks,
                text_rank=against.text_rank,
            )
            facts = {"digest": f"sha256:{digest_of(directory)}", **asdict(checked)}
            del facts["warnings"]
        findings = (*checked.warnings, *before)
    except RejectedError as refusal:
        findings = refusal.findings
    return CheckedAdapter(
        path=str(path),
        base_model=against.base.name,
        passed=facts is not None,
        findings=tuple(map(schemas.Finding.model_validate, findings)),
        facts=facts,
    )


def against(session: Session, base: str | None) -> Against:
    """Raises UsageError, ApiError, UnreachableError."""
    if base is not None:
        try:
            local = read_base(base, base)
        except NotFoundError as error:
            raise UsageError(f"--base: {error}") from error
        if local is not None:
            return Against(local, ())
        if Path(base).exists() or base.startswith((".", "/", "~")):
            raise UsageError(f"--base: no model config.json at {base}.")
    served = session.api.get("/admin/v1/bases", Listed[ServedBase])
    known = {entry.base_model: entry for entry in served.data}
    if base is None and len(known) != 1:
        raise UsageError(
            f"Name the base model with --base: the gateway serves {', '.join(sorted(known)) or 'none'}."
        )
    entry = known.get(base) if base is not None else next(iter(known.values()))
    if entry is None:
        raise UsageError(
            f"--base: {base!r} is neither in the local hub cache nor served by the gateway, which "
            f"serves {', '.join(sorted(known)) or 'none'}."
        )
    model = BaseModel(entry.base_model, entry.aliases, entry.config, entry.chat_template)
    return Against(model, entry.ranks, entry.text_rank)


@contextmanager
def _directory(path: Path, max_bytes: int) -> Iterator[tuple[Path, tuple[Finding, ...]]]:
    """The adapter's files as a directory, with warnings. Raises RejectedError for an invalid archive."""
    if path.is_dir():
        yield directory_of(path), ()
        return
    with tempfile.TemporaryDirectory(prefix="florin-check-") as unpacked:
        findings = Findings()
        try:
            archive.unpack(path, Path(unpacked), max_bytes=max_bytes, findings=findings)
        except OSError as error:
            raise UsageError(f"Cannot read {path} ({error}).") from error
        findings.refuse_if_any(str(path))
        yield Path(unpacked), findings.warnings
