"""Posts events to their receiver, as CloudEvents' JSON batch (which OpenMeter takes), signed as Standard
Webhooks defines it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

import aiohttp
import orjson
from yarl import URL

from gateway.runtime.webhook_signatures import signature

POST_SECONDS: Final = 8.0
"""Shorter than the leader's lease."""
LONGEST_WAIT: Final = 300.0
"""Seconds of `retry-after` that are honoured."""
_ANSWER: Final = 200
"""Bytes of a refusal that are shown."""
CONTENT_TYPE: Final = "application/cloudevents-batch+json"


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    """Without the URL, whose path may be a secret."""
    retry_after: float = 0.0
    """Seconds, if the receiver said so."""
    too_large: bool = False


class Receiver:
    """Mutable: its connection, once it is entered."""

    def __init__(self, url: str, *, secrets: str, token: str) -> None:
        self._url = URL(url)
        self._secrets = secrets
        self._token = token
        self._session: aiohttp.ClientSession | None = None

    def __repr__(self) -> str:
        return f"<Receiver {self._url.origin()}>"

    async def __aenter__(self) -> Self:
        # Certificates are verified with the system's authorities, or those of SSL_CERT_FILE.
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=POST_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(self, events: Sequence[dict[str, Any]], sent_at: int) -> Refusal | None:
        """Post the events, once; None: the receiver has taken them. `sent_at`: Unix seconds."""
        assert self._session is not None
        headers, body = self.message(events, sent_at)
        try:
            async with self._session.post(
                self._url, data=body, headers=headers, allow_redirects=False
            ) as answer:
                return None if 200 <= answer.status < 300 else await _refusal(answer)
        except TimeoutError:
            return Refusal(f"no answer within {POST_SECONDS:.0f} s")
        except aiohttp.ClientConnectorCertificateError:
            return Refusal("its certificate is not valid here; see SSL_CERT_FILE")
        except aiohttp.ClientConnectorError as error:
            return Refusal(f"cannot connect: {error.os_error.strerror or error.os_error}")
        except (aiohttp.ClientError, OSError) as error:
            return Refusal(f"the connection failed ({type(error).__name__})")

    def message(self, events: Sequence[dict[str, Any]], sent_at: int) -> tuple[dict[str, str], bytes]:
        """Headers and body. The message's id is the same whenever the same events are posted. Pure."""
        body = orjson.dumps(list(events))
        ids = "\n".join(event["id"] for event in events)
        headers = {"content-type": CONTENT_TYPE, "user-agent": "florin", "accept-encoding": "identity"}
        if self._secrets:
            message_id = f"msg_{hashlib.sha256(ids.encode()).hexdigest()[:32]}"
            headers |= signature(message_id, sent_at, body, self._secrets)
        if self._token:
            headers["authorization"] = f"Bearer {self._token}"
        return headers, body


async def _refusal(answer: aiohttp.ClientResponse) -> Refusal:
    text = (await answer.content.read(_ANSWER)).decode("utf-8", "replace").strip()
    wait = answer.headers.get("retry-after", "")
    return Refusal(
        f"status {answer.status}" + (f": {json.dumps(text)}" if text else ""),
        retry_after=min(float(wait), LONGEST_WAIT) if wait.isascii() and wait.isdigit() else 0.0,
        too_large=answer.status == 413,
    )
