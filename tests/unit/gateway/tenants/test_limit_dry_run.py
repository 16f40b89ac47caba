"""What limits would have done: the replay of past requests, and how it reads them from the ledger."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from gateway.errors import FlorinError
from gateway.metering.ledger.ledger import Ledger
from gateway.tenants.directory import Tenant
from gateway.tenants.limits.replay import PastRequest, Replay
from gateway.tenants.operations.limit_dry_run import replayed
from gateway.tenants.terms import LimitRule, rule_of
from gateway.units import HOUR
from tests.support.limited import Workers, call
from tests.unit.gateway.costs.selling.cards import sell
from tests.unit.gateway.costs.selling.sold import OCTOBER, attempt

SECOND = 1_000_000
TENANT = Tenant("acme", base_access=False, created=0)


def past(
    second: float, *, user: str = "ann", tokens: int = 10, lasts: float = 1, **fields: str
) -> PastRequest:
    began = OCTOBER + int(second * SECOND)
    request = PastRequest(
        began, began + int(lasts * SECOND), "k1", "acme/chat", user, "", (1, tokens, 1000 * tokens)
    )
    return request._replace(**fields)


@pytest.mark.parametrize(
    ("text", "requests", "refused"),
    [
        ("requests/hour=2", [past(0), past(1), past(2), past(3600)], {"": 1}),
        ("tokens/hour=15", [past(0), past(1), past(2)], {"": 1}),  # what is left is given to one
        ("money/day=0.000011", [past(0), past(1), past(2)], {"": 1}),
        ("requests/minute=2", [past(0), past(1), past(2), past(31)], {"": 1}),
        ("concurrent=1", [past(0, lasts=5), past(4), past(5)], {"": 1}),
        ("requests/rolling-hour=1", [past(1), past(3600), past(3720), past(3721)], {"": 2}),
        ("requests/total=1", [past(0), past(86_400)], {"": 1}),
        ("user:requests/hour=1", [past(0), past(1), past(2, user="bob"), past(3, user="")], {"ann": 1}),
        ("user/bob:requests/hour=1", [past(0), past(1), past(2, user="bob")], {}),
        ("adapter/chat:requests/hour=1", [past(0), past(1), past(2, adapter="bolt/chat")], {"acme/chat": 1}),
        ("key:requests/hour=1", [past(0), past(1), past(2, key="k2")], {"k1": 1}),
    ],
)
def test_what_a_limit_would_have_refused(text: str, requests: list[PastRequest], refused: dict[str, int]):
    replay = Replay(rule_of(text), "acme", "UTC")
    for request in requests:
        replay.add(request)
    assert replay.refused == refused


def test_the_rest_of_a_request_that_began_is_counted_and_not_refused():
    replay = Replay(rule_of("tokens/hour=10"), "acme", "UTC")
    for request in (past(0), past(1)._replace(used=(0, 5, 0))):
        replay.add(request)
    assert (replay.requests, replay.refused) == (1, {})


@pytest.mark.parametrize("text", ["requests/day=7", "tokens/5h=95", "user:tokens/hour=25"])
async def test_one_after_another_it_refuses_what_the_limiter_refuses(text: str):
    rule = rule_of(text)
    workers = Workers(replace(TENANT.limits, rules=(rule,)), count=1)
    replay = Replay(rule, "acme", "UTC")
    for _ in range(12):
        replay.add(past(0)._replace(began=workers.ms * 1000, ended=workers.ms * 1000))
        with contextlib.suppress(FlorinError):
            grant = await workers.enter(0, replace(call(10, 0), end_user="ann"))
            grant.count(10, 0, 0, choices=1)
            grant.settle()
        await workers.pass_time(1000)
        assert replay.refused.total() == len(workers.refusals.seen)
    assert workers.refusals.seen


def test_sessions_are_in_no_record():
    with pytest.raises(ValueError, match="sessions"):
        Replay(rule_of("requests/session=1"), "acme", "UTC")


def fill(ledger: Ledger) -> None:
    sell(ledger, "acme", input_micros=10, output_micros=30)
    records = [attempt(f"r{number}", "acme", OCTOBER + number * SECOND) for number in range(6)]
    ledger.insert([record._replace(end_user="ann" if n % 2 else "bob") for n, record in enumerate(records)])


def tried(ledger: Ledger, *rules: LimitRule, seconds: float = 60.0):
    return replayed(ledger, rules, TENANT, [("acme", OCTOBER)], OCTOBER + HOUR, seconds)


def test_the_ledgers_records_are_replayed_and_priced_by_card(ledger_with):
    ledger = ledger_with(fill)
    counts = ("user:requests/day=2", "tokens/day=1", "money/day=9000000", "money/day=0.000001")
    users, tokens, rich, poor = tried(ledger, *map(rule_of, counts))
    assert (users.requests, users.would_refuse, users.consumers, users.consumers_refused) == (6, 2, 2, 2)
    assert {(name.name, name.would_refuse) for name in users.most_refused} == {("ann", 1), ("bob", 1)}
    assert (tokens.would_refuse, rich.would_refuse, poor.would_refuse) == (5, 0, 5)
    assert users.until == OCTOBER + HOUR


def test_a_replay_that_takes_too_long_says_how_far_it_got(ledger_with):
    [result] = tried(ledger_with(fill), rule_of("requests/day=2"), seconds=0)
    assert (result.requests, result.until) == (0, OCTOBER)
