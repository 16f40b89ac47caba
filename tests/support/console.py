"""A browser of the console, as tests drive it."""

from __future__ import annotations

import re
from typing import Any

import httpx2

from tests.support.harness import OPERATOR_KEY

_TOKEN = re.compile(r'name="csrf" value="([^"]+)"')


class Browser(httpx2.AsyncClient):
    """Signed in by `sign_in`; follows redirects after forms, as browsers do."""

    async def sign_in(self, key: str = OPERATOR_KEY) -> None:
        answer = await self.post("/console/sign-in", data={"key": key})
        assert answer.status_code == 303, answer.text

    async def page(self, path: str, status: int = 200) -> str:
        answer = await self.get(path, follow_redirects=True)
        assert answer.status_code == status, answer.text
        return answer.text

    async def submit(self, page: str, action: str, **fields: Any) -> httpx2.Response:
        """Send the form of this page that posts to `action`."""
        html = await self.page(page)
        assert f'action="{action}"' in html, f"{page} has no form for {action}"
        found = _TOKEN.search(html)
        assert found
        return await self.post(action, data={"csrf": found[1], **fields}, follow_redirects=True)

    async def first_event(self, path: str) -> str:
        """The first drawing of a live part."""
        async with self.stream("GET", path) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = []
            async for line in answer.aiter_lines():
                if not line and lines:
                    break
                lines.append(line.removeprefix("data: "))
            return "\n".join(lines)
