"""POST /admin/v1/adapters/…/versions/…/try: an operator's request to one version."""

from __future__ import annotations

from fastapi import APIRouter, Response

from adapters.model import AdapterName
from gateway.api.admin_requests import Operator
from gateway.api.dependencies import Actor, StateDep
from gateway.dataplane.asgi import AsgiRequest, Message, Receive, Scope, Send
from gateway.dataplane.exchange import Exchange
from gateway.dataplane.request import CHAT, COMPLETIONS
from gateway.fleet.adapters.operations import trials
from gateway.fleet.adapters.schemas.adapters import Completion, Trial, VersionName
from gateway.operations.state import State

router = APIRouter(prefix="/adapters", tags=["adapters"], dependencies=[Operator])


@router.post(
    "/{tenant}/{name}/versions/{version}/try",
    response_model=None,
    responses={200: {"model": Completion, "content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def try_version(
    tenant: str, name: str, version: VersionName, body: Trial, state: StateDep, actor: Actor
) -> Response:
    """Call a version as its tenant's clients would. Responds like POST /v1/chat/completions, or with `prompt`
    like POST /v1/completions. The request is the tenant's, like those of an operator's evaluation: it counts
    in its limits, its usage and its bill."""
    full_name = AdapterName.parse(f"{tenant}/{name}")
    return _Call(state, full_name, int(version[1:]), body, actor)


class _Call(Response):
    """The data plane's answer, as it comes. A disconnect of the client reaches the engine."""

    def __init__(self, state: State, name: AdapterName, number: int, trial: Trial, actor: str) -> None:
        super().__init__()
        self._state, self._name, self._number, self._actor = state, name, number, actor
        self._endpoint = COMPLETIONS if trial.messages is None else CHAT
        self._request = trial.body(f"{name}@v{number}")
        self._key = trials.trial_key(state, name, number)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(self._request)),
        ]
        inner = {**scope, "path": self._endpoint.path, "headers": headers}
        exchange = Exchange(AsgiRequest(inner, self._replayed(receive), send), session_key=self._key)
        exchange.introduce()
        try:
            await trials.record(self._state, self._name, self._number, exchange.request_id, actor=self._actor)
        except BaseException:
            exchange.close()
            raise
        await self._state.lifecycle.run(exchange, self._endpoint)

    def _replayed(self, receive: Receive) -> Receive:
        """The request, then what the client does: it disconnects."""
        given = False

        async def replayed() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": self._request, "more_body": False}

        return replayed
