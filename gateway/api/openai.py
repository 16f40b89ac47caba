"""The data plane: OpenAI's routes, and nothing else of the engines'. Thin: the story is in `lifecycle`."""

from __future__ import annotations

import orjson

from adapters.model import Adapter
from gateway.call import ENDPOINTS
from gateway.errors import FlorinError
from gateway.exchange import Exchange, Receive, Scope, Send
from gateway.lifecycle import Lifecycle, authenticate_caller, model_not_found
from gateway.tenants.directory import Key

PREFIX = "/v1/"
_MODELS = "/v1/models"


class DataPlane:
    """An ASGI application for everything under /v1/."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        endpoint = ENDPOINTS.get(exchange.path)
        if endpoint is not None and exchange.method == "POST":
            await self._lifecycle.run(exchange, endpoint)
            return
        try:
            await exchange.respond(200, self._models(exchange))
        except FlorinError as error:
            self._lifecycle.metrics.error(error.code)
            await exchange.fail(error)

    def _models(self, exchange: Exchange) -> bytes:
        """GET /v1/models and /v1/models/{id}; FlorinError for whatever else this is."""
        path = exchange.path
        known = path in ENDPOINTS or path == _MODELS or path.startswith(_MODELS + "/")
        if not known:
            raise FlorinError("not_found", f"There is no {path[:200]} here.")
        allowed = "POST" if path in ENDPOINTS else "GET"
        if exchange.method != allowed:
            exchange.extra_headers = [(b"allow", allowed.encode())]
            raise FlorinError("method_not_allowed", f"{path[:200]} takes {allowed}.")
        key = authenticate_caller(exchange, self._lifecycle.directory, self._lifecycle.follower)
        wanted = path[len(_MODELS) + 1 :]
        return orjson.dumps(self._one(key, wanted) if wanted else self._all(key))

    def _all(self, key: Key) -> dict[str, object]:
        """What this key may call, by full names."""
        catalog = self._lifecycle.catalog
        tenant = self._lifecycle.directory.tenants.get(key.tenant)
        if tenant is None:
            return {"object": "list", "data": []}
        cards = [self._card(a.name, a) for a in catalog.visible(tenant.name) if a.live is not None]
        if tenant.base_access:
            cards += [_base_card(name) for name in sorted(catalog.bases)]
        return {"object": "list", "data": cards}

    def _one(self, key: Key, model: str) -> dict[str, object]:
        target = self._lifecycle.resolve(key, model)
        if target.version is None:
            return _base_card(model)
        adapter = self._lifecycle.catalog.adapters.get(target.version.adapter)
        if adapter is None:
            raise model_not_found(model)
        return self._card(model, adapter, target.version.created)

    def _card(self, model: str, adapter: Adapter, created: int | None = None) -> dict[str, object]:
        if created is None:
            live = self._lifecycle.catalog.versions.get(f"{adapter.name}@v{adapter.live}")
            created = live.created if live else 0
        owner = adapter.name.partition("/")[0]
        return {"id": model, "object": "model", "created": created // 1_000_000, "owned_by": owner}


def _base_card(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "florin"}
