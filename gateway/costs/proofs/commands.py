"""florin cost proof, records, anchor, verify"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from adapters.wording import counted
from gateway.commands.client import Api, Json, UsageError, segment
from gateway.commands.output import note, print_json, say, show, table
from gateway.commands.session import REFUSED, Session, command
from gateway.costs.closing.schemas import (
    Anchor,
    ChainVerification,
    Month,
    Proof,
    RecordsAsHashed,
    Verification,
    VerificationCheck,
)
from gateway.schemas.base import Listed

app = typer.Typer()

_PATH = "/finance/v1/periods"
_CHAIN = "/finance/v1/chain"


@command(app, "proof")
def proof(
    session: Session,
    *,
    month: Annotated[str, typer.Option(help="Month, for example 2026-11.")],
    tenant: Annotated[
        str | None, typer.Option(help="The tenant. Not needed with a tenant's own key.", show_default=False)
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="Write the covered records to this file, one per line.", show_default=False),
    ] = None,
) -> None:
    """Print a JSON proof that a tenant's statement covers exactly its own records.

    Example: florin cost proof --tenant acme --month 2026-11 --records records.jsonl > proof.json
    """
    path = f"{_PATH}/{segment(month)}"
    document = session.api.get(f"{path}/proof", Proof, {"tenant": tenant})
    if records is not None:
        try:
            with records.open("w", encoding="utf-8") as file:
                for record in _records(session.api, path, document.statement["tenant"]):
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UsageError(f"--records: cannot write {records} ({error.strerror}).") from error
    print_json(document.body)


@command(app, "records")
def bulk_records(
    session: Session,
    *,
    month: Annotated[str, typer.Option(help="Closed month, for example 2026-11.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; replaced if it exists.")],
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.", show_default=False)] = None,
) -> None:
    """Write the usage records that a closed month covers to one file, a JSON object a line.

    Example: florin cost records --month 2026-11 --output records.jsonl
    """
    count = 0
    try:
        with output.open("w", encoding="utf-8") as file:
            for record in _records(session.api, f"{_PATH}/{segment(month)}", tenant):
                file.write(json.dumps(record, ensure_ascii=False) + "\n")
                count += 1
    except OSError as error:
        raise UsageError(f"--output: cannot write {output} ({error.strerror}).") from error
    body = {"file": str(output), "records": count, "month": month}
    session.result(body, lambda _: note(f"{output}: {counted(count, 'record')}."))


def _records(api: Api, path: str, tenant: str | None) -> Iterator[Json]:
    after: str | None = None
    while True:
        page = api.get(f"{path}/records", RecordsAsHashed, {"tenant": tenant, "after": after})
        yield from page.data
        after = page.next
        if after is None:
            return


@command(app, "anchor")
def anchor(session: Session) -> None:
    """Print the last entry of the ledger's chain, as one line of JSON. Keep it on another system: it proves
    later that nothing before it was changed.

    Example: florin cost anchor >> /mnt/auditor/anchors.jsonl
    """
    typer.echo(json.dumps(session.api.get(_CHAIN, Anchor).body))


@command(app, "verify")
def verify(
    session: Session,
    *,
    month: Annotated[
        str | None,
        typer.Option(help="Month, for example 2026-11. Default: every closed month.", show_default=False),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Check seal, roll-ups, prices, costs and statements, without reading the usage records.",
        ),
    ] = False,
    proof: Annotated[
        Path | None,
        typer.Option(help="Check this proof file, without a gateway.", show_default=False),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(help="With --proof: the records, as JSON or one per line.", show_default=False),
    ] = None,
    seal: Annotated[
        str | None,
        typer.Option(help="The seal you expect, for example from an invoice.", show_default=False),
    ] = None,
    anchor: Annotated[
        Path | None,
        typer.Option(help="Anchors that florin cost anchor printed, one per line.", show_default=False),
    ] = None,
) -> None:
    """Recompute closed months, and compare the books with the ledger's chain of what was written to them; or
    check a tenant's proof. Exit code 1 if a check fails.

    Example: florin cost verify --anchor anchors.jsonl; florin cost verify --proof proof.json --records r.txt
    """
    chain = None
    if proof is not None and month is None:
        if quick or anchor is not None:
            raise UsageError("--proof cannot be combined with --quick or --anchor: it needs no gateway.")
        verifications = [_offline(proof, records, seal)]
    elif proof is not None or records is not None:
        raise UsageError("--records requires --proof, and --proof cannot be combined with --month.")
    elif seal is not None and month is None:
        raise UsageError("--seal requires one --month or a --proof.")
    else:
        anchors = None if anchor is None else _read_anchors(anchor)
        chain = session.api.get(f"{_CHAIN}/verify", ChainVerification, {"anchor": anchors})
        verifications = _online(session.api, month, seal, quick=quick)
    ok = (chain is None or chain.ok) and all(verification.ok for verification in verifications)
    if session.json:
        data = [verification.body for verification in verifications]
        print_json(
            {"ok": ok, "data": data} if chain is None else {"ok": ok, "data": data, "chain": chain.body}
        )
    else:
        if not verifications:
            note("No month is closed.")
        _verified(chain, verifications)
    if not ok:
        raise typer.Exit(REFUSED)


def _online(api: Api, month: str | None, seal: str | None, *, quick: bool) -> list[Verification]:
    months = (
        [month] if month else [m.month for m in api.get(_PATH, Listed[Month]).data if m.state == "closed"]
    )
    params = {"quick": "true" if quick else None}
    verifications = [api.get(f"{_PATH}/{segment(name)}/verify", Verification, params) for name in months]
    return [_compared(verification, seal) for verification in verifications] if seal else verifications


def _compared(verification: Verification, seal: str) -> Verification:
    """With a check that it has the seal that is expected."""
    same = verification.seal == seal.strip().lower()
    detail = verification.seal if same else f"The seal is {verification.seal}; expected {seal}."
    check = {"name": "seal expected", "ok": same, "detail": detail}
    body = verification.body
    return Verification.read(body | {"ok": verification.ok and same, "checks": [check, *body["checks"]]})


def _offline(path: Path, records: Path | None, seal: str | None) -> Verification:
    from gateway.costs.proofs.proof import ProofError, verify_proof  # loads usage records

    document = _read(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a proof.")
    try:
        checks = verify_proof(document, None if records is None else _read_records(records), seal)
    except ProofError as error:
        raise UsageError(f"{path} or the records are invalid: {error}") from error
    ok = all(check.ok is not False for check in checks)
    return Verification.read(
        {
            "month": document["month"],
            "seal": document["seal"],
            "ok": ok,
            "checks": [asdict(check) for check in checks],
        }
    )


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path} as JSON ({error}).") from error


def _read_records(path: Path) -> list[Json]:
    """Reads an array, the API's pages, or one object per line."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError):
        lines = [_read(path)]
    if not all(isinstance(value, list | dict) for value in lines):
        raise UsageError(f"{path} holds no records.")
    read: list[Json] = []
    for value in lines:
        read += value if isinstance(value, list) else value.get("data", [value])
    return read


