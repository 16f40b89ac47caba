"""Checks a proof of Florin with nothing but Python's standard library: proofs.md describes the format.

python verify_proof.py proof.json records.jsonl [SEAL]

SEAL is that of the month, from another source than the proof: the invoice, or the next month's proof. Prints
what was checked and what was not; exit code 1 if anything is wrong.
"""

import hashlib
import json
import sys
from collections import Counter
from datetime import datetime, timezone
from fractions import Fraction

KINDS = ("input", "cached", "output")


def sha(data):
    return hashlib.sha256(data).digest()


def canonical(value):
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def leaf(value):
    return sha(b"\x00" + canonical(value))


def node(left, right):
    return sha(b"\x01" + left + right)


def root(leaves):
    """RFC 6962: split at the largest power of two below the number of leaves."""
    if len(leaves) < 2:
        return leaves[0] if leaves else sha(b"")
    half = 1 << (len(leaves) - 1).bit_length() - 1
    return node(root(leaves[:half]), root(leaves[half:]))


def tokens_of(counts):
    """Input without cached tokens, cached, output; of a record, or of a line without a rate card."""
    cached = counts["cached_tokens"] or 0
    return {
        "input": counts["prompt_tokens"] - cached,
        "cached": cached,
        "output": counts["completion_tokens"],
    }


def charged(record):
    """The tokens of a record that the customer pays for."""
    if not record["billable"] or record["outcome"] == "rejected":
        return {}
    tokens = tokens_of(record)
    if record["outcome"] in ("resumed", "resumed_cut"):  # the prompt was read again: the provider's loss
        return {"output": tokens["output"]}
    return tokens


def month_of(record):
    return datetime.fromtimestamp(record["ended"] // 10**6, timezone.utc).strftime("%Y-%m")


def sums(parts):
    """(name, tokens) → the sum of each kind, by name and kind."""
    counts = Counter()
    for name, tokens in parts:
        for kind, count in tokens.items():
            counts[name, kind] += count
    return {key: count for key, count in counts.items() if count}


def quantities(statement, records):
    """What the statement charges, and what the records say."""
    charges = statement.get("charges")
    if charges is None:
        lines = [line for line in statement["lines"] if line["kind"] == "usage"]
        place = lambda item: (item["adapter"], item["gpu_type"])  # noqa: E731
        return sums((place(x), tokens_of(x)) for x in lines), sums((place(r), charged(r)) for r in records)
    month, stated, at_cost = statement["month"], [], set()
    recorded = [(month_of(record), charged(record)) for record in records]
    for line in charges["lines"]:
        if line["kind"] in KINDS:
            stated.append((month, {line["kind"]: line["tokens"]}))
        elif line["kind"] == "batch_discount":
            stated.append(("batches", {kind: line[f"{kind}_tokens"] for kind in KINDS}))
            own = [r for r in records if month_of(r) == month and r.get("service_tier") == "batch"]
            recorded += [("batches", charged(record)) for record in own]
        elif line["kind"] == "correction" and line.get("card"):
            stated.append((line["month"], {kind: line[f"{kind}_tokens"] for kind in KINDS}))
        elif line["kind"] in ("correction", "cost"):
            at_cost.add(line.get("month", month))
    return sums(stated), sums((name, tokens) for name, tokens in recorded if name not in at_cost)


def due(line, by_kind, before):
    """The exact amount of a line, from its quantity and price; None: it is taken as stated."""
    kind = line["kind"]
    if kind in KINDS:
        return (line["tokens"] - line["free_tokens"]) * Fraction(line["per_million"]) / 10**6
    if kind == "batch_discount":
        full = 0
        for token_line in (by_kind[name] for name in KINDS):
            paid = token_line["tokens"] - token_line["free_tokens"]
            full += min(line[f"{token_line['kind']}_tokens"], paid) * Fraction(token_line["per_million"])
        return -full / 10**6 * (100 - line["batch_percent"]) / 100
    if kind == "residency":
        return sum(Fraction(a["hours"]) for a in line["adapters"]) * Fraction(line["per_hour"])
    return Fraction(line["monthly_minimum"]) - before if kind == "minimum" else None


def amounts(statement):
    """Whether amounts follow from quantities and prices, and what is taken as stated."""
    charges = statement.get("charges")
    if charges is None:
        right = sum(line["amount_cents"] for line in statement["lines"]) == statement["amount_cents"]
        return right, ["cost of GPU time"]
    right, stated, month = True, [], Fraction(0)
    by_kind = {line["kind"]: line for line in charges["lines"]}
    for line in charges["lines"]:
        exact, computed = Fraction(line["exact"]), due(line, by_kind, month)
        right = right and computed in (None, exact) and abs(line["amount_cents"] - 100 * exact) < 1
        right = right and 0 <= line.get("free_tokens", 0) <= line.get("tokens", 0)
        if computed is None:
            stated.append(" ".join(filter(None, (line["kind"], line.get("month")))))
        else:
            month += exact
        if line["kind"] == "residency":
            stated.append("hours of resident adapters")
    whole = sum(Fraction(line["exact"]) for line in charges["lines"])
    cents = (100 * whole + Fraction(1, 2)).__floor__()
    right = right and whole == Fraction(charges["exact"]) and cents == charges["amount_cents"]
    right = right and sum(line["amount_cents"] for line in charges["lines"]) == cents
    return right and statement["amount_cents"] == cents, stated


def check(proof, records, seal):
    """(what, whether it is right), one after the other."""
    header, statement = proof["header"], proof["statement"]
    if header.get("version") != 2:
        sys.exit("Only proofs of version 2 can be checked.")
    if seal:
        yield "the seal is the one expected", proof["seal"] == seal.strip().lower()
    yield "the header has the seal", sha(b"\x02" + canonical(header)).hex() == proof["seal"]
    yield "one month", proof["month"] == header["month"] == statement["month"]
    reached = leaf(statement)
    for step in proof["path"]:
        other = bytes.fromhex(step["hash"])
        reached = node(other, reached) if step["side"] == "left" else node(reached, other)
    yield "the month covers the statement", reached.hex() == header["tenants_root"]
    records = sorted(records, key=lambda record: (record["ended"], record["id"]))
    yield "the records are the tenant's", all(r["tenant"] == statement["tenant"] for r in records)
    yield "there are as many as stated", len(records) == statement["records"]
    yield "the statement covers them", root([leaf(record) for record in records]).hex() == statement["root"]
    stated, recorded = quantities(statement, records)
    yield "it charges the tokens of the billable ones", stated == recorded
    yield "amounts are quantities at their prices", amounts(statement)[0]


def main(arguments):
    with open(arguments[0], encoding="utf-8") as file:
        proof = json.load(file)
    with open(arguments[1], encoding="utf-8") as file:
        records = [json.loads(line) for line in file if line.strip()]
    seal = arguments[2] if len(arguments) > 2 else None
    results = list(check(proof, records, seal))
    for what, right in results:
        print("ok   " if right else "WRONG", what)
    if not seal:
        print("not checked: whether the month's seal is", proof["seal"])
    for what in amounts(proof["statement"])[1]:
        print("taken as stated:", what)
    return 0 if all(right for _, right in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
