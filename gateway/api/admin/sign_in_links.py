"""POST /admin/v1/sign-in-links: a link to the console. For every role that has one."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import ConsoleKey, StateDep
from gateway.errors import FlorinError
from gateway.operations import sign_in_links
from gateway.operations.transaction import Json

router = APIRouter(tags=["keys"])


@router.post("/sign-in-links", status_code=201)
async def create_sign_in_link(key: ConsoleKey, state: StateDep) -> Json:
    """Create a link that signs a browser in to the console as this request's key: once, within ten minutes,
    and until the session or the key ends. `id`: the key. `url`: a path of this gateway. Its secret is in the
    fragment, which browsers never send; anyone who has the link has the key's rights."""
    if not state.settings.console:
        raise FlorinError("not_found", "This gateway serves no console: FLORIN_CONSOLE is false.")
    secret, expires = await sign_in_links.create(state, key)
    return {"id": key.id, "url": f"/console/sign-in#link={secret}", "expires": expires}
