"""Lists that come by pages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2


async def pages_of(client: httpx2.AsyncClient, path: str, **params: Any) -> AsyncIterator[dict[str, Any]]:
    """Each page, from the first to the last."""
    while True:
        answer = await client.get(path, params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        yield page
        params["after"] = page["next"]
        if params["after"] is None:
            return
