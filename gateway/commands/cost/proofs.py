"""florin cost proof, verify"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from gateway.commands.client import Api, Json, UsageError, segment
from gateway.commands.output import note, print_json, say, show, table
from gateway.commands.session import REFUSED, Session, command

app = typer.Typer()

_PATH = "/finance/v1/periods"


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
    found = session.api.get(f"{path}/proof", {"tenant": tenant})
    if records is not None:
        try:
            with records.open("w", encoding="utf-8") as file:
                for record in _records(session.api, path, found["statement"]["tenant"]):
                    file.write(json.dumps(record, ensure_ascii=False) + "\n")
        except OSError as error:
            raise UsageError(f"--records: cannot write {records} ({error.strerror}).") from error
    print_json(found)


def _records(api: Api, path: str, tenant: str) -> Iterator[Json]:
    after: str | None = None
    while True:
        page = api.get(f"{path}/records", {"tenant": tenant, "after": after})
        yield from page["data"]
        after = page["next"]
        if after is None:
            return


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
) -> None:
    """Recompute closed months and compare, or check a tenant's proof. Exit code 1 if a check fails.

    Example: florin cost verify --month 2026-11; florin cost verify --proof proof.json --records records.jsonl
    """
    if proof is not None and month is None:
        if quick:
            raise UsageError("--quick cannot be combined with --proof, which is always complete.")
        found = [_offline(proof, records, seal)]
    elif proof is not None or records is not None:
        raise UsageError("--records requires --proof, and --proof cannot be combined with --month.")
    elif seal is not None and month is None:
        raise UsageError("--seal requires one --month or a --proof.")
    else:
        found = _online(session.api, month, seal, quick=quick)
    if session.json:
        print_json({"ok": all(v["ok"] for v in found), "data": found})
    elif not found:
        note("No month is closed yet.")
    else:
        _verified(found)
    if not all(v["ok"] for v in found):
        raise typer.Exit(REFUSED)


def _online(api: Api, month: str | None, seal: str | None, *, quick: bool) -> list[Json]:
    closed = [p["month"] for p in api.get(_PATH)["data"] if p["state"] == "closed"]
    params = {"quick": "true" if quick else None}
    found = [api.get(f"{_PATH}/{segment(name)}/verify", params) for name in ([month] if month else closed)]
    for made in found if seal else ():
        same = made["seal"] == str(seal).strip().lower()
        said = made["seal"] if same else f"The seal is {made['seal']}; expected {seal}."
        made["checks"].insert(0, {"name": "seal expected", "ok": same, "detail": said})
        made["ok"] = made["ok"] and same
    return found


def _offline(path: Path, records: Path | None, seal: str | None) -> Json:
    from gateway.costs.proofs.proof import ProofError, verify_proof  # loads usage records

    document = _read(path)
    if not isinstance(document, dict):
        raise UsageError(f"{path} is not a proof.")
    try:
        checks = verify_proof(document, None if records is None else _read_records(records), seal)
    except ProofError as error:
        raise UsageError(f"{path} or the records are invalid: {error}") from error
    ok = all(check.ok is not False for check in checks)
    made = [asdict(check) for check in checks]
    return {
        "month": document["month"],
        "seal": document.get("seal", document.get("root")),
        "ok": ok,
        "checks": made,
    }


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot read {path} as JSON ({error}).") from error


def _read_records(path: Path) -> list[Json]:
    """Reads an array, the API's pages, or one record per line."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError):
        lines = [_read(path)]
    if not all(isinstance(value, list | dict) for value in lines):
        raise UsageError(f"{path} holds no records.")
    found: list[Json] = []
    for value in lines:
        found += value if isinstance(value, list) else value.get("data", [value])
    return found


def _verified(found: list[Json]) -> None:
    words = {
        True: Text("ok", "green"),
        False: Text("FAILED", "bold red"),
        None: Text("not checked", "yellow"),
    }
    rows = [(v["month"], c["name"], words[c["ok"]], c["detail"]) for v in found for c in v["checks"]]
    show(table(("month", "check", "result", "details"), rows))
    failed = [v["month"] for v in found if not v["ok"]]
    say(f"Changed since it was closed: {', '.join(failed)}." if failed else "All checks passed.")
