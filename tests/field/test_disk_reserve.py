"""A disk that is too full for an adapter says how much room there is, and how much must stay.

Source: a day of operations
Sent: an adapter of a few kilobytes, to a gateway whose artifact disk has 30 MiB free
Right: the operator reads how much is needed, that 64 MiB must stay free, and how much is free; a customer, to whom the
operator's disk is none of his business, reads that there is no space
Why: "No space left on device" with 30 MiB free sends an operator to look for quotas and inodes
"""

from __future__ import annotations

import pytest

from tests.support.lora import lora_config, write_adapter

MIB = 1 << 20


@pytest.fixture(autouse=True)
async def _nearly_full(monkeypatch: pytest.MonkeyPatch, gateway, engine) -> None:
    await gateway.add_tenant("acme")
    await gateway.add_engine("a1", engine.url)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 30 * MIB}))


async def test_the_reserve_is_named_to_the_operator(admin, tmp_path):
    source = write_adapter(tmp_path / "x", config=lora_config(base_model_name_or_path="base"))
    answer = await admin.post("adapters", json={"adapter": "acme/x", "source": str(source)})
    assert answer.status_code == 503
    message = answer.json()["error"]["message"]
    assert "64.0 MiB must stay free, and 30.0 MiB are free" in message
    assert str(tmp_path) not in message


async def test_not_to_a_customer(admin, gateway):
    key = (await admin.post("keys", json={"tenant": "acme", "role": "tenant-admin"})).json()["key"]
    async with gateway.http(key=key) as customer:
        answer = await customer.post(
            "/admin/v1/adapters/upload?adapter=acme/x",
            content=b"x",
            headers={"content-type": "application/octet-stream"},
        )
    assert answer.json()["error"]["message"] == "The upload cannot be stored: No space left on device."
