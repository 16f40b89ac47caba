"""A tenant's proof that its statement is part of a closed period, and covers and charges exactly its records.

Pure and offline: checking it takes the proof, the records, SHA-256 and JSON, and no trust in the gateway.
Take the seal from another source than the proof: the month's invoice, or the next month's proof, whose header
has it as `previous_root`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from adapters.wording import counted
from gateway.costs.merkle import (
    VERSION,
    MerkleStep,
    canonical,
    climb,
    header_hash,
    leaf_hash,
    path,
    record_leaf,
    root_of,
)
from gateway.costs.proofs.charged import as_stated, prices, wrong_amounts, wrong_quantities

SUMS = ("prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")

_WITHHELD = frozenset({"cost", "nano_gpu_hours", "allocated_nano_gpu_hours", "withheld"})
"""Fields of a statement and of its lines from which a customer could compute what a GPU costs."""


class ProofError(ValueError):
    """Not a valid proof or record: a field is missing or has the wrong type."""


@dataclass(frozen=True, slots=True)
class ProofCheck:
    name: str
    ok: bool | None
    """None: could not be checked; `detail` says why."""
    detail: str


def public(statement: Mapping[str, Any]) -> dict[str, Any]:
    """What a statement's leaf covers: what the customer is charged, and for how many tokens, without costs
    and GPU time. With a rate card, the charges by SKU; without one, the amount of each line."""
    shown = {name: value for name, value in statement.items() if name not in _WITHHELD}
    manual = sum(line["amount_cents"] for line in statement.get("manual", ()))
    manual -= statement.get("credits", {}).get("drawn_cents", 0)
    if (charges := statement.get("charges")) is not None:
        del shown["lines"]
        return {**shown, "amount_cents": charges["amount_cents"] + manual}
    if manual:
        shown["amount_cents"] += manual
    if "lines" in shown:
        shown["lines"] = [
            {name: value for name, value in line.items() if name not in _WITHHELD}
            for line in shown["lines"]
            if line["amount_cents"] is not None
        ]
    return shown


def prove(
    header: Mapping[str, Any], root: str, statements: Sequence[Mapping[str, Any]], tenant: str
) -> dict[str, Any]:
    """The proof document for a tenant. `statements`: the full ones of all tenants. Raises KeyError if the
    tenant has none."""
    ordered = in_order(statements)
    index = next((i for i, s in enumerate(ordered) if s["tenant"] == tenant), None)
    if index is None:
        raise KeyError(tenant)
    shown = [public(s) for s in ordered]
    leaves = [leaf_hash(canonical(s)) for s in shown]
    return {
        "version": VERSION,
        "month": header["month"],
        "seal": root,
        "header": dict(header),
        "statement": shown[index],
        "path": [{"side": step.side, "hash": step.hash.hex()} for step in path(leaves, index)],
    }


def in_order(statements: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """In the order of the upper tree's leaves: by tenant."""
    return sorted(statements, key=lambda s: str(s["tenant"]))


def tenants_root(statements: Iterable[Mapping[str, Any]]) -> str:
    return root_of([leaf_hash(canonical(public(s))) for s in in_order(statements)]).hex()


def verify_proof(
    proof: Mapping[str, Any], records: Iterable[Mapping[str, Any]] | None = None, seal: str | None = None
) -> list[ProofCheck]:
    """Run each check. `records`: the tenant's, in any order, as the API returns them. `seal`: from another
    source, if the caller has it. Raises ProofError."""
    try:
        statement, version = proof["statement"], proof["header"].get("version", VERSION)
        if version != VERSION:
            raise ProofError(f"version {version!r}: a newer Florin made it")
        checks = [
            _seal_check(proof, seal),
            _header_check(proof),
            _statement_check(proof),
            *_amounts_checks(statement),
        ]
        if records is None:
            return [*checks, ProofCheck("records", None, "Not given.")]
        return [*checks, *_records_checks(statement, list(records))]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ProofError(f"A field is missing or invalid: {error}") from error


