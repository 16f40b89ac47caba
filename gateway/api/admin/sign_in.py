"""GET /admin/v1/sign-in: how people sign in. Public: `florin login` asks before it has a token."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import StateDep
from gateway.operations.transaction import Json

router = APIRouter(tags=["keys"])


@router.get("/sign-in")
async def show_sign_in(state: StateDep) -> Json:
    """Where people sign in, without a key: `oidc` is null if only keys are accepted. `token` says which of
    the issuer's tokens to send as `Authorization: Bearer`: `id_token` or `access_token`."""
    if state.people is None:
        return {"oidc": None}
    settings = state.people.settings
    return {
        "oidc": {
            "issuer": settings.oidc_issuer,
            "client_id": state.people.clients[-1],
            "scopes": settings.oidc_scopes.split(),
            "audience": settings.oidc_audience,
            "prompt": settings.oidc_cli_prompt,
            "token": "access_token" if settings.oidc_audience else "id_token",
        }
    }
