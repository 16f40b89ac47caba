"""florin cost budget …"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note, say, show, table
from gateway.commands.session import Session, command
from gateway.costs.forecasting.commands.ahead import BASIS, status, unsaid
from gateway.costs.forecasting.schemas import Budget, Budgets, BudgetState, ChangedBudget, NewBudget
from gateway.schemas.typed_text import parsed
from gateway.units import shown_money

_budgets = typer.Typer(
    no_args_is_help=True,
    help="Monthly budgets for the cost of tenants and of the installation. They warn; to refuse requests, "
    "see florin tenant update.",
)
app = typer.Typer()
app.add_typer(_budgets, name="budget")

_PATH = "/finance/v1/budgets"


@command(_budgets, "set")
@with_options(NewBudget, but=("amount",))
def set_(
    session: Session,
    amount: Annotated[
        str, typer.Argument(metavar="AMOUNT", help="Per UTC month, in the currency of the prices.")
    ],
    *,
    changes: Json,
) -> None:
    """Set the monthly budget of a tenant, or of the whole installation. It applies until another is set.

    Alerts are raised when warn-percent of it is used, when the forecast exceeds it, and when it is reached.

    Example: florin cost budget set 1500 --tenant acme
    """
    try:
        amount = parsed("decimal", amount)
    except ValueError as error:
        raise UsageError(f"AMOUNT: {error}.") from error
    session.result(session.api.put(_PATH, changes | {"amount": amount}, ChangedBudget), _was_set)


def _was_set(body: ChangedBudget) -> None:
    amount = shown_money(body.amount, body.currency)
    say(
        f"{_whose(body)} may cost {amount} {clean(body.currency)} a month from "
        f"{clean(body.first_month)} on; warning at {body.warn_percent} %."
    )
    if not body.changed:
        note("Nothing changed: it was so before.")


@command(_budgets, "remove")
@with_options(NewBudget, only=("tenant", "first_month"))
def remove(session: Session, *, changes: Json) -> None:
    """Remove the budget of a tenant, or of the whole installation, from a month on.

    Example: florin cost budget remove --tenant acme
    """
    session.result(session.api.put(_PATH, changes | {"amount": None}, ChangedBudget), _removed)


def _removed(body: ChangedBudget) -> None:
    if body.changed:
        say(f"{_whose(body)} has no budget from {clean(body.first_month)} on.")
    else:
        note("There was no such budget.")


@command(_budgets, "list")
def list_(
    session: Session,
    *,
    month: Annotated[str | None, typer.Option(help="Month in UTC. Default: this month.")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
) -> None:
    """List the budgets, and the month's cost against them.

    Example: florin cost budget list --month 2026-10
    """
    session.result(session.api.get(_PATH, Budgets, {"month": month, "tenant": tenant}), _listed)


def _listed(body: Budgets) -> None:
    if not body.data:
        note("No budget is set: florin cost budget set AMOUNT --tenant NAME")
        return
    money = partial(shown_money, currency=body.currency)
    rows = [
        (
            _whose(budget), money(budget.amount), money(budget.so_far), _percent(budget.used_percent),
            money(budget.expected), status(budget.status), budget.first_month, BASIS[budget.priced_by],
        )
        for budget in body.data
    ]  # fmt: skip  # as the columns
    columns = (
        "budget of",
        f"{clean(body.currency)} a month",
        "so far",
        "used",
        "expected",
        "status",
        "since",
        "terms",
    )
    show(table(columns, rows, right=columns[1:5]))
    unsaid(body)


def _percent(text: str | None) -> str:
    return "-" if text is None else f"{text} %"


def _whose(body: Budget | BudgetState) -> str:
    return "The installation" if body.tenant is None else clean(body.tenant)
