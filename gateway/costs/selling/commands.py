"""florin rate-card …"""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import PriceYes, Session, command, post_price
from gateway.costs.selling.schemas import Assignment, CardLine, NewRateCard, RateCard, RateCards
from gateway.declarative.commands.fleet_file import read_card

app = typer.Typer()

_PATH = "/finance/v1/rate-cards"
From = Annotated[str | None, typer.Option("--from", help="First month, like 2026-11. Default: this month.")]
TenantName = Annotated[
    str | None, typer.Argument(metavar="[TENANT]", help="The tenant. Or --default.", show_default=False)
]
File = Annotated[
    str | None,
    typer.Option(
        "--file",
        "-f",
        help="YAML or JSON with the card's fields, lines and tiers, as in a fleet file; - is stdin. Options "
        "take precedence.",
        show_default=False,
    ),
]
Default = Annotated[
    bool, typer.Option("--default", help="For every tenant without an assignment of its own.")
]


@command(app, "add")
@with_options(NewRateCard, all_optional=True)
def add(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the card, for example standard.")],
    *,
    changes: Json,
    file: File = None,
    yes: PriceYes = False,
) -> None:
    """Add a rate card, or a new version of it: what customers pay per million tokens, by month.

    Prices have up to 6 decimal places. Nothing is edited: a version is valid until the card's next one, and
    closed months keep their prices. Prices for single models, adapters or GPU types (lines) and tiers are in
    a file.

    Example: florin rate-card add standard --input 0.60 --cached 0.06 --output 2.40 --from 2026-11
    """
    card = {} if file is None else read_card(file)
    if (other := card.get("name", name)) != name:
        raise UsageError(f"{file} has a rate card {other!r}, not {name!r}.")
    if file is None and not {"input_per_million", "output_per_million"} <= changes.keys():
        raise UsageError("Give --input and --output, or a --file.")
    session.result(post_price(session, _PATH, {**card, **changes, "name": name}, RateCard, yes=yes), _added)


def _added(card: RateCard) -> None:
    currency, resident = clean(card.currency), card.residency_per_adapter_hour
    say(
        f"Rate card {clean(card.name)} from {clean(card.valid_from)}, per million tokens: "
        f"{_prices(card.model_copy(update={'tiers': (), 'per_gpu_hour': '0'}))} {currency}"
        + (f"; batches at {card.batch_percent} %" if card.batch_percent != 100 else "")
        + (f"; {clean(resident)} {currency} per adapter-hour." if Decimal(resident) else ".")
    )
    if Decimal(card.per_gpu_hour):
        say(f"  {clean(card.per_gpu_hour)} {currency} per GPU-hour of dedicated engines.")
    for tier in _tiers(card):
        say(f"  {tier}.")
    for line in card.lines:
        say(f"  {clean(line.name)}, for {clean(_use(line))}: {_prices(line)}.")
    if card.discount_percent:
        end = f" until {clean(card.discount_until)}" if card.discount_until else ""
        say(f"  {card.discount_percent} % off everything{end}.")


def _prices(prices: RateCard | CardLine) -> str:
    """In words."""
    kinds = {
        "input": prices.input_per_million,
        "cached input": prices.cached_per_million,
        "output": prices.output_per_million,
        "reasoning": prices.reasoning_per_million,
    }
    words = [f"{clean(price)} {kind}" for kind, price in kinds.items() if price is not None]
    if Decimal(prices.per_request):
        words.append(f"{clean(prices.per_request)} per request")
    if prices.per_gpu_hour is not None and Decimal(prices.per_gpu_hour):
        words.append(f"{clean(prices.per_gpu_hour)} per GPU-hour")
    return ", ".join((*words, *_tiers(prices)))


def _tiers(prices: RateCard | CardLine) -> list[str]:
    scope = " (then for all)" if prices.tier_mode == "volume" else ""
    return [f"{clean(t.price)} {_WORDS[t.kind]} above {t.above:,}{scope}" for t in prices.tiers]


_WORDS = {
    "input": "input",
    "cached": "cached input",
    "output": "output",
    "reasoning": "reasoning",
    "requests": "per request",
}


def _use(line: CardLine) -> str:
    """What a line is for."""
    tier = "batches" if line.service_tier else None
    return ", ".join(filter(None, (line.adapter, line.base_model, line.task, line.gpu_type, tier)))


