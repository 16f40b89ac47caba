"""The admin API of a gateway, as the controller uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError, full_name, segment
from gateway.commands.session import Session
from gateway.declarative.schemas import Action, Applied
from gateway.fleet.adapters.schemas.adapters import Adapter
from gateway.fleet.engines.schemas.engines import Engine
from gateway.kubernetes.operations.controller import GatewayError
from gateway.kubernetes.operations.observation import Fleet
from gateway.kubernetes.resource import Kind, pascal
from gateway.schemas.base import Answer, Listed
from gateway.tenants.schemas.tenants import Tenant

T = TypeVar("T")

_TOO_MANY: Final = 429


class AdminApi:
    """See `gateway.kubernetes.operations.controller.Gateway`. Reads the key file again for each call:
    platforms replace the tokens that they mount."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def plan(self, document: Json) -> Sequence[Action]:
        return self._apply(document, dry_run=True)

    def apply(self, document: Json) -> Sequence[Action]:
        return self._apply(document, dry_run=False)

    def _apply(self, document: Json, *, dry_run: bool) -> Sequence[Action]:
        params = {"dry_run": dry_run}
        return self._asked(
            lambda api: api.work("/admin/v1/apply", Applied, body=document, params=params)
        ).actions

    def remove(self, kind: Kind, id_: str) -> None:
        path = f"adapters/{full_name(id_)}" if kind == "LoraAdapter" else f"tenants/{segment(id_)}"
        self._asked(lambda api: api.delete(f"/admin/v1/{path}", Answer))

    def fleet(self) -> Fleet:
        return self._asked(_fleet)

    def _asked(self, call: Callable[[Api], T]) -> T:
        """Raises GatewayError."""
        try:
            return call(self._session.api)
        except UnreachableError as error:
            raise GatewayError("GatewayUnreachable", str(error), passes=True) from error
        except UsageError as error:
            raise GatewayError("KeyUnusable", str(error), passes=False) from error
        except ApiError as error:
            passes = error.status >= 500 or error.status == _TOO_MANY
            raise GatewayError(pascal(error.code), error.gateway_message, passes=passes) from error


def _fleet(api: Api) -> Fleet:
    tenants = api.get("/admin/v1/tenants", Listed[Tenant]).data
    adapters = api.get("/admin/v1/adapters", Listed[Adapter]).data
    engines = api.get("/admin/v1/engines", Listed[Engine]).data
    return Fleet({t.name: t for t in tenants}, {a.adapter: a for a in adapters}, engines)
