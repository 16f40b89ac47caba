"""The arithmetic of limits: estimates, prices, formats, corrections; and what one worker does with its share."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from adapters.errors import StoreUnavailableError
from adapters.store.feed import Event
from adapters.store.protocol.limits import UNKNOWN, Share
from gateway.dataplane.request import COMPLETIONS, Call
from gateway.errors import FlorinError
from gateway.tenants.directory import Key, Role, Tenant, dump
from gateway.tenants.limits import grant as grant_module
from gateway.tenants.limits.allowances import Consumer, allowance, standing_of_tenant
from gateway.tenants.limits.budget_watch import Correction, Observation, correction, fell
from gateway.tenants.limits.grant import UNLIMITED, Grant
from gateway.tenants.limits.needs import (
    COMPLETIONS_OUTPUT,
    FIRST_OUTPUT,
    Bounds,
    OutputHistory,
    TokenPrice,
    check_money,
    need_of,
)
from gateway.tenants.limits.periods import flow_at, period_of
from gateway.tenants.limits.subject_account import Account
from gateway.tenants.limits.wording import duration
from gateway.tenants.terms import (
    NO_BUDGET,
    NO_LIMITS,
    Budget,
    Level,
    LimitRule,
    Limits,
    Measure,
    PrepaidBudget,
    Window,
    rule_of,
    rules_of,
)
from tests.support.limited import START_MS, Workers, call
from tests.support.waiting import PATIENCE_S

PRICE = TokenPrice(150_000_000, 75_000_000, 600_000_000, 900_000_000, 7)


def test_prices_are_exact_and_round_up():
    assert PRICE.cost(1, 1, 0, requests=0) == 75
    assert PRICE.cost(3, 1, 0, requests=0) == 375
    assert PRICE.cost(1_000_000, 0, 1_000_000) == 750_000_007
    assert PRICE.cost(0, 0, 1_000_000, reasoning=500_000, requests=2) == 750_000_014
    assert TokenPrice(1, 1, 1, 1).cost(1, 0, 0) == 1, "rounded up"


def test_a_budget_that_cannot_be_counted_is_refused():
    check_money(NO_LIMITS, Budget(money_per_day=Decimal(9_000_000)))
    too_much = LimitRule(Measure.MONEY, Decimal(9_000_001), Window.WEEK, Level.USER)
    with pytest.raises(FlorinError, match="9,000,000"):
        check_money(Limits(rules=(too_much,)), NO_BUDGET)
    with pytest.raises(FlorinError, match="9,000,000"):
        check_money(NO_LIMITS, Budget(money_per_month=Decimal(9_000_001)))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.02, "20ms"),
        (1, "1s"),
        (8.64, "8.64s"),
        (60, "1m0s"),
        (360, "6m0s"),
        (3661.5, "1h1m1.5s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str):
    assert duration(seconds) == text


def test_a_need_is_the_estimate_and_at_worst_the_bytes():
    need = need_of(call(10, 20, size=70, n=2), OutputHistory(), PRICE)
    assert need.expected == (1, 50, PRICE.cost(10, 0, 40))
    assert need.worst == (1, 110, PRICE.cost(70, 0, 40))


def test_at_worst_a_request_needs_what_its_models_engines_take():
    """Two photos of four megabytes each are no eight million tokens."""
    photos = replace(call(300, None, size=8_000_000, n=2), context=4096)
    assert need_of(photos, OutputHistory(), None).worst[1] == 4096 + 2 * 4096
    prompts = replace(photos, prompts=3, n=1)
    assert need_of(prompts, OutputHistory(), None).worst[1] == 3 * 4096 + 3 * 4096
    short = replace(call(10, 20, size=70), context=4096)
    assert need_of(short, OutputHistory(), None).worst[1] == 70 + 20


@pytest.mark.parametrize(("used", "covered"), [(0, True), (500, True), (990, False)])
def test_near_the_end_of_a_budget_a_workers_share_serves_nothing(used: int, covered: bool):
    """What is left is then counted in the store, for each request, over all workers."""
    terms = allowance(rules_of(NO_LIMITS, Budget(tokens_per_day=1000)), "UTC", 80)
    account = Account("tenant:acme", Consumer("acme", "tenant"), terms, tell=_untold)
    account.report(1, 0, most=1)
    account.hear(share(used, 0, 0), asked_at=math.inf, now=0.0)
    account.holdings[0].free = 1000
    assert account.covers(need_of(call(1, 1), OutputHistory(), None), 0.0) is covered


def _untold(_account: Account) -> asyncio.Task[None]:
    raise AssertionError("nothing is given back")


def test_without_max_tokens_the_need_is_what_the_tenant_is_used_to():
    history = OutputHistory()
    assert need_of(call(10, None), history, None).expected[1] == 10 + FIRST_OUTPUT
    for length in range(1, 65):
        history.learn(length)
    assert 55 <= need_of(call(0, None), history, None).expected[1] <= 60
    completion = replace(call(10, None), endpoint=COMPLETIONS)
    assert need_of(completion, history, None).expected[1] == 10 + COMPLETIONS_OUTPUT


@pytest.mark.parametrize(
    ("bounds", "request_", "sent"),
    [
        (Bounds(None, 20), call(10, 20), 20),
        (Bounds(None, 20), call(10, None), 20),
        (Bounds(None, 20), call(10, None, n=3), 6),
        (Bounds(30, None), call(10, None), 20),
        (Bounds(30, 5), call(10, None), 5),
        (Bounds(None, 20), call(10, 21), "max_output_exceeded"),
        (Bounds(None, 20), call(10, 11, n=2), "max_output_exceeded"),
        (Bounds(None, 2), call(10, None, n=3), "max_output_exceeded"),
        (Bounds(10, None), call(10, None), "context_length_exceeded"),
        (Bounds(30, None), call(10, 21), "context_length_exceeded"),
    ],
)
def test_bounds_refuse_or_are_set_in_the_engines_body(bounds: Bounds, request_, sent):
    request_ = replace(request_, body=dict(request_.body))
    if isinstance(sent, str):
        with pytest.raises(FlorinError) as refused:
            bounds.apply(request_)
        assert (refused.value.code, refused.value.status) == (sent, 400)
    else:
        bounds.apply(request_)
        assert request_.body["max_tokens"] == sent


def test_completions_keep_their_default_if_it_is_lower():
    request = replace(call(10, None), endpoint=COMPLETIONS)
    Bounds(None, 20).apply(request)
    assert "max_tokens" not in request.body
    Bounds(None, 10).apply(request)
    assert request.body["max_tokens"] == 10


@pytest.mark.parametrize(
    ("now", "window", "zone", "start", "end"),
    [
        ("2026-11-22T21:00", Window.DAY, "UTC", "2026-11-22", "2026-11-23"),
        ("2026-11-22T21:59", Window.HOUR, "UTC", "2026-11-22T21:00", "2026-11-22T22:00"),
        ("2026-11-22T21:59", Window.HOUR, "Asia/Kolkata", "2026-11-22T21:30", "2026-11-22T22:30"),
        ("2026-11-22T23:30", Window.DAY, "Europe/Berlin", "2026-11-22T23:00", "2026-11-23T23:00"),
        ("2026-10-25T12:00", Window.DAY, "Europe/Berlin", "2026-10-24T22:00", "2026-10-25T23:00"),
        ("2026-11-22T21:00", Window.WEEK, "UTC", "2026-11-16", "2026-11-23"),
        ("2026-11-22T21:00", Window.WEEK, "Pacific/Auckland", "2026-11-22T11:00", "2026-11-29T11:00"),
        ("2026-12-31T23:59", Window.MONTH, "UTC", "2026-12-01", "2027-01-01"),
        ("2028-02-29T00:00", Window.MONTH, "UTC", "2028-02-01", "2028-03-01"),
        ("2026-12-31T23:59", Window.MONTH, "Europe/Berlin", "2026-12-31T23:00", "2027-01-31T23:00"),
        ("2026-11-22T21:00", Window.FIVE_HOURS, "UTC", "2026-11-22T16:00", "2026-11-22T21:00"),
    ],
)
def test_windows_are_the_timezones(now: str, window: Window, zone: str, start: str, end: str):
    def at(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 1_000_000

    assert period_of(window, at(now), zone) == (at(start), at(end))


def rule(text: str) -> LimitRule:
    return rule_of(text)


def share(used: int, shared: int, lapsed: int) -> Share:
    """Of a subject with one budget."""
    return Share((0,), 0, (used,), (0,), (shared,), (lapsed,), 0, 0, wanted=False, due=())


@pytest.mark.parametrize(
    ("before", "least", "most", "found"),
    [
        (share(100, 0, 0), 100, 100, None),
        (share(100, 30, 0), 70, 70, None),
        (share(100, 0, 0), 120, 130, Correction(20, 0)),  # the ledger knows more
        (share(100, 0, 0), 80, 90, None),  # it may only be late
        (share(100, 0, 40), 80, 90, Correction(-10, 40)),
        (share(100, 0, 5), 80, 90, Correction(-5, 5)),  # no more than what silent workers held
        (share(100, 0, 40), 110, 120, Correction(10, 40)),
    ],
)
def test_the_ledger_corrects_what_the_store_counted(before: Share, least: int, most: int, found):
    assert correction(before, 0, least=least, most=most) == found


MIDNIGHT = 1_790_035_200_000_000
NOON = MIDNIGHT + 12 * 3_600_000_000
UNSEEDED = share(UNKNOWN, 0, 0)


@pytest.mark.parametrize(
    ("before", "now", "at", "found"),
    [
        (share(100, 0, 0), share(100, 0, 0), NOON, False),
        (share(100, 50, 0), share(60, 10, 0), NOON, False),  # shares were given back
        (share(100, 0, 0), share(99, 0, 0), NOON, True),
        (share(100, 0, 0), share(120, 30, 0), NOON, True),  # and leased again
        (share(100, 0, 40), share(60, 0, 0), NOON, False),  # corrected by what silent workers held
        (share(100, 0, 40), share(59, 0, 0), NOON, True),
        (share(100, 0, 0), UNSEEDED, NOON, True),
        (UNSEEDED, share(0, 0, 0), NOON, False),
        (share(100, 0, 0), share(0, 0, 0), MIDNIGHT + 4_000_000, False),  # another day
        (share(100, 0, 0), share(0, 0, 0), MIDNIGHT - 1_000_000, False),  # by the store's clock
        (share(100, 0, 0), share(0, 0, 0), MIDNIGHT + 6_000_000, False),  # the store's was late before
        (share(100, 0, 0), share(0, 0, 0), MIDNIGHT + 9_000_000, True),
    ],
)
def test_a_store_that_has_forgotten_what_was_used(before: Share, now: Share, at: int, found):
    earlier = at - 5_000_000
    flows = [(flow_at("tokens", Window.DAY, "UTC", moment),) for moment in (earlier, at)]
    assert fell(Observation(earlier, flows[0], before), Observation(at, flows[1], now)) is found


# -- one worker


async def test_no_call_of_the_store_while_the_share_suffices():
    workers = Workers(Limits(requests_per_minute=6000, tokens_per_minute=10**6, concurrent=100), count=1)
    for _ in range(10):
        for _ in range(8):
            (await workers.enter(0, call())).settle()
        await workers.pass_time(200)
    workers.stores[0].lose = ["request"] * 100  # any call would fail
    for _ in range(5):
        assert workers.limiters[0].enter(workers.tenant, workers.key, call()) is not None


async def test_a_request_without_limits_takes_nothing():
    workers = Workers(count=1)
    assert await workers.enter(0, call()) is UNLIMITED
    assert not workers.limiters[0].counters.accounts


async def test_a_flood_of_refusals_calls_the_store_a_bounded_number_of_times():
    workers = Workers(Limits(requests_per_minute=6), count=1)
    calls = 0
    lease = workers.store.lease

    async def counted(*arguments, **how):
        nonlocal calls
        calls += 1
        return await lease(*arguments, **how)

    workers.store.lease = counted
    refused = 0
    for number in range(1000):
        try:
            await workers.enter(0, call(text=str(number)))
        except FlorinError as error:
            refused += error.retry_after >= 1
    assert refused == 994
    assert calls <= 6 + 25


async def test_a_flood_is_refused_before_its_bodies_are_read():
    workers = Workers(Limits(requests_per_minute=6), count=1)
    [limiter] = workers.limiters
    limiter.check_rate(workers.key)  # nothing is known of it yet
    for number in range(100):
        with contextlib.suppress(FlorinError):
            await workers.enter(0, call(text=str(number)))
    with pytest.raises(FlorinError) as refused:
        limiter.check_rate(workers.key)
    assert refused.value.code == "rate_limit_exceeded"
    workers.ms += 1000 * refused.value.retry_after
    limiter.check_rate(workers.key)

    workers = Workers(Limits(tokens_per_minute=6), count=1)
    [limiter] = workers.limiters
    for number in range(100):
        with contextlib.suppress(FlorinError):
            await workers.enter(0, call(text=str(number)))
    limiter.check_rate(workers.key)  # how many tokens it needs, its body says


async def test_when_the_store_is_away_shares_last_for_their_time_and_then_the_setting_decides():
    for how in ("open", "closed"):
        workers = Workers(Limits(requests_per_minute=6000), count=1, limits_when_store_away=how)
        for _ in range(30):
            (await workers.enter(0, call())).settle()
            await workers.pass_time(100)
        workers.store.away = True
        assert workers.limiters[0].enter(workers.tenant, workers.key, call()) is not None
        workers.ms += 3000
        assert workers.limiters[0].enter(workers.tenant, workers.key, call()) is None
        if how == "open":
            for _ in range(50):
                grant = await workers.enter(0, call())
                grant.count(1, 0, 1, choices=1)
                grant.settle()
        else:
            with pytest.raises(FlorinError) as refused:
                await workers.enter(0, call())
            assert (refused.value.code, refused.value.retry_after) == ("store_unavailable", 1)
        workers.store.away = False
        workers.ms += 1000
        await workers.limiters[0].counters.flush()
        seen = (await workers.share())["requests_per_minute"]
        assert (seen.used[0] >= 50) is (how == "open"), "what was used meanwhile is reported"


async def test_while_the_store_hangs_one_request_waits_for_it_and_the_others_are_served():
    workers = Workers(Limits(requests_per_minute=6000), count=1)
    calls, failed = 0, asyncio.Event()

    async def hang(*_: object, **__: object) -> None:
        nonlocal calls
        calls += 1
        await failed.wait()
        raise StoreUnavailableError("the test says so")

    workers.stores[0].lease = hang
    first = [asyncio.create_task(workers.enter(0, call())) for _ in range(20)]
    await asyncio.sleep(0)
    failed.set()
    await asyncio.gather(*first)
    assert calls == 1
    failed.clear()
    workers.ms += 1000
    second = asyncio.create_task(workers.enter(0, call()))
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(workers.enter(0, call()) for _ in range(20)))
    assert (calls, second.done()) == (2, False)
    failed.set()
    await second


async def test_a_place_is_given_back_before_an_answer_ends_though_a_report_is_under_way():
    """Whoever has the answer may ask again, and another worker. The report says that the first still runs."""
    workers = Workers(Limits(concurrent=1), count=2)
    lease, asked, answer = workers.stores[0].lease, asyncio.Event(), asyncio.Event()

    async def slow(*arguments, **how):
        asked.set()
        await answer.wait()
        return await lease(*arguments, **how)

    grant = await workers.enter(0, call())
    workers.stores[0].lease = slow
    reporting = asyncio.create_task(workers.limiters[0].counters.flush())
    await asked.wait()
    leaving = asyncio.create_task(grant.leave())
    await asyncio.sleep(0)
    answer.set()
    await leaving
    other = await workers.enter(1, call())
    with pytest.raises(FlorinError) as refused:
        await workers.enter(0, call())
    assert refused.value.code == "concurrency_limit_exceeded"
    grant.settle()
    other.settle()
    await reporting
    assert [limiter.counters.accounts["tenant:acme"].running for limiter in workers.limiters] == [0, 0]


async def test_a_store_that_hangs_holds_no_answer_up(monkeypatch):
    monkeypatch.setattr(grant_module, "_LEAVE_SECONDS", 0.01)
    workers = Workers(Limits(concurrent=1), count=1)
    grant = await workers.enter(0, call())
    never = asyncio.Event()
    workers.stores[0].lease = lambda *_, **__: never.wait()
    await grant.leave()
    [task] = asyncio.all_tasks() - {asyncio.current_task()}
    task.cancel()
    await asyncio.wait([task])


async def test_settling_twice_counts_once():
    workers = Workers(budget=Budget(tokens_per_day=10**6), count=1)
    grant = await workers.enter(0, call(10, 20))
    grant.count(11, 0, 3, choices=1)
    grant.settle()
    grant.settle()
    await workers.pass_time(5000)
    seen = (await workers.share())["tokens_per_day"]
    assert (seen.used[0], seen.shared[0]) == (14, 0)


# -- levels, windows, shadow


@pytest.mark.parametrize(
    "text",
    [
        "tokens/day=100000",
        "requests/minute=60",
        "concurrent=4",
        "money/rolling-week=99.5",
        "user:requests/5h=45",
        "adapter/shared/support:concurrent=4",
        "shadow:tag/a:b=c:money/month=50",
        "organization:tokens/total=1",
        "tokens/session=5",
    ],
)
def test_a_limit_is_read_as_it_is_written(text: str):
    assert str(rule(text)) == text


def test_amounts_may_be_short():
    assert rule("tokens/day=5M").amount == 5_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tokens=5",
        "concurrent/day=5",
        "money/minute=5",
        "tokens/day=0",
        "tokens/day=1.5",
        "money/day=9000001",
        "tokens/fortnight=5",
        "key/k1:tokens/day=5",
        "user/\n:tokens/day=5",
        "nobody:tokens/day=5",
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(text: str):
    with pytest.raises(ValueError, match=text[:5] or "MEASURE"):
        rule(text)


def limited(*rules: str, **fields: object) -> Limits:
    return Limits(rules=tuple(rule(text) for text in rules), **fields)


def said_by(user: str | None = None, tag: str | None = None, session: str = "", **how: object) -> Call:
    return replace(call(**how), end_user=user, tag=tag, session=session)


def settled(grant: Grant) -> None:
    """The request has ended."""
    grant.count(1, 0, 1, choices=1)
    grant.settle()


async def refused(entering: Awaitable[Grant]) -> FlorinError:
    with pytest.raises(FlorinError) as error:
        await entering
    return error.value


async def test_each_end_user_has_the_limit_to_itself_and_others_are_not_concerned():
    workers = Workers(limited("user:requests/5h=2"))
    for number in range(2):
        await workers.enter(number, said_by("ann"))
        await workers.enter(number, said_by("bob"))
    error = await refused(workers.enter(0, said_by("ann")))
    assert (error.code, error.retry_after) == ("budget_reserved", 1)
    await workers.enter(0, said_by(None))
    assert workers.refusals.seen == [("acme", "end user requests_per_5h")]


async def test_the_tightest_limit_refuses_and_is_named():
    workers = Workers(
        limited(
            "user:requests/day=1", "tag/batch:requests/day=1", "adapter:requests/day=3", "key:requests/day=5"
        )
    )
    seen = []
    for user, tag, adapter in [
        ("ann", None, "acme/a"),
        ("ann", None, "acme/b"),
        ("bob", "batch", "acme/a"),
        ("carol", "batch", "acme/b"),
        ("dave", "chat", "acme/a"),
        ("erin", "chat", "acme/a"),
        ("erin", "chat", "acme/b"),
        ("frank", "chat", "acme/b"),
        ("grace", "chat", "acme/c"),
    ]:
        try:
            settled(await workers.enter(0, said_by(user, tag), adapter=adapter))
        except FlorinError as error:
            seen.append(error.message.split("'s")[0])
    assert seen == ["This end user", "This tag", "This adapter", "This key"]


async def test_end_users_beyond_the_cap_are_counted_together_and_idle_ones_are_forgotten():
    workers = Workers(limited("user:requests/hour=2"), count=1, max_tenant_users=2)
    for user in ("ann", "bob", "carol", "dave"):
        settled(await workers.enter(0, said_by(user)))
    error = await refused(workers.enter(0, said_by("erin")))
    assert error.message.startswith("This end user's budget of 2 requests per hour is used up")
    settled(await workers.enter(0, said_by("ann")))
    await workers.pass_time(20_000)
    assert workers.limiters[0].counters.accounts == {}
    await refused(workers.enter(0, said_by("ann")))  # the store knows her still


async def test_a_worker_that_forgot_an_end_user_and_meets_her_again_counts_on():
    workers = Workers(limited("user:tokens/day=100"), count=1)
    for _ in range(3):
        grant = await workers.enter(0, said_by("ann", prompt=5, most=5))
        grant.count(20, 0, 10, choices=1)
        grant.settle()
        await workers.pass_time(20_000)
    shares = await workers.share("tenant:acme/user:ann")
    assert shares["tokens_per_day"].used == (90,)


async def test_a_session_has_its_own_budget_named_by_the_body_or_a_header():
    workers = Workers(limited("requests/session=1"), count=1)
    settled(await workers.enter(0, said_by(session="s1")))
    settled(await workers.enter(0, said_by(session="s2")))
    error = await refused(workers.enter(0, said_by(session="s1")))
    assert (error.code, error.retry_after) == ("budget_exhausted", None)
    assert error.message == "This session's budget of 1 requests per session is used up."
    await refused(workers.enter(0, said_by(), headers=[(b"x-florin-session", b"s2")]))
    settled(await workers.enter(0, said_by()))


async def test_a_request_may_have_to_name_its_end_user():
    workers = Workers(Limits(user_required=True), count=1)
    assert await workers.enter(0, said_by("ann")) is UNLIMITED
    error = await refused(workers.enter(0, said_by()))
    assert (error.code, error.status, error.param) == ("user_required", 400, "safety_identifier")


async def test_an_organizations_limit_counts_its_members_together():
    workers = Workers(limited("requests/day=5"), count=1)
    reseller = Tenant(
        "reseller",
        base_access=False,
        created=0,
        limits=limited("organization:requests/day=3", "organization:requests/minute=9"),
    )
    workers.directory.tenants["reseller"] = reseller
    for name in ("acme", "bolt"):
        member = Tenant(name, base_access=False, created=0, organization="reseller")
        workers.directory.tenants[name] = member
        workers.directory.keys[name] = Key(name, name, Role.TENANT, name, 0)
    directory = workers.directory
    directory.generation += 1
    [limiter] = workers.limiters

    async def enter(name: str) -> Grant:
        tenant, key = directory.tenants[name], directory.keys[name]
        return limiter.enter(tenant, key, call()) or await limiter.wait(key, call(), [])

    for name in ("acme", "bolt", "acme"):
        grant = await enter(name)
        grant.count(1, 0, 1, choices=1)
        grant.settle()
    error = await refused(enter("bolt"))
    assert error.message.startswith("This organization's budget of requests per day is used up")
    assert not grant.headers  # how much of it is left is other tenants' business, too
    reseller = replace(reseller, limits=NO_LIMITS)
    directory.apply(Event(1, "tenant", "reseller", dump(reseller)))
    assert await enter("bolt") is UNLIMITED  # within its own limits, of which there are none


async def test_a_limit_in_shadow_refuses_nothing_and_counts_what_it_would_have_refused():
    workers = Workers(limited("shadow:requests/day=3", "shadow:user:concurrent=1", "requests/day=9"), count=1)
    await workers.enter(0, said_by())  # it is counted once the ledger has said what was used before
    await asyncio.gather(*workers.limiters[0].counters._seeding.values())
    running = [await workers.enter(0, said_by("ann")) for _ in range(4)]
    for grant in running:
        settled(grant)
    await workers.pass_time(200)
    for _ in range(4):
        settled(await workers.enter(0, said_by("bob")))
    await refused(workers.enter(0, said_by("ann")))
    await workers.pass_time(200)
    day = START_MS // 86_400_000
    assert await workers.store.refused("acme", [day]) == [
        {"tenant requests_per_day": 5, "end user concurrent": 3}
    ]
    shares = await workers.share("tenant:acme?shadow")
    assert shares["requests_per_day"].used == (3,)


async def test_without_the_store_a_limit_in_shadow_counts_nothing_and_refuses_nothing():
    workers = Workers(limited("shadow:requests/minute=1"), count=1, limits_when_store_away="closed")
    workers.store.away = True
    for _ in range(3):
        await workers.enter(0, call())


def test_credits_are_counted_by_the_months_of_bills_whatever_the_timezone():
    budget = PrepaidBudget(money_per_month=Decimal(5), tokens_per_month=100)
    tenant = Tenant("acme", base_access=True, created=0, budget=budget, timezone="Asia/Tokyo")
    [(_, _, terms)] = standing_of_tenant(tenant)
    november = 1_793_491_200_000_000
    turned = {
        counter.measure
        for counter, before, after in zip(
            terms.counters, terms.flows(november - 1), terms.flows(november), strict=True
        )
        if before != after
    }
    assert turned == {Measure.MONEY}