@command(app, "list")
def list_(
    session: Session,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only the cards of this tenant.")] = None,
) -> None:
    """List the rate cards with all their versions, and who has which. A customer's key sees its own.

    Example: florin rate-card list --tenant acme
    """
    session.result(session.api.get(_PATH, RateCards, {"tenant": tenant}), _people)


def _people(cards: RateCards) -> None:
    if not cards.data:
        note("No rate cards yet: florin rate-card add NAME --input … --output …")
        return
    columns = (
        "rate card", "from", "input", "cached", "output", "batches", "adapter-hour", "minimum", "currency",
        "free tokens", "recorded", "reason",
    )  # fmt: skip  # one name a line says no more
    rows = [
        (
            c.name, c.valid_from, c.input_per_million, c.cached_per_million,
            c.output_per_million, f"{c.batch_percent} %", c.residency_per_adapter_hour,
            c.monthly_minimum, c.currency, _free(c), c.recorded_at[:10], c.reason,
        )
        for c in cards.data
    ]  # fmt: skip  # as above
    show(table(columns, rows, right=columns[2:8]))
    _lines(cards)
    if cards.assignments:
        show(
            table(
                ("tenant", "rate card", "from", "recorded"),
                [
                    (
                        a.tenant or "(all others)",
                        "ended: tenant removed" if a.ended else a.card or "none: cost",
                        a.valid_from,
                        a.recorded_at[:10],
                    )
                    for a in cards.assignments
                ],
            )
        )
    else:
        note("No tenant has a rate card yet: florin rate-card assign TENANT --card NAME")
    note("Prices are per million tokens or adapter-hour. Of two rows for the same month, the later counts.")


def _lines(cards: RateCards) -> None:
    """What of the cards does not fit into the first table."""
    columns = ("rate card", "from", "line", "for", "prices", "free", "adapter-hour")
    rows: list[tuple[str | None, ...]] = [
        (
            c.name, c.valid_from, line.name, _use(line), _prices(line), _free(line),
            line.residency_per_adapter_hour,
        )
        for c in cards.data
        for line in c.lines
    ]  # fmt: skip  # a row
    rows += [
        (c.name, c.valid_from, None, "all else", _prices(c), None, None)
        for c in cards.data
        if c.tiers or Decimal(c.per_request) or c.reasoning_per_million is not None
    ]
    if rows:
        show(table(columns, rows))
    for c in cards.data:
        if c.discount_percent:
            end = f" until {clean(c.discount_until)}" if c.discount_until else ""
            note(f"Discount by {clean(c.name)} from {clean(c.valid_from)}: {c.discount_percent} %{end}.")


def _free(card: RateCard | CardLine) -> str | None:
    kinds = {
        "input": card.free_input_tokens,
        "cached": card.free_cached_tokens,
        "output": card.free_output_tokens,
        "requests": card.free_requests,
    }
    return ", ".join(f"{tokens:,} {kind}" for kind, tokens in kinds.items() if tokens) or None


@command(app, "assign")
def assign(
    session: Session,
    tenant: TenantName = None,
    *,
    card: Annotated[str, typer.Option(help="Name of the rate card.")],
    default: Default = False,
    valid_from: From = None,
) -> None:
    """Assign a rate card to a tenant, or to every tenant without an assignment of its own.

    The tenant's statements then show prices instead of costs, from that month on.

    Example: florin rate-card assign acme --card standard --from 2026-11
    """
    _assign(session, tenant, card, default=default, valid_from=valid_from)


@command(app, "unassign")
def unassign(
    session: Session, tenant: TenantName = None, *, default: Default = False, valid_from: From = None
) -> None:
    """End an assignment: from that month on, the tenant pays what its usage cost. Also of a tenant that was
    removed.

    Example: florin rate-card unassign acme --from 2026-12
    """
    _assign(session, tenant, None, default=default, valid_from=valid_from)


def _assign(
    session: Session, tenant: str | None, card: str | None, *, default: bool, valid_from: str | None
) -> None:
    if (tenant is None) != default:
        raise UsageError("Name either a tenant or --default.")
    body: Json = {"tenant": tenant, "card": card}
    if valid_from is not None:
        body["valid_from"] = valid_from
    session.result(session.api.post(f"{_PATH}/assignments", body, Assignment), _assigned)


def _assigned(assignment: Assignment) -> None:
    who = clean(assignment.tenant or "Every tenant without an assignment of its own")
    what = f"by rate card {clean(assignment.card)}" if assignment.card else "what its usage cost"
    say(f"{who} pays {what} from {clean(assignment.valid_from)}.")
