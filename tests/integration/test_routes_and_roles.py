"""Each route with each role, on a running gateway: allowed or refused as docs/reference/roles.md says."""

from __future__ import annotations

from itertools import chain, product

import httpx2

from gateway.dialects.endpoints import ENDPOINTS
from gateway.tenants.directory import TENANT_ROLES, Role
from loadtests.mock_engine import MockEngine
from tests.support.harness import OPERATOR_KEY, Gateway
from tests.tools.docs.roles import Route, routes

NAMES = {"tenant": "acme", "name": "a1", "version": "v1", "month": "2026-01", "model": "acme/none"}
"""For the parts of paths; `none` for the others."""


async def keys_of(gateway: Gateway) -> dict[Role | None, str]:
    await gateway.add_tenant("acme")
    keys: dict[Role | None, str] = {None: "", Role.OPERATOR: OPERATOR_KEY}
    for role in set(Role) - {Role.OPERATOR}:
        tenant, engine = "acme" if role in TENANT_ROLES else "", "a1" if role is Role.ENGINE else ""
        keys[role] = await gateway.add_key(role, tenant, engine=engine)
    return keys


async def ask(http: httpx2.AsyncClient, method: str, path: str, key: str) -> httpx2.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = {"json": {}} if method in ("POST", "PUT", "PATCH") else {}
    return await http.request(method, path, headers=headers, **body)


def filled(path: str) -> str:
    return "/".join(NAMES.get(p[1:-1], "none") if p.startswith("{") else p for p in path.split("/"))


def code_of(answer: httpx2.Response) -> str:
    return answer.json()["error"]["code"] if answer.status_code >= 400 else ""


async def test_each_route_with_each_role(gateway: Gateway):
    keys, all_routes = await keys_of(gateway), list(routes())
    assert len(all_routes) > 70
    wrong = []
    async with httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        for route in all_routes:
            for role, key in keys.items():
                answer = await ask(http, route.method, filled(route.path), key)
                if not as_the_table_says(route, role, answer):
                    wrong.append((route.method, route.path, role, answer.status_code, answer.text[:200]))
    assert wrong == []


def as_the_table_says(route: Route, role: Role | None, answer: httpx2.Response) -> bool:
    if route.roles is None or role in route.roles:
        return answer.status_code not in (401, 403, 405) and answer.status_code < 500
    if role is None:
        return (answer.status_code, code_of(answer)) == (401, "missing_api_key")
    return (answer.status_code, code_of(answer)) == (403, "insufficient_role")


ENGINES_ROUTES = [
    "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/load_lora_adapter", "/unload_lora_adapter",
    "/sleep", "/wake_up", "/is_sleeping", "/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache",
    "/collective_rpc", "/server_info", "/update_config", "/start_profile", "/stop_profile", "/pause", "/resume",
    "/is_paused", "/init_weights_update_group", "/update_weights", "/update_weights_from_disk", "/abort_requests",
    "/scale_elastic_ep", "/is_scaling_elastic_ep", "/tokenizer_info", "/pooling", "/v1/pooling", "/v2/embed",
    "/classify", "/score", "/rerank", "/v1/embeddings/render", "/v1/tokenizer_info", "/invocations", "/load",
    "/metrics/engine", "/inference/v1/generate", "/generate", "/v1/audio/transcriptions",
    "/v1/audio/translations", "/v1/realtime", "/v1/messages/batches", "/v1/responses/resp_1",
    "/v1/responses/resp_1/cancel", "/v1/chat/completions/render", "/v1/completions/render", "/v1/embeddings/x", "/v1/modelsx",
    "/adapters", "/v1/",
]  # fmt: skip
ASKING = (None, Role.TENANT, Role.OPERATOR)
DETOURS = [
    "/v1/../{}",
    "/v1/%2e%2e/{}",
    "/v1/models/../../{}",
    "/v1//{}",
    "/v1/chat/completions/../../{}",
]


async def test_no_route_of_an_engine_is_reachable(gateway: Gateway):
    keys = await keys_of(gateway)
    reached = []
    plainly = product(ENGINES_ROUTES, ["/{}"], ASKING)
    on_detours = product(["/tokenizer_info", "/sleep", "/v1/load_lora_adapter"], DETOURS, [Role.TENANT])
    async with MockEngine() as engine, httpx2.AsyncClient(base_url=gateway.url, timeout=60) as http:
        await gateway.add_engine("a1", engine.url)
        for path, detour, role in chain(plainly, on_detours):
            raw = httpx2.URL(gateway.url).copy_with(raw_path=detour.format(path[1:]).encode())
            if raw.path in ENDPOINTS:  # of Florin's own, as what the detour leads to
                continue
            headers = {"authorization": f"Bearer {keys[role]}"} if keys[role] else {}
            for method in ("GET", "POST"):
                answer = await http.send(http.build_request(method, raw, headers=headers, content=b"{}"))
                if answer.status_code not in (401, 403, 404, 405):
                    reached.append((role, method, str(raw), answer.status_code, answer.text[:100]))
        assert reached == []
        assert engine.state.admin == []
        assert not engine.state.calls
