"""Recomputes statements as a customer's or a reseller's accountant would: in exact fractions, from the records,
sightings, prices and rate cards that the finance API exports.

It imports nothing of Florin. What a GPU-hour costs, and whose it is, comes from `tests.support.recomputation`;
this is what is made of it for a month: charges by rate card, shares of unused time, corrections of closed
months, and cents."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from tests.support.recomputation import CONTINUED, UNUSED, Amounts, Json, Key

UNIT = 10**15
"""Amounts are whole units of 10**-15 of the currency."""
CENT = UNIT // 100
COUNTS = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens")
KINDS = ("input", "cached", "output", "reasoning", "requests")
SKUS = {
    "input": "tokens/input", "cached": "tokens/cached-input", "output": "tokens/output",
    "reasoning": "tokens/reasoning", "requests": "requests",
}  # fmt: skip
SELECTORS = ("adapter", "base_model", "task", "gpu_type", "service_tier")
"""The most specific first."""
Pool = tuple[str, str, str, Fraction]
"""GPU type, region, purchase model, rate."""
Quantities = dict[tuple[str, str, str, str, str], Counter[str]]
"""(adapter, base model, task, GPU type, service tier) → quantities of each kind, and `batch …` of each."""


class Usage(NamedTuple):
    """Everything that a month's statements depend on, as it is known at some time."""

    lines: Mapping[tuple[str, ...], Counter[str]]
    """(tenant, kind, adapter, GPU type, region, purchase model) → counts, nano-GPU-hours and cost."""
    used: Mapping[str, Quantities]
    """By tenant."""
    time: Mapping[Pool, Counter[str]]
    """The nano-GPU-hours of each tenant; unused: of ''."""
    residency: Mapping[str, Mapping[str, int]]
    """Tenant → adapter → thousandths of an hour."""


NOTHING = Usage({}, {}, {}, {})


def usage_of(
    attributed: Mapping[Key, Amounts],
    records: Iterable[Json],
    gpu_types: Mapping[str, str],
    residency: Mapping[str, Mapping[str, int]],
) -> Usage:
    """`attributed`: as recomputed, of one month; each of its hours has one rate. `records`: those that ended in
    it. `gpu_types`: of the engines."""
    lines: defaultdict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    time: defaultdict[Pool, Counter[str]] = defaultdict(Counter)
    series: dict[tuple[str, int], tuple[str, str]] = {}
    for key, amounts in attributed.items():
        place = gpu_types[key.engine], key.region, key.purchase
        series[key.engine, key.hour] = key.region, key.purchase
        names = (key.tenant, key.bucket, key.adapter, *place)
        lines[names].update(nano=amounts["nano_gpu_hours"], cost=amounts["cost"])
        if amounts["nano_gpu_hours"] and key.bucket in {"usage", *UNUSED}:
            rate = Fraction(amounts["cost"], amounts["nano_gpu_hours"])
            time[(*place, rate)][key.tenant] += amounts["nano_gpu_hours"]
    used: defaultdict[str, Quantities] = defaultdict(lambda: defaultdict(Counter))
    for record in records:
        for attempt in _parts(record):
            hour = record["ended"] - record["ended"] % 3_600_000_000
            place = record["gpu_type"], *series[record["engine"], hour]
            bucket = "usage" if attempt["billable"] else "retry_waste"
            lines[(record["tenant"], bucket, record["adapter"], *place)].update(
                {name: attempt[name] or 0 for name in COUNTS}
            )
            if attempt["billable"]:
                cached = attempt["cached_tokens"] or 0
                names = (record["task"] or "generate", record["gpu_type"], record["service_tier"])
                used[record["tenant"]][record["adapter"], record["base_model"], *names].update(
                    input=attempt["prompt_tokens"] - cached, cached=cached, output=attempt["completion_tokens"],
                    reasoning=attempt["reasoning_tokens"], requests=attempt["requests"],
                )  # fmt: skip
    return Usage(dict(lines), dict(used), dict(time), residency)


def _parts(record: Json) -> list[Json]:
    """A record, or the two of a resumed stream: the prompt is read again at nobody's cost."""
    attempt = {**record, "requests": 1}
    if not record["billable"] or record["outcome"] not in CONTINUED:
        return [attempt]
    return [
        {**attempt, "completion_tokens": 0, "reasoning_tokens": 0, "billable": False},
        {**attempt, "requests": 0, "prompt_tokens": 0, "cached_tokens": 0},
    ]