def _seal_check(proof: Mapping[str, Any], expected: str | None) -> ProofCheck:
    root = proof["seal"]
    if expected is None:
        return ProofCheck(
            "seal", None, f"Compare the seal {root} with that on the invoice, or pass it with --seal."
        )
    same = expected.strip().lower() == root
    return ProofCheck(
        "seal", same, root if same else f"The proof has the seal {root}; you expect {expected}."
    )


def _header_check(proof: Mapping[str, Any]) -> ProofCheck:
    header = proof["header"]
    root = header_hash(header).hex()
    if root != proof["seal"]:
        return ProofCheck("header", ok=False, detail=f"The header hashes to {root}, not to the seal.")
    months = {proof["month"], header["month"], proof["statement"]["month"]}
    if len(months) != 1:
        return ProofCheck(
            "header", ok=False, detail=f"It mixes the months {', '.join(sorted(map(str, months)))}."
        )
    return ProofCheck("header", ok=True, detail=f"The seal is that of {header['month']}'s header.")


def _statement_check(proof: Mapping[str, Any]) -> ProofCheck:
    statement = proof["statement"]
    steps = [MerkleStep(_side(step["side"]), bytes.fromhex(step["hash"])) for step in proof["path"]]
    reached = climb(leaf_hash(canonical(statement)), steps).hex()
    if reached != proof["header"]["tenants_root"]:
        return ProofCheck("statement", ok=False, detail="This is not the statement that the period covers.")
    return ProofCheck(
        "statement", ok=True, detail=f"The period covers this statement of {statement['tenant']}."
    )


def _amounts_checks(statement: Mapping[str, Any]) -> Iterator[ProofCheck]:
    if wrong := wrong_amounts(statement):
        yield ProofCheck("amounts", ok=False, detail="; ".join(wrong))
    else:
        detail = "; ".join([*prices(statement), f"the lines sum to {statement['amount_cents']} cents"])
        yield ProofCheck("amounts", ok=True, detail=f"{detail[0].upper()}{detail[1:]}.")
    if stated := as_stated(statement):
        detail = f"Not in the records, so taken as stated: {', '.join(stated)}."
        yield ProofCheck("other amounts", None, detail)


def _quantities_check(statement: Mapping[str, Any], records: list[Mapping[str, Any]]) -> ProofCheck:
    if wrong := wrong_quantities(statement, records):
        return ProofCheck("quantities", ok=False, detail="; ".join(wrong))
    return ProofCheck("quantities", ok=True, detail="It charges the tokens of its billable records.")


def _side(text: Any) -> Any:
    if text not in {"left", "right"}:
        raise ValueError(f"side {text!r}")
    return text


def _records_checks(statement: Mapping[str, Any], records: list[Mapping[str, Any]]) -> list[ProofCheck]:
    tenant = statement["tenant"]
    ordered = sorted(records, key=lambda r: (r["ended"], r["id"]))
    foreign = [r["id"] for r in ordered if r["tenant"] != tenant]
    if foreign:
        return [ProofCheck("records", ok=False, detail=f"{len(foreign)} are not {tenant}'s: {foreign[0]} …")]
    root = root_of([record_leaf(r) for r in ordered]).hex()
    count, covered = len(ordered), statement["records"]
    if root == statement["root"] and count == covered:
        detail = f"The statement covers the {counted(count, 'record')} given and no others."
        return [
            ProofCheck("records", ok=True, detail=detail),
            _sums_check(statement, ordered),
            _quantities_check(statement, ordered),
        ]
    if count != covered:
        detail = f"The statement covers {counted(covered, 'record')}; given: {count:,}."
    else:
        detail = "At least one of the records given is not as the statement covers it."
    return [ProofCheck("records", ok=False, detail=detail)]


def _sums_check(statement: Mapping[str, Any], records: list[Mapping[str, Any]]) -> ProofCheck:
    wrong = [name for name in SUMS if sum(r[name] or 0 for r in records) != statement[name]]
    if wrong:
        return ProofCheck("tokens", ok=False, detail=f"The records do not sum to its {', '.join(wrong)}.")
    return ProofCheck("tokens", ok=True, detail="The records' tokens sum to the statement's.")
