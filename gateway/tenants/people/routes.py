"""What a key tells of itself and its tenant, how people sign in, and links to the console. For every role."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.api.dependencies import AnyKey, ConsoleKey, CustomerKey, StateDep
from gateway.errors import FlorinError
from gateway.fleet.adapters.operations import quotas
from gateway.operations.authorization import READER
from gateway.tenants.directory import Role
from gateway.tenants.keys import operations as keys
from gateway.tenants.keys.routes import key_as
from gateway.tenants.operations import limits, tenants
from gateway.tenants.operations.limits import queue_of
from gateway.tenants.people.schemas import Account, Issuer, Me, OwnTerms, SignInLink, SignInOffer

router = APIRouter(tags=["keys"])


@router.get("/me", response_model_exclude_unset=True)
async def show_me(key: AnyKey, state: StateDep) -> Me:
    """The key of this request, with its scopes and limits, and for a tenant's key its tenant's."""
    tenant = state.directory.tenants.get(key.own_tenant or "")
    terms = None if tenant is None else OwnTerms.of(tenant, quotas=quotas.use(state, tenant))
    return key_as(Me, key, READER, tenant_terms=terms)


@router.get("/account")
async def show_account(key: CustomerKey, state: StateDep) -> Account:
    """The tenant of this request's key: its terms, what it uses of them, its queue, and the last errors of
    its requests. A key of role `tenant` sees the errors of its own requests only."""
    tenant = tenants.find(state, key.tenant)
    errors = await tenants.last_errors(state, tenant)
    return Account.of(
        tenant,
        usage=await limits.usage(state, tenant),
        quota_use=quotas.use(state, tenant),
        queue=queue_of(state, tenant.name),
        errors=[error for error in errors if key.role is Role.TENANT_ADMIN or error.key == key.id],
        currency=await state.currency.get(state.ledger),
    )


@router.get("/sign-in")
async def show_sign_in(state: StateDep) -> SignInOffer:
    """Where people sign in, without a key."""
    if state.people is None:
        return SignInOffer(oidc=None)
    settings = state.people.settings
    return SignInOffer(
        oidc=Issuer(
            issuer=settings.oidc_issuer,
            client_id=state.people.clients[-1],
            scopes=tuple(settings.oidc_scopes.split()),
            audience=settings.oidc_audience,
            prompt=settings.oidc_cli_prompt,
            token="access_token" if settings.oidc_audience else "id_token",
        )
    )


@router.post("/sign-in-links", status_code=201)
async def create_sign_in_link(key: ConsoleKey, state: StateDep) -> SignInLink:
    """Create a link that signs a browser in to the console as this request's key: once, within ten minutes,
    and until the session or the key ends. Its secret is in the URL's fragment, which browsers never send;
    anyone who has the link has the key's rights."""
    if not state.settings.console:
        raise FlorinError("not_found", "This gateway serves no console: FLORIN_CONSOLE is false.")
    secret, expires = await keys.sign_in_link(state, key)
    return SignInLink(id=key.id, url=f"/console/sign-in#link={secret}", expires=expires)