# Rate cards


class Cards:
    """Rate cards and assignments, as the API lists them."""

    def __init__(self, listing: Json) -> None:
        self._cards, self._assignments = listing["data"], listing["assignments"]

    def card(self, tenant: str, month: str) -> Json | None:
        """By which a tenant pays in a month; None: it pays the cost."""
        own = self.assigned(tenant, month)
        standing = self.assigned(None, month) if own is None else own
        if standing is None or standing["card"] is None:
            return None
        versions = [card for card in self._cards if card["name"] == standing["card"]]
        return _latest(versions, month)

    def assigned(self, tenant: str | None, month: str) -> Json | None:
        return _latest([each for each in self._assignments if each["tenant"] == tenant], month)

    def owes_without_usage(self, tenant: str, month: str, residency: Mapping[str, int]) -> bool:
        """A minimum of a card of its own, or adapters whose residency has a price."""
        card = self.card(tenant, month)
        if card is None:
            return False
        own = self.assigned(tenant, month) is not None and Fraction(card["monthly_minimum"]) > 0
        return own or any(_residency_line(card, adapter)[1] for adapter in residency)


def _latest(rows: Sequence[Json], month: str) -> Json | None:
    """Of the rows that have begun, the one that began last; of several of one month, the last."""
    begun = [row for row in rows if row["valid_from"] <= month]
    return max(enumerate(begun), key=lambda pair: (pair[1]["valid_from"], pair[0]))[1] if begun else None


class Charges(NamedTuple):
    """One month of one tenant by a card. Each in units."""

    card: Json
    kinds: dict[tuple[str, str], tuple[int, int, int]]
    """(line, kind) → quantity, free part, amount. The card's own line is ''."""
    residency: dict[str, tuple[Mapping[str, int], int]]
    """Line → adapters with their hours, amount."""
    batch: int
    discount: int
    minimum: int

    @property
    def parts(self) -> dict[str, int]:
        parts = {"tokens": sum(amount for *_, amount in self.kinds.values()), "minimum": self.minimum}
        if self.residency:
            parts["residency"] = sum(amount for _, amount in self.residency.values())
        if self.batch:
            parts["batch"] = self.batch
        if self.discount:
            parts["discount"] = self.discount
        return parts

    @property
    def amount(self) -> int:
        return sum(self.parts.values())


