"""Top-ups by a payment provider's webhook."""

from __future__ import annotations

import hashlib
import hmac
import json

import pytest

from gateway.config import SettingsError, load_settings
from gateway.costs.credits.store import end_grant
from gateway.costs.credits.top_ups import is_payment, payment_of, read_event
from gateway.units import MICRO
from tests.unit.gateway.costs.selling.sold import NOW, fill

TOP_UPS = "/finance/v1/credits/top-ups"
SECRET = "whsec_0123456789abcdef0123456789abcdef"
SETTINGS = {
    "top_up_scheme": "stripe",
    "top_up_secret": SECRET,
    "top_up_fields": "id=id, tenant=data.object.metadata.tenant, currency=data.object.currency, "
    "minor_amount=data.object.amount_subtotal",
    "top_up_when": "type=checkout.session.completed",
}


def event(name="evt_1", tenant="acme", amount=5000, currency="usd", kind="checkout.session.completed"):
    session = {"amount_subtotal": amount, "currency": currency, "metadata": {"tenant": tenant}}
    return {"id": name, "type": kind, "data": {"object": session}}


@pytest.fixture
def contents():
    return fill


@pytest.fixture
def now():
    return lambda: NOW


@pytest.fixture
def post(client_for, installed):
    installed.settings = load_settings(**SETTINGS)

    async def run(body, *, secret=SECRET, age=0):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent_at = NOW // MICRO - age
        digest = hmac.new(secret.encode(), b"%d.%b" % (sent_at, content), hashlib.sha256).hexdigest()
        async with client_for() as client:
            headers = {"stripe-signature": f"t={sent_at},v1={digest}"}
            return await client.post(TOP_UPS, content=content, headers=headers)

    return run


async def get(client_for, path):
    async with client_for() as client:
        return (await client.get(f"/finance/v1/{path}")).json()["data"]


def actions(ledger):
    with ledger.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql(
            "SELECT actor, action, subject FROM audit_log WHERE action LIKE 'credit.%' ORDER BY at, id"
        )]  # fmt: skip


async def test_a_payment_is_granted_once(post, client_for, installed):
    answers = [await post(event()), await post(event(), age=20), await post(event(kind="invoice.paid"))]
    end_grant(installed.ledger, 1, "", now=NOW, actor="")
    answers.append(await post(event(), age=30))
    assert [answer.json() for answer in answers] == [
        {"grant": 1},
        {"grant": 1},
        {"grant": None},
        {"grant": 1},
    ]
    [grant] = await get(client_for, "credits")
    assert (grant["tenant"], grant["amount"], grant["reason"]) == ("acme", "50.00", "Payment evt_1")
    assert actions(installed.ledger) == [("webhook:top-up", "credit.grant", "acme")]


async def test_a_payment_that_cannot_be_granted_is_not_lost(post, client_for, installed):
    await post(event())
    refused = {
        "tenant": event("evt_2", tenant="acmee"),
        "currency": event("evt_3", currency="eur"),
        "amount": event("evt_4", amount=0),
        "id": event(None),
        "body": b'["evt_5"]',
        None: event(amount=7),  # the same event with other terms
    }
    for param, body in refused.items():
        answer = await post(body)
        assert (answer.is_error, answer.json()["error"]["param"]) == (True, param)
        await post(body, age=9)
    alerts = await get(client_for, "alerts")
    assert {alert["type"] for alert in alerts} == {"cost.top_up_refused"}
    assert len(alerts) == len(actions(installed.ledger)) - 1 == len(refused)
    told = next(alert["data"] for alert in alerts if alert["data"]["event"] == "evt_2")
    assert told == {
        "event": "evt_2", "tenant": "acmee", "amount": "50.00", "currency": "USD",
        "reason": "There is no tenant 'acmee'.",
    }  # fmt: skip
    assert len(await get(client_for, "credits")) == 1


async def test_what_is_forged_or_old_or_not_expected_leaves_nothing(post, client_for, installed):
    for wrong in ({"secret": SECRET + "0"}, {"age": 301}):
        answer = await post(event(), **wrong)
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_signature")
    installed.settings = load_settings()
    assert (await post(event())).status_code == 404
    assert actions(installed.ledger) == await get(client_for, "alerts") == []


@pytest.mark.parametrize(
    ("paths", "body", "amount"),
    [
        ({"amount": "a"}, '{"a": 12.50}', "12.50"),
        ({"amount": "a"}, '{"a": "12.5"}', "12.5"),
        ({"minor_amount": "a"}, '{"a": "1250"}', "12.50"),
        ({"minor_amount": "a"}, '{"a": 1250, "c": "jpy"}', "1250.00"),
        ({"minor_amount": "a"}, '{"a": 1250, "c": "kwd"}', "1.25"),
        ({"minor_amount": "a"}, '{"a": "12.5"}', "12.5"),
        ({"amount": "a.b"}, '{"a": [1]}', ""),
        ({"amount": "a"}, '{"a": NaN}', ""),
    ],
)
def test_amounts(paths, body, amount):
    event = read_event(body.encode())
    payment = payment_of(event, {"id": "id", "tenant": "t", "currency": "c", **paths})
    assert payment.amount == amount


def test_conditions_hold_for_texts_numbers_and_truth_values():
    event = read_event(b'{"type": "paid", "live": true, "n": 1}')
    assert is_payment(event, [("type", "paid"), ("live", "true"), ("n", "1")])
    assert not is_payment(event, [("type", "paid"), ("live", "false")])


@pytest.mark.parametrize(
    "change",
    [
        {"top_up_secret": "short"},
        {"top_up_scheme": "standard", "top_up_secret": "-" * 40},
        {"top_up_fields": ""},
        {"top_up_fields": "id=id,tenant=t,currency=c"},
        {"top_up_fields": "id=id,tenant=t,currency=c,amount=a,minor_amount=a"},
        {"top_up_fields": "id=id,tenant=t,currency=c,amount"},
        {"top_up_when": "type"},
    ],
)
def test_settings_that_cannot_be_meant(change):
    with pytest.raises(SettingsError, match="FLORIN_TOP_UP"):
        load_settings(**SETTINGS | change)