def _read_anchors(path: Path) -> list[str]:
    """As the API takes them."""
    try:
        anchors = [f"{int(line['entries'])}:{str(line['hash']).lower()}" for line in _read_records(path)]
    except (KeyError, TypeError, ValueError):
        anchors = []
    if not anchors:
        raise UsageError(f"{path} holds no anchors: florin cost anchor prints one.")
    return anchors


def _verified(chain: ChainVerification | None, verifications: list[Verification]) -> None:
    results: list[tuple[str, VerificationCheck]] = []
    if chain is not None:
        results += (("ledger", check) for check in chain.checks)
    results += ((v.month, check) for v in verifications for check in v.checks)
    words = {
        True: Text("ok", "green"),
        False: Text("FAILED", "bold red"),
        None: Text("not checked", "yellow"),
    }
    rows = [(about, check.name, words[check.ok], check.detail) for about, check in results]
    show(table(("month", "check", "result", "details"), rows))
    failed = dict.fromkeys(about for about, check in results if check.ok is False)
    unchecked = dict.fromkeys(check.name for _, check in results if check.ok is None)
    if failed:
        say(f"Changed since it was recorded: {', '.join(failed)}.")
    elif unchecked:
        say(f"No check failed. Not checked: {', '.join(unchecked)}.")
    else:
        say("All checks passed.")
