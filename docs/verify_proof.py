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

TOKENS = ("input", "cached", "output")
KINDS = (*TOKENS, "reasoning", "requests")
SELECTORS = ("adapter", "base_model", "task", "gpu_type", "service_tier")
UNSAID = {"task": "generate"}
WITHOUT_CENTS = set("BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF".split())  # noqa: SIM905


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
    """What the customer pays for of a record. Reasoning tokens are part of the output."""
    if not record["billable"] or record["outcome"] == "rejected":
        return {}
    counts = {**tokens_of(record), "reasoning": record["reasoning_tokens"] or 0, "requests": 1}
    if record["outcome"] in ("resumed", "resumed_cut"):  # its prompt was read again: the provider's loss
        return {**counts, "input": 0, "cached": 0, "requests": 0}
    return counts


def only_tokens(counts):
    return {kind: count for kind, count in counts.items() if kind in TOKENS}


def month_of(record):
    return datetime.fromtimestamp(record["ended"] // 10**6, timezone.utc).strftime("%Y-%m")


def sums(parts):
    """(name, tokens) → the sum of each kind, by name and kind."""
    counts = Counter()
    for name, tokens in parts:
        for kind, count in tokens.items():
            counts[name, kind] += count
    return {key: count for key, count in counts.items() if count}


def line_for(record, card_lines):
    """The line of the card that prices a record: the first that fits, or else the default one."""
    own = {name: record.get(name) or UNSAID.get(name, "") for name in SELECTORS}
    for line in card_lines:
        if all(line[name] == own[name] for name in SELECTORS if name in line):
            return line["line"]
    return ""


def sold(counts, kinds):
    """As a line of the card sells it: reasoning is output if it has no price, and requests may have none."""
    own = {kind: count for kind, count in counts.items() if kind in TOKENS or kind in kinds}
    if "reasoning" in own:
        own["output"] -= own["reasoning"]
    return own


def quantities(statement, records):
    """What the statement charges, and what the records say."""
    charges = statement.get("charges")
    if charges is None:
        lines = [line for line in statement["lines"] if line["kind"] == "usage"]
        place = lambda item: (item["adapter"], item["gpu_type"])  # noqa: E731
        billed = [(place(record), only_tokens(charged(record))) for record in records]
        return sums((place(line), tokens_of(line)) for line in lines), sums(billed)
    month, stated, at_cost, kinds, discounted = statement["month"], [], set(), {}, set()
    for line in charges["lines"]:
        name = line.get("line", "")
        if line["kind"] in KINDS:
            kinds.setdefault(name, set()).add(line["kind"])
            quantity = line["requests" if line["kind"] == "requests" else "tokens"]
            stated.append((("charged", name), {line["kind"]: quantity}))
        elif line["kind"] == "batch_discount":
            discounted.add(name)
            counts = {kind: line.get(f"{kind}_tokens", 0) for kind in (*TOKENS, "reasoning")}
            stated.append((("batches", name), counts))
        elif line["kind"] == "correction" and line.get("card"):
            stated.append((line["month"], {kind: line[f"{kind}_tokens"] for kind in TOKENS}))
        elif line["kind"] in ("correction", "cost"):
            at_cost.add(line.get("month", month))
    recorded = []
    for record in records:
        if month_of(record) in at_cost:
            continue
        if month_of(record) < month:
            recorded.append((month_of(record), only_tokens(charged(record))))
            continue
        name = line_for(record, charges.get("card_lines", ()))
        own = sold(charged(record), kinds.get(name, ()))
        recorded.append((("charged", name), own))
        if record.get("service_tier") == "batch" and name in discounted:
            own = {kind: count for kind, count in own.items() if kind != "requests"}
            recorded.append((("batches", name), own))
    return sums(stated), sums(recorded)


def paid(line):
    """The quantity that is not free, and what it costs at its price and tiers."""
    if line["kind"] == "requests":
        quantity, base, unit = line["requests"] - line["free_requests"], line["per_request"], 1
    else:
        quantity, base, unit = line["tokens"] - line["free_tokens"], line["per_million"], 10**6
    tiers = [(0, base)] + [(tier["above"], tier["unit_price"]) for tier in line.get("tiers", ())]
    if line.get("tier_mode") == "volume":
        tiers = [[(0, price) for above, price in tiers if above == 0 or above < quantity][-1]]
    amount = 0
    for number, (above, price) in enumerate(tiers):
        end = min([quantity] + [following for following, _ in tiers[number + 1 : number + 2]])
        amount += max(0, end - above) * Fraction(price)
    return quantity, Fraction(amount) / unit


def down(amount):
    """Rounded down to 15 decimal places."""
    return Fraction((amount * 10**15).__floor__(), 10**15)


def due(line, earlier, before):
    """The exact amount of a line, from its quantity and price; None: it is taken as stated. `earlier`: the
    lines before it, and `before`: their amount without corrections."""
    kind = line["kind"]
    if kind in KINDS:
        return paid(line)[1]
    if kind == "batch_discount":
        off = 0
        for other in earlier:
            same = other.get("line") == line.get("line")
            if same and other["kind"] in KINDS and other["kind"] != "requests" and paid(other)[0]:
                quantity, amount = paid(other)
                part = Fraction(min(line.get(f"{other['kind']}_tokens", 0), quantity), quantity)
                off += down(amount * part * (100 - line["batch_percent"]) / 100)
        return -Fraction(off)
    if kind == "residency":
        return sum(Fraction(a["hours"]) for a in line["adapters"]) * Fraction(line["per_hour"])
    if kind == "dedicated":
        return sum(Fraction(g["hours"]) for g in line["gpus"]) * Fraction(line["per_gpu_hour"])
    if kind == "discount":
        return -down(before * line["percent"] / 100)
    return Fraction(line["monthly_minimum"]) - before if kind == "minimum" else None


def amounts(statement):
    """Whether amounts follow from quantities and prices, and what is taken as stated."""
    charges, manual = statement.get("charges"), statement.get("manual", [])
    added = sum(line["amount_cents"] for line in manual)
    right = all(line["amount_cents"] * {"fee": 1, "charge": 1}.get(line["kind"], -1) >= 0 for line in manual)
    taken = [f"{line['kind']} of {line['amount_cents']} cents: {line['reason']}" for line in manual]
    if charges is None:
        cents = sum(line["amount_cents"] for line in statement["lines"])
        return right and cents + added == statement["amount_cents"], ["cost of GPU time", *taken]
    step = 100 if statement["currency"] in WITHOUT_CENTS else 1
    if any(part["amount_cents"] % step for part in (charges, *charges["lines"])):
        step = 1  # the first releases rounded each currency to hundredths
    stated, month = [], Fraction(0)
    for number, line in enumerate(charges["lines"]):
        exact, computed = Fraction(line["exact"]), due(line, charges["lines"][:number], month)
        right = right and computed in (None, exact) and abs(line["amount_cents"] - 100 * exact) < step
        if line["kind"] in KINDS:
            of = "requests" if line["kind"] == "requests" else "tokens"
            right = right and 0 <= line[f"free_{of}"] <= line[of]
        if computed is None:
            stated.append(" ".join(filter(None, (line["kind"], line.get("month")))))
        if line["kind"] not in ("correction", "cost"):
            month += exact
        if line["kind"] == "residency":
            stated.append("hours of resident adapters")
        if line["kind"] == "dedicated":
            stated.append("hours of dedicated GPUs")
    whole = sum(Fraction(line["exact"]) for line in charges["lines"])
    cents = (100 * whole / step + Fraction(1, 2)).__floor__() * step
    right = right and whole == Fraction(charges["exact"]) and cents == charges["amount_cents"]
    right = right and sum(line["amount_cents"] for line in charges["lines"]) == cents
    return right and statement["amount_cents"] == cents + added, [*stated, *taken]


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
