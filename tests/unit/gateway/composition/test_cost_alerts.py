"""The webhook of alerts: signed, delivered once, and tried again while the receiver fails."""

import base64
import hashlib
import hmac
import json
from types import SimpleNamespace

import pytest
from aiohttp import web

from adapters.store.leader_job import PassFailedError
from gateway.composition import cost_alerts
from gateway.composition.cost_alerts import AlertDelivery
from gateway.config.alerts import SECRET_PREFIX
from gateway.config.settings import SettingsError, load_settings
from gateway.costs.forecasting.alerts import Alert, list_alerts, raise_alerts
from gateway.metering.ledger.ledger import Ledger
from tests.support.waiting import PATIENCE_S

NOW = 1_790_000_000_000_000
KEY = b"k" * 32
SECRET = SECRET_PREFIX + base64.b64encode(KEY).decode()
ALERTS = [Alert(f"id-{n}", NOW + n, "cost.anomaly", "acme", {"subject": "acme/support"}) for n in range(3)]


@pytest.fixture
def filled(tmp_path):
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    with ledger.write() as connection:
        raise_alerts(connection, ALERTS)
    yield ledger
    ledger.close()


@pytest.fixture
async def receiver(monkeypatch):
    """Fails as often as `failures` says, then accepts."""
    monkeypatch.setattr(cost_alerts, "_POST_SECONDS", PATIENCE_S)
    seen = SimpleNamespace(posts=[], failures=0, url="")

    async def hook(request: web.Request) -> web.Response:
        if seen.failures:
            seen.failures -= 1
            return web.Response(status=503)
        seen.posts.append((dict(request.headers), await request.read()))
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/hook", hook)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    seen.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield seen
    await runner.cleanup()


def delivery(ledger, url, private="127.0.0.1"):
    settings = load_settings(cost_webhook=url, cost_webhook_secret=SECRET, source_private=private)
    return AlertDelivery(ledger, SimpleNamespace(now=lambda: NOW + 10), settings)


async def test_alerts_are_delivered_once_in_order_and_signed(filled, receiver):
    deliver = delivery(filled, receiver.url).deliver
    await deliver()
    await deliver()
    assert [json.loads(body)["id"] for _, body in receiver.posts] == ["id-0", "id-1", "id-2"]
    headers, body = receiver.posts[0]
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{mac}"
    assert headers["webhook-timestamp"] == str(NOW // 10**6)
    assert json.loads(body) == ALERTS[0].json()
    assert all(alert["delivered_at"] for alert in list_alerts(filled))


async def test_what_the_receiver_refuses_waits(filled, receiver):
    receiver.failures = 1
    deliver = delivery(filled, receiver.url).deliver
    with pytest.raises(PassFailedError) as refusal:
        await deliver()
    assert receiver.posts == []
    assert str(refusal.value) == "status 503", "a URL may hold a secret"
    await deliver()
    assert len(receiver.posts) == 3


async def test_a_private_address_has_to_be_allowed(filled, receiver):
    with pytest.raises(PassFailedError, match="FLORIN_SOURCE_PRIVATE"):
        await delivery(filled, receiver.url, private="").deliver()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"cost_webhook": "https://x.example/hook"}, "FLORIN_COST_WEBHOOK_SECRET"),
        ({"cost_webhook": "ftp://x"}, "FLORIN_COST_WEBHOOK"),
        ({"cost_webhook_secret": "whsec_c2hvcnQ="}, "FLORIN_COST_WEBHOOK_SECRET"),
        ({"cost_webhook_secret": base64.b64encode(KEY).decode()}, "FLORIN_COST_WEBHOOK_SECRET"),
    ],
)
def test_a_webhook_needs_a_url_and_a_secret(changes, names):
    with pytest.raises(SettingsError, match=names) as caught:
        load_settings(**changes)
    assert "c2hvcnQ" not in str(caught.value)
