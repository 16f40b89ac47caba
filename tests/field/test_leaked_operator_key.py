"""The bootstrap operator key has leaked, and its file gets another one.

Source: a day of operations
Sent: a new key in the file that FLORIN_OPERATOR_KEY_FILE names, then SIGHUP; `florin doctor` with the new key
Right: within seconds the new key is valid and the old one is not, nor the console's sessions and links that began
with it. A file that cannot be read leaves the key as it is, with an error in the log and a problem in `doctor`. The
command line does not say that a key does not exist that only the gateway does not know
Why: nothing happened and nothing was said: the leaked key stayed valid until somebody restarted every gateway
"""

from __future__ import annotations

import asyncio

from adapters.security.secret_files import write_private
from tests.integration.test_doctor import doctor
from tests.support.commands import command
from tests.support.console import Browser
from tests.support.harness import Gateway, running_gateway
from tests.support.waiting import PATIENCE_S, until

LEAKED, FRESH = "leaked-operator-key-0123", "fresh-operator-key-4567"


async def valid(gateway: Gateway, key: str) -> bool:
    async with gateway.http(key) as client:
        return (await client.get("/admin/v1/me")).status_code == 200


async def is_valid(gateway: Gateway, key: str) -> None:
    while not await valid(gateway, key):
        await asyncio.sleep(0.05)


async def test_the_leaked_key_ends_with_its_file(tmp_path, valkey_url, prefix, caplog):
    file = tmp_path / "operator.key"
    write_private(file, LEAKED)
    async with (
        running_gateway(
            tmp_path / "state", valkey_url, prefix, operator_key="", operator_key_file=file
        ) as gateway,
        Browser(base_url=gateway.url, timeout=60) as thief,
    ):
        await thief.sign_in(LEAKED)
        await thief.page("/console/health")
        async with gateway.http(LEAKED) as client:
            link = (await client.post("/admin/v1/sign-in-links")).json()["url"].partition("#link=")[2]
        refused = await command(gateway, "doctor", key=FRESH)
        assert "does not exist" not in refused.output
        assert "FLORIN_OPERATOR_KEY_FILE" in refused.output

        write_private(file, FRESH)
        async with asyncio.timeout(PATIENCE_S):
            await is_valid(gateway, FRESH)
        assert not await valid(gateway, LEAKED)
        assert (await thief.get("/console/health")).status_code == 303, "signed out"
        assert (await thief.post("/console/sign-in", data={"link": link})).status_code == 401

        file.write_text("")
        await until(lambda: "contains no key" in caplog.text)
        assert await valid(gateway, FRESH)
        _, findings = await doctor(gateway, key=FRESH)
        assert findings["operator_key"]["status"] == "problem"
        assert str(file) in findings["operator_key"]["message"]
        assert not any(key in caplog.text for key in (LEAKED, FRESH))
