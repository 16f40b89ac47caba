"""What limits would have done with the requests of the last days."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import or_, select

from gateway.costs.price_list import PriceList
from gateway.dataplane.request import Sold
from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import Ledger
from gateway.metering.ledger.schema import of_tenant, usage
from gateway.metering.records import BATCH, CONTINUED, task_of
from gateway.operations.state import State
from gateway.tenants.directory import Tenant
from gateway.tenants.limits.replay import PastRequest, Replay
from gateway.tenants.schemas.limit_dry_run import DryRunLimit, LimitDryRun, LimitsToTry, Refused
from gateway.tenants.terms import Level, LimitRule, rules_of
from gateway.units import DAY

SECONDS: Final = 10.0
"""For a replay, which stops after it and says how far it got."""
_PAGE: Final = 5000
_CHECKED: Final = 100
"""Requests between two looks at the clock."""
_NAMED: Final = 5
"""Consumers that the answer names for each limit."""


async def dry_run(state: State, tenant: Tenant, body: LimitsToTry) -> LimitDryRun:
    """Raises FlorinError for a limit that cannot be tried, and LedgerUnavailableError."""
    rules = body.rules or tuple(rules_of(tenant.limits, tenant.budget))
    for rule in rules:
        _replay(rule, tenant)
    await state.meter.flush()
    now = state.clock.now()
    start = now - body.days * DAY
    members = [(member.name, max(start, member.created)) for member in state.directory.members(tenant.name)]
    own = [(tenant.name, max(start, tenant.created))]
    together = [rule for rule in rules if rule.level is Level.ORGANIZATION]
    alone = [rule for rule in rules if rule.level is not Level.ORGANIZATION]
    limits: list[DryRunLimit] = []
    for some, since in ((alone, own), (together, members)):
        if some:
            limits += await state.ledger_process.run(replayed, some, tenant, since, now)
    return LimitDryRun(tenant=tenant.name, start=start, end=now, limits=tuple(limits))


def replayed(
    ledger: Ledger,
    rules: Sequence[LimitRule],
    tenant: Tenant,
    since: Sequence[tuple[str, int]],
    now: int,
    seconds: float = SECONDS,
) -> list[DryRunLimit]:
    """`since`: the tenants whose requests count, and from when on. Blocks. Raises LedgerUnavailableError."""
    replays, until = [_replay(rule, tenant) for rule in rules], now
    deadline = time.monotonic() + seconds
    for number, request in enumerate(_requests(ledger, since, now)):
        if number % _CHECKED == 0 and time.monotonic() >= deadline:
            until = request.began
            break
        for replay in replays:
            replay.add(request)
    return [_result(replay, until) for replay in replays]


def _result(replay: Replay, until: int) -> DryRunLimit:
    return DryRunLimit(
        limit=str(replay.rule),
        requests=replay.requests,
        would_refuse=replay.refused.total(),
        consumers=replay.consumers,
        consumers_refused=len(replay.refused),
        most_refused=tuple(
            Refused(name=name, would_refuse=count) for name, count in replay.refused.most_common(_NAMED)
        ),
        until=until,
    )


def _replay(rule: LimitRule, tenant: Tenant) -> Replay:
    try:
        return Replay(rule, tenant.name, tenant.timezone)
    except ValueError as error:
        raise FlorinError("invalid_value", f"{error}.", param="rules") from error


def _requests(ledger: Ledger, since: Sequence[tuple[str, int]], now: int) -> Iterator[PastRequest]:
    """What the tenants pay for, by the time at which it began."""
    prices = PriceList(ledger, lambda: now)
    prices.read_all()
    table = usage.c
    columns = (
        table.tenant, table.dispatched, table.ended, table.key_id, table.adapter, table.end_user, table.tag,
        table.base_model, table.service_tier, table.task, table.gpu_type, table.outcome, table.prompt_tokens,
        table.cached_tokens, table.completion_tokens, table.reasoning_tokens,
    )  # fmt: skip
    theirs = [
        of_tenant(tenant) & (table.ended >= start) & (table.dispatched >= start) for tenant, start in since
    ]
    query = select(*columns).where(or_(*theirs), table.billable).order_by(table.dispatched, table.id)
    with ledger.read() as connection:
        for row in connection.execute(query.execution_options(yield_per=_PAGE)):
            anew = row.outcome not in CONTINUED  # a continued stream's prompt does not count
            prompt, cached = (row.prompt_tokens, row.cached_tokens or 0) if anew else (0, 0)
            sold = Sold(row.adapter, row.base_model, row.service_tier == BATCH, task_of(row.task))
            price = prices.of(row.tenant, sold, row.gpu_type)
            money = 0
            if price is not None:
                counts = prompt, cached, row.completion_tokens
                money = price.cost(*counts, reasoning=row.reasoning_tokens, requests=int(anew))
            used = int(anew), prompt + row.completion_tokens, money
            user, tag = row.end_user or "", row.tag or ""
            yield PastRequest(row.dispatched, row.ended, row.key_id, row.adapter, user, tag, used)
