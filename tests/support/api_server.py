"""A double of Kubernetes' API server: Florin's resources, over HTTP.

It keeps to what its clients rely on: versions that rise with each change, watches that go on from a version, 410
for one that is forgotten, 409 for a change of what has changed, a status of its own, finalizers.
"""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from gateway.kubernetes.resource import GROUP, PLURALS, VERSION, Kind

NAMESPACE = "serving"
_ROOT = f"/apis/{GROUP}/{VERSION}/namespaces/{NAMESPACE}/{{plural}}"
_KINDS: dict[str, Kind] = {plural: kind for kind, plural in PLURALS.items()}

Json = dict[str, Any]


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for name, value in patch.items():
        if value is None:
            new.pop(name, None)
        else:
            new[name] = merged(new.get(name), value)
    return new


class ApiServerDouble:
    """Mutable: objects, what has happened, open watches, and what goes wrong next."""

    def __init__(self) -> None:
        self.url = ""
        self.objects: dict[tuple[Kind, str], Json] = {}
        self.events: list[tuple[int, Kind, Json]] = []
        self.version = 1
        self.forgotten = 0
        """A watch from before this version is answered with 410."""
        self.changes_first = 0
        """So many changes find that another came before them."""
        self.calls: set[tuple[str, str]] = set()
        """Verb and resource, as a Role names them."""
        self._watches: dict[asyncio.Task[Any], asyncio.Queue[tuple[Kind, Json]]] = {}

    # -- what people do

    def create(self, kind: Kind, name: str, spec: Json) -> None:
        metadata = {
            "name": name, "namespace": NAMESPACE, "uid": f"uid-{self.version}", "generation": 1,
            "creationTimestamp": f"2026-11-27T10:{self.version % 60:02}:00Z",
        }  # fmt: skip
        self._put(kind, {"metadata": metadata, "spec": spec, "status": {"observedGeneration": -1}}, "ADDED")

    def edit(self, kind: Kind, name: str, **fields: Any) -> None:
        body = copy.deepcopy(self.objects[kind, name])
        body["spec"] = merged(body["spec"], fields)
        body["metadata"]["generation"] += 1
        self._put(kind, body)

    def delete(self, kind: Kind, name: str) -> None:
        body = copy.deepcopy(self.objects[kind, name])
        body["metadata"]["deletionTimestamp"] = "2026-11-27T11:00:00Z"
        self._put(kind, body)

    def status(self, kind: Kind, name: str) -> Json:
        body = self.objects.get((kind, name))
        return body["status"] if body else {}

    def condition(self, kind: Kind, name: str, type_: str = "Ready") -> tuple[str, str]:
        """Its status and reason; empty: it has none for what is asked for now."""
        body = self.objects[kind, name]
        if body["status"]["observedGeneration"] != body["metadata"]["generation"]:
            return "", ""
        for condition in body["status"]["conditions"]:
            if condition["type"] == type_:
                return condition["status"], condition["reason"]
        return "", ""

    # -- what goes wrong

    def disconnect(self) -> None:
        """All watches, in the middle of their streams."""
        for watch in list(self._watches):
            watch.cancel()

    def forget(self) -> None:
        """What has happened, as etcd does after a while; and all watches end."""
        self.version += 1
        self.forgotten = self.version
        self.events.clear()
        self.disconnect()

    # -- the server

    def _put(self, kind: Kind, body: Json, change: str = "MODIFIED") -> Json:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        key = kind, body["metadata"]["name"]
        if "deletionTimestamp" in body["metadata"] and not body["metadata"].get("finalizers"):
            del self.objects[key]
            change = "DELETED"
        else:
            self.objects[key] = body
        event = {"type": change, "object": copy.deepcopy(body)}
        self.events.append((self.version, kind, event))
        for news in self._watches.values():
            news.put_nowait((kind, event))
        return body

    async def read(self, request: web.Request) -> web.StreamResponse:
        kind = _KINDS[request.match_info["plural"]]
        if request.query.get("watch"):
            self.calls.add(("watch", request.match_info["plural"]))
            return await self._watch(request, kind)
        self.calls.add(("list", request.match_info["plural"]))
        items = [body for (other, _), body in self.objects.items() if other == kind]
        return web.json_response({"items": items, "metadata": {"resourceVersion": str(self.version)}})

    async def _watch(self, request: web.Request, kind: Kind) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        version = int(request.query["resourceVersion"])
        if version < self.forgotten:
            gone = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}
            await answer.write(json.dumps(gone).encode() + b"\n")
            return answer
        task = asyncio.current_task()
        assert task is not None
        news = self._watches[task] = asyncio.Queue()
        for number, of_kind, event in self.events:
            if number > version:
                news.put_nowait((of_kind, event))
        try:
            while True:
                of_kind, event = await news.get()
                if of_kind == kind:
                    await answer.write(json.dumps(event).encode() + b"\n")
        finally:
            del self._watches[task]

    async def get(self, request: web.Request) -> web.Response:
        self.calls.add(("get", request.match_info["plural"]))
        return self._answer(request, lambda body: body)

    async def patch(self, request: web.Request) -> web.Response:
        plural, part = request.match_info["plural"], request.match_info.get("part", "")
        self.calls.add(("patch", plural + part))
        assert request.content_type == "application/merge-patch+json"
        changes = await request.json()
        key = _KINDS[plural], request.match_info["name"]
        if self.changes_first and key in self.objects:
            self.changes_first -= 1
            self._put(key[0], copy.deepcopy(self.objects[key]))

        def change(body: Json) -> Json:
            known = changes["metadata"].pop("resourceVersion", None)
            if known not in (None, body["metadata"]["resourceVersion"]):
                raise web.HTTPConflict(
                    text=json.dumps({"message": "the object has been modified"}),
                    content_type="application/json",
                )
            kept = {"status": changes["status"]} if part else {"metadata": changes["metadata"]}
            new = merged(copy.deepcopy(body), kept)
            return body if new == body else self._put(key[0], new)

        return self._answer(request, change)

    def _answer(self, request: web.Request, use: Any) -> web.Response:
        body = self.objects.get((_KINDS[request.match_info["plural"]], request.match_info["name"]))
        if body is None:
            return web.json_response({"message": "not found"}, status=404)
        return web.json_response(use(body))


@asynccontextmanager
async def api_server() -> AsyncIterator[ApiServerDouble]:
    double = ApiServerDouble()
    app = web.Application()
    app.router.add_get(_ROOT, double.read)
    app.router.add_get(f"{_ROOT}/{{name}}", double.get)
    app.router.add_patch(f"{_ROOT}/{{name}}", double.patch)
    app.router.add_patch(f"{_ROOT}/{{name}}{{part:/status}}", double.patch)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    [(host, port)] = [address[:2] for address in runner.addresses]
    double.url = f"http://{host}:{port}"
    try:
        yield double
    finally:
        double.disconnect()
        await runner.cleanup()
