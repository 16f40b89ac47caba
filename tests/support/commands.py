"""Commands in this process, beside a gateway on its event loop."""

from __future__ import annotations

import asyncio

from typer.testing import CliRunner, Result

from gateway.commands.tree import tree
from tests.support.harness import OPERATOR_KEY, Gateway


async def command(gateway: Gateway | str, *args: str, key: str = OPERATOR_KEY) -> Result:
    """`gateway`: or its URL."""
    url = gateway if isinstance(gateway, str) else gateway.url
    env = {"FLORIN_URL": url, "FLORIN_OPERATOR_KEY": key}
    return await asyncio.to_thread(CliRunner().invoke, tree(), args, env=env)
