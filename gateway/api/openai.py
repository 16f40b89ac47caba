"""The data plane: OpenAI's routes, and no other route of the engines. `gateway.lifecycle` does the work."""

from __future__ import annotations

from typing import Protocol

import orjson

from adapters.model import Adapter
from adapters.registry.catalog import Catalog
from gateway.admission.overload import AdmissionTicket
from gateway.dataplane import access_log
from gateway.dataplane.exchange import Exchange, Receive, Scope, Send
from gateway.dataplane.request import ENDPOINTS
from gateway.errors import FlorinError
from gateway.lifecycle import Lifecycle, authenticate_caller, model_not_found
from gateway.tenants.directory import Key

PREFIX = "/v1/"
_MODELS = "/v1/models"
_GENERATES = frozenset(path.encode() for path in ENDPOINTS)
_MOST_BYTES = 16 * 1024 * 1024


class DataPlane:
    """An ASGI application for everything under /v1/."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._listings = Listings(lifecycle.catalog)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        exchange.introduce()
        try:
            await self._answer(exchange)
        finally:
            if self._lifecycle.settings.access_log:
                access_log.log_exchange(exchange)

    def issue_ticket(self, method: bytes, target: bytes) -> AdmissionTicket | FlorinError | None:
        """See `http_protocol.LoadShedding`. Only requests to engines need a ticket."""
        if method == b"POST" and target.partition(b"?")[0] in _GENERATES:
            return self._lifecycle.issue_ticket()
        return None

    def refuses_early(self, error: FlorinError) -> bool:
        """See `http_protocol.LoadShedding`. Not with an access log, which needs each request."""
        if self._lifecycle.settings.access_log:
            return False
        self._lifecycle.metrics.error(error.code)
        return True

    async def _answer(self, exchange: Exchange) -> None:
        endpoint = ENDPOINTS.get(exchange.path)
        if endpoint is not None and exchange.method == "POST":
            await self._lifecycle.run(exchange, endpoint)
            return
        try:
            await exchange.respond(200, self._models(exchange))
        except FlorinError as error:
            exchange.context.error = error.code
            self._lifecycle.metrics.error(error.code)
            await exchange.fail(error)

    def _models(self, exchange: Exchange) -> bytes:
        """GET /v1/models and /v1/models/{id}. Raises FlorinError for anything else."""
        path = exchange.path
        known = path in ENDPOINTS or path == _MODELS or path.startswith(_MODELS + "/")
        if not known:
            raise FlorinError("not_found", f"There is no {path[:200]} here.")
        allowed = "POST" if path in ENDPOINTS else "GET"
        if exchange.method != allowed:
            exchange.extra_headers = [(b"allow", allowed.encode())]
            raise FlorinError("method_not_allowed", f"{path[:200]} only supports {allowed}.")
        key = authenticate_caller(exchange, self._lifecycle.directory, self._lifecycle.follower)
        wanted = path[len(_MODELS) + 1 :]
        return orjson.dumps(self._one(key, wanted)) if wanted else self._all(key)

    def _all(self, key: Key) -> bytes:
        """The models that this key may call, by full name."""
        tenant = self._lifecycle.directory.tenants.get(key.tenant)
        if tenant is None:
            return _listing([])
        return self._listings.get(tenant.name, self._list, base_access=tenant.base_access)

    def _list(self, tenant: str, *, base_access: bool) -> bytes:
        catalog = self._lifecycle.catalog
        cards = [self._card(a.name, a) for a in catalog.visible(tenant) if a.live is not None]
        if base_access:
            cards += [_base_card(name) for name in sorted(catalog.bases)]
        return _listing(cards)

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


class Listings:
    """Caches model listings per tenant. Rendering ten thousand adapters blocks the event loop for 100 ms."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Mutable: listings of one generation of the catalog, and their size.
        self._generation = -1
        self._bytes = 0
        self._kept: dict[tuple[str, bool], bytes] = {}

    def get(self, tenant: str, make: _Make, *, base_access: bool) -> bytes:
        if self._generation != self._catalog.generation or self._bytes > _MOST_BYTES:
            self._kept, self._bytes, self._generation = {}, 0, self._catalog.generation
        found = self._kept.get((tenant, base_access))
        if found is None:
            found = self._kept[tenant, base_access] = make(tenant, base_access=base_access)
            self._bytes += len(found)
        return found


class _Make(Protocol):
    def __call__(self, tenant: str, *, base_access: bool) -> bytes: ...


def _listing(cards: list[dict[str, object]]) -> bytes:
    return orjson.dumps({"object": "list", "data": cards})


def _base_card(model: str) -> dict[str, object]:
    return {"id": model, "object": "model", "created": 0, "owned_by": "florin"}
