"""The Kubernetes API server: the four calls that the controller makes."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from gateway.kubernetes.resource import GROUP, PLURALS, VERSION, Json, Kind, Resource

WATCH_SECONDS: Final = 240
"""After which the server ends a watch; the next goes on where it ended."""
_QUIET_SECONDS: Final = WATCH_SECONDS + 60.0
"""A watch that is silent for longer is dead: its connection went without a word."""
_ANSWER: Final = aiohttp.ClientTimeout(total=30)
_MERGE: Final = {"content-type": "application/merge-patch+json"}
_LINE_BYTES: Final = 2**22
"""The longest line, which is an event. Objects have up to 1.5 MiB."""


class ApiServerError(Exception):
    """The API server refuses, or does not answer; the message is a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        """HTTP's; 0: there was no answer."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where the API server is, and who asks it for which namespace."""

    url: str
    namespace: str
    token_file: Path | None = None
    """Kubernetes replaces it from time to time. None: none is sent, as to `kubectl proxy`."""
    ca_file: Path | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    resources: tuple[Resource, ...]
    version: str
    """From where on a watch sees every change."""


class ApiServer:
    """On one event loop. Methods raise ApiServerError."""

    def __init__(self, cluster: Cluster, session: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._session = session

    def __repr__(self) -> str:
        return f"<ApiServer {self._cluster.url}, {self._cluster.namespace}>"

    @classmethod
    @asynccontextmanager
    async def to(cls, cluster: Cluster) -> AsyncIterator[ApiServer]:
        """Raises OSError, ssl.SSLError for a CA that cannot be read."""
        trust = ssl.create_default_context(cafile=cluster.ca_file) if cluster.ca_file else True
        connector = aiohttp.TCPConnector(ssl=trust)
        async with aiohttp.ClientSession(connector=connector, trust_env=False) as session:
            yield cls(cluster, session)

    async def list(self, kind: Kind) -> Listing:
        body = await self._json("GET", self._path(kind))
        resources = tuple(Resource(kind, item) for item in body["items"])
        return Listing(resources, body["metadata"]["resourceVersion"])

    async def get(self, kind: Kind, name: str) -> Resource:
        return Resource(kind, await self._json("GET", self._path(kind, name)))

    async def watch(self, kind: Kind, version: str) -> AsyncIterator[tuple[str, Resource]]:
        """What changes after `version`: (ADDED, MODIFIED, DELETED or BOOKMARK, the resource), until the
        server ends the watch. A version that is too old is an ApiServerError of status 410."""
        params = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_QUIET_SECONDS)
        async with self._answer(
            "GET", self._path(kind), params=params, timeout=timeout, read_bufsize=_LINE_BYTES
        ) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiServerError(status.get("code", 0), str(status.get("message", status)))
                yield event["type"], Resource(kind, event["object"])

    async def patch(self, resource: Resource, changes: Json, *, status: bool = False) -> Resource:
        """Change fields of the metadata, or of the status; null removes one. ApiServerError of status 409 if
        it has changed since it was read."""
        metadata = {"resourceVersion": resource.metadata["resourceVersion"]} | changes.pop("metadata", {})
        path = self._path(resource.kind, resource.name) + ("/status" if status else "")
        body = await self._json(
            "PATCH",
            path,
            params={"fieldManager": "florin-controller"},
            headers=_MERGE,
            data=json.dumps({"metadata": metadata, **changes}),
        )
        return Resource(resource.kind, body)

    def _path(self, kind: Kind, name: str = "") -> str:
        of_kind = f"/apis/{GROUP}/{VERSION}/namespaces/{self._cluster.namespace}/{PLURALS[kind]}"
        return f"{of_kind}/{name}" if name else of_kind

    async def _json(self, method: str, path: str, **request: Any) -> Json:
        async with self._answer(method, path, timeout=_ANSWER, **request) as answer:
            body: Json = await answer.json()
        return body

    @asynccontextmanager
    async def _answer(self, method: str, path: str, **request: Any) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = request.pop("headers", {})
        try:
            headers = headers | self._authorization()
            async with self._session.request(
                method, self._cluster.url + path, headers=headers, **request
            ) as answer:
                if answer.status >= 400:
                    raise ApiServerError(answer.status, await _message(answer))
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise ApiServerError(
                0, f"The API server at {self._cluster.url} does not answer: {error or type(error).__name__}."
            ) from error

    def _authorization(self) -> dict[str, str]:
        file = self._cluster.token_file
        return {} if file is None else {"authorization": f"Bearer {file.read_text().strip()}"}


async def _message(answer: aiohttp.ClientResponse) -> str:
    """A Status object's message, where it is one."""
    text = await answer.text()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"The API server answered {answer.status}: {text[:200]}"