def charges_of(card: Json, month: str, used: Quantities, residency: Mapping[str, int]) -> Charges:
    own = {**card, "name": "", **dict.fromkeys(SELECTORS)}
    lines = {"": own, **{line["name"]: line for line in card["lines"]}}
    sums: defaultdict[str, tuple[Counter[str], Counter[str]]] = defaultdict(lambda: (Counter(), Counter()))
    sums[""]  # it is there without usage, too
    for key, quantities in used.items():
        name = _line_for(card, key)
        sums[name][0].update(quantities)
        if key[-1] == "batch" and not lines[name]["service_tier"]:
            sums[name][1].update(quantities)
    kinds, batch = {}, 0
    for name in [name for name in lines if name in sums]:
        everything, of_batches = sums[name]
        line = lines[name]
        for kind in _kinds(line):
            quantity = max(_quantity(line, kind, everything), 0)
            free = min(
                line.get(f"free_{kind}_tokens", 0) if kind != "requests" else line["free_requests"], quantity
            )
            amount = _priced(line, kind, quantity - free)
            kinds[name, kind] = quantity, free, amount
            if kind != "requests" and quantity > free:
                part = max(min(_quantity(line, kind, of_batches), quantity - free), 0)
                batch -= amount * part * (100 - card["batch_percent"]) // (100 * (quantity - free))
    by_line: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for adapter, hours in residency.items():
        name, price = _residency_line(card, adapter)
        if price:
            by_line[name][adapter] = hours
    resident = {
        name: (by_line[name], sum(int(hours * _residency_line(card, adapter)[1] * UNIT / 1000)
                                  for adapter, hours in by_line[name].items()))
        for name in lines if name in by_line
    }  # fmt: skip
    before = sum(amount for *_, amount in kinds.values()) + batch + sum(a for _, a in resident.values())
    until = card["discount_until"]
    percent = 0 if until and month > until else card["discount_percent"]
    discount = -(before * percent // 100)
    minimum = max(_units(card["monthly_minimum"]) - before - discount, 0)
    return Charges(card, kinds, resident, batch, discount, minimum)


def _line_for(card: Json, key: tuple[str, ...]) -> str:
    """The most specific line."""
    fitting = [
        line for line in card["lines"]
        if all(line[name] in {None, value} for name, value in zip(SELECTORS, key, strict=True))
    ]  # fmt: skip
    best = max(fitting, key=lambda line: [line[name] is not None for name in SELECTORS], default=None)
    return "" if best is None else best["name"]


def _residency_line(card: Json, adapter: str) -> tuple[str, Fraction]:
    for line in card["lines"]:
        if line["adapter"] == adapter and line["residency_per_adapter_hour"] is not None:
            return line["name"], Fraction(line["residency_per_adapter_hour"])
    return "", Fraction(card["residency_per_adapter_hour"])


def _kinds(line: Json) -> list[str]:
    """Which have a price: tokens always do, reasoning only if it has its own."""
    per_request = Fraction(line["per_request"]) or any(t["kind"] == "requests" for t in line["tiers"])
    absent = {
        name
        for name, there in (("reasoning", line["reasoning_per_million"]), ("requests", per_request))
        if not there
    }
    return [kind for kind in KINDS if kind not in absent]


def _quantity(line: Json, kind: str, quantities: Counter[str]) -> int:
    own = kind == "output" and line["reasoning_per_million"] is not None
    return quantities[kind] - (quantities["reasoning"] if own else 0)


def _priced(line: Json, kind: str, quantity: int) -> int:
    """With its tiers."""
    per = 1 if kind == "requests" else 10**6
    name = "per_request" if kind == "requests" else f"{kind}_per_million"
    steps = [(0, Fraction(line[name]))]
    steps += sorted(
        (tier["above"], Fraction(tier["price"])) for tier in line["tiers"] if tier["kind"] == kind
    )
    if line["tier_mode"] == "volume":
        price = [price for above, price in steps if above < max(quantity, 1)][-1]
        return _exact(quantity * price / per)
    ends = [*(above for above, _ in steps[1:]), max(quantity, steps[-1][0])]
    amounts = (
        max(0, min(quantity, end) - above) * price / per
        for (above, price), end in zip(steps, ends, strict=True)
    )
    return _exact(sum(amounts, Fraction(0)))


def _exact(amount: Fraction) -> int:
    units = amount * UNIT
    assert units.denominator == 1
    return int(units)


def _units(decimal: str) -> int:
    return _exact(Fraction(decimal))


# Unused time


def allocated(policy: str, time: Mapping[Pool, Counter[str]]) -> dict[tuple[str, Pool], int]:
    """(tenant, pool) → nano-GPU-hours."""
    shares: dict[tuple[str, Pool], int] = {}
    for pool, spent in time.items():
        tenants = {tenant: nano for tenant, nano in spent.items() if tenant and nano > 0}
        weights = dict.fromkeys(tenants, 1) if policy == "even" else tenants
        if policy == "none" or not weights or not spent[""]:
            continue
        shares |= {(tenant, pool): nano for tenant, nano in divided(spent[""], weights).items() if nano}
    return shares


def divided(amount: int, weights: Mapping[Any, int]) -> dict[Any, int]:
    """By largest remainder; ties to the smaller name."""
    total = sum(weights.values())
    exact = {name: Fraction(amount * weight, total) for name, weight in weights.items()}
    return _largest_remainder(exact, amount)


def in_cents(parts: Mapping[Any, int], cents: int) -> dict[Any, int]:
    return _largest_remainder({name: Fraction(part, CENT) for name, part in parts.items()}, cents)


def _largest_remainder(exact: Mapping[Any, Fraction], amount: int) -> dict[Any, int]:
    parts = {name: part.numerator // part.denominator for name, part in exact.items()}
    missing = amount - sum(parts.values())
    assert 0 <= missing <= len(parts)
    for name in sorted(exact, key=lambda name: (parts[name] - exact[name], name))[:missing]:
        parts[name] += 1
    return parts


def cents_of(amount: int) -> int:
    """Half up."""
    return (2 * amount + CENT) // (2 * CENT)


# Manual lines


def manual_lines(listing: Sequence[Json], month: str, days: int) -> dict[str, list[Json]]:
    """Tenant → its lines of a month that has so many days: (kind, number, cents, days that are charged)."""
    lines: defaultdict[str, list[Json]] = defaultdict(list)
    for line in listing:
        if line["state"] != "approved" or line["kind"] == "end":
            continue
        cents = int(Fraction(line["amount"]) * 100)
        if line["kind"] != "fee":
            if line["month"] == month:
                sign = -1 if line["kind"] in {"credit", "refund"} else 1
                lines[line["tenant"]].append((line["kind"], line["id"], sign * cents, 0))
            continue
        ends = [line["ends"], *(end["ends"] for end in listing if end["fee"] == line["id"])]
        first = max(line["begins"], f"{month}-01")
        last = min([f"{month}-{days:02}", *filter(None, ends)])
        charged = int(last[-2:]) - int(first[-2:]) + 1 if first <= last and first[:7] == month else 0
        if charged and line["prorated"] and charged < days:
            lines[line["tenant"]].append(
                ("fee", line["id"], (2 * cents * charged + days) // (2 * days), charged)
            )
        elif charged:
            lines[line["tenant"]].append(("fee", line["id"], cents, 0))
    return lines


# Statements


class Books(NamedTuple):
    """What months are closed with."""

    cards: Cards
    tenants: Sequence[str]
    policies: Mapping[str, str]
    """Month → how its unused time is allocated."""
    before: Mapping[str, Usage]
    """Month → what was known of it when the last month was closed."""
    now: Mapping[str, Usage]
    """Likewise when this month is closed."""


Entry = tuple[str, ...]
"""Tenant, kind, adapter, GPU type, region, purchase model, whether it is a correction, and for shares the month
that it corrects."""


def statements_of(month: str, books: Books, manual: Mapping[str, Sequence[Json]]) -> dict[str, Json]:
    """By tenant. What is zero is left out of lines and corrections. `manual`: what people added."""
    entries, changed = _entries(month, books)
    owing = {name for name in books.tenants if _owes(books, name, month)}
    own: dict[str, dict[Entry, Counter[str]]] = {name: {} for name in owing}
    for entry, amounts in sorted(entries.items()):
        if entry[0]:
            own.setdefault(entry[0], {})[entry] = amounts
    billed = {tenant: sum(_billed(mine).values()) for tenant, mine in own.items()}
    total_cost = sum(amounts["cost"] for entry, amounts in entries.items() if entry[1] != "allocated")
    retries = sum(amounts["cost"] for entry, amounts in entries.items() if entry[1] == "retry_waste")
    parts = {("tenant", tenant): cost for tenant, cost in billed.items()}
    parts |= {("", "retry_waste"): retries, ("", "unallocated"): total_cost - retries - sum(billed.values())}
    cents = in_cents(parts, cents_of(total_cost))
    statements: dict[str, Json] = {}
    for tenant in sorted({*own, *manual}):
        mine = own.get(tenant, {})
        stated = cents.get(("tenant", tenant), 0)
        of_lines = in_cents(_billed(mine), stated)
        statements[tenant] = {
            "cost": billed.get(tenant, 0),
            "amount_cents": stated,
            "lines": {
                entry[1:]: ({name: n for name, n in amounts.items() if n}, of_lines.get(entry))
                for entry, amounts in mine.items()
            },
            "charges": _charged(tenant, month, books, billed[tenant], changed.get(tenant, {}))
            if tenant in own
            else None,
            "manual": [*manual.get(tenant, ())],
        }
    return statements


def _owes(books: Books, tenant: str, month: str) -> bool:
    return books.cards.owes_without_usage(tenant, month, books.now[month].residency.get(tenant, {}))


def _billed(entries: Mapping[Entry, Counter[str]]) -> dict[Entry, int]:
    return {entry: a["cost"] for entry, a in entries.items() if entry[1] in {"usage", "allocated"}}


def _entries(month: str, books: Books) -> tuple[dict[Entry, Counter[str]], dict[str, Counter[str]]]:
    """All lines of a month, and tenant → corrected month → what changes in its cost."""
    entries: defaultdict[Entry, Counter[str]] = defaultdict(Counter)
    changed: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name, usage in books.now.items():
        earlier = books.before.get(name, NOTHING) if name < month else NOTHING
        correction = "correction" if name < month else ""
        for key in usage.lines.keys() | earlier.lines.keys():
            change = _difference(usage.lines.get(key), earlier.lines.get(key))
            if any(change.values()):
                entries[(*key, correction, "")].update(change)
                if correction and key[1] == "usage":
                    changed[key[0]][name] += change["cost"]
        policy = books.policies[name]
        shares, given = allocated(policy, usage.time), allocated(policy, earlier.time)
        for tenant, pool in shares.keys() | given.keys():
            nano = shares.get((tenant, pool), 0) - given.get((tenant, pool), 0)
            cost = _exact(nano * pool[3] / UNIT)
            corrects = name if correction else ""
            entries[tenant, "allocated", "", *pool[:3], correction, corrects].update(nano=nano, cost=cost)
            if correction and nano:
                changed[tenant][name] += cost
    return {entry: a for entry, a in entries.items() if any(a.values())}, changed


def _difference(new: Counter[str] | None, old: Counter[str] | None) -> Counter[str]:
    change = Counter(new or {})
    change.subtract(old or {})
    return change


def _charged(tenant: str, month: str, books: Books, cost: int, changed: Mapping[str, int]) -> Json | None:
    """By rate card; None: neither this month nor what is corrected has one."""
    card = books.cards.card(tenant, month)
    by_card = {name: then for name in changed if (then := books.cards.card(tenant, name)) is not None}
    if card is None and not by_card:
        return None
    current = None if card is None else _by_card(card, tenant, month, books, books.now[month])
    own = {"cost": cost - sum(changed.values())}
    parts = own if current is None else current.parts
    for name, then in by_card.items():
        known, earlier = (
            _by_card(then, tenant, name, books, state[name]) for state in (books.now, books.before)
        )
        parts[f"priced {name}"] = known.amount - earlier.amount
    parts |= {f"cost {name}": change for name, change in changed.items() if name not in by_card}
    amount = sum(parts.values())
    cents = in_cents(parts, cents_of(amount))
    return {
        "card": None if card is None else (card["name"], card["valid_from"]),
        "exact": amount,
        "amount_cents": cents_of(amount),
        "corrections": {
            name.partition(" ")[2]: (part, cents[name])
            for name, part in parts.items()
            if " " in name and part
        },
        "lines": [("cost", None, own["cost"], cents["cost"])]
        if current is None
        else [*_lines(current, cents)],
    }


def _by_card(card: Json, tenant: str, month: str, books: Books, usage: Usage) -> Charges:
    """Without usage, only who has an assignment of its own pays the minimum."""
    used, residency = usage.used.get(tenant, {}), usage.residency.get(tenant, {})
    due = _owes(books, tenant, month) or any(
        any(amounts.values()) for key, amounts in usage.lines.items() if key[:2] == (tenant, "usage")
    )
    charges = charges_of(card, month, used, residency)
    return charges if due else charges._replace(minimum=0)


def _lines(charges: Charges, cents: Mapping[str, int]) -> Iterable[tuple[Any, ...]]:
    """(SKU, quantity, exact amount, cents)."""
    order = {key: n for n, key in enumerate(charges.kinds)}
    of_kinds = in_cents({n: charges.kinds[key][2] for key, n in order.items()}, cents["tokens"])
    for (line, kind), (quantity, free, amount) in charges.kinds.items():
        if quantity or not line:
            sku = "/".join(filter(None, (SKUS[kind], line)))
            yield sku, (quantity, free), amount, of_kinds[order[line, kind]]
    resident = {n: amount for n, (_, amount) in enumerate(charges.residency.values())}
    of_resident = in_cents(resident, cents.get("residency", 0))
    for n, (line, (hours, amount)) in enumerate(charges.residency.items()):
        yield "/".join(filter(None, ("adapter-residency", line))), hours, amount, of_resident[n]
    for name, sku in (("batch", "batch-discount"), ("discount", "discount"), ("minimum", "monthly-minimum")):
        if charges.parts.get(name):
            yield sku, None, charges.parts[name], cents[name]
