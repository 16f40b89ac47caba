"""Authenticates requests by their API key."""

from __future__ import annotations

from adapters.store.feed import Follower
from gateway.dataplane.exchange import Exchange
from gateway.errors import FlorinError
from gateway.tenants.directory import TENANT_ROLES, Directory, Key, Role
from gateway.tenants.scopes import check_endpoint

USED_UP = (
    "This enrolment token has been used or revoked. If you did not use it, revoke the engine key that it was "
    "exchanged for, then create another token."
)


def authenticate(
    exchange: Exchange, directory: Directory, follower: Follower, *, api_key: bool = False
) -> Key:
    """The request's key: known, not revoked, not expired, and not of a suspended tenant. `api_key`: it may
    come as `x-api-key`. Raises FlorinError."""
    key: Key | None
    if exchange.batch is not None:
        key = directory.batch_key(exchange.batch.key_id)
    elif isinstance(exchange.session_key, Key):
        key = exchange.session_key
    else:
        text = _either(exchange) if api_key else exchange.bearer()
        if not text:
            raise FlorinError("missing_api_key", "Send your key as `Authorization: Bearer KEY`.")
        key = directory.find(text)
    if key is None:
        if not follower.connected:  # it may be newer than this worker's snapshot
            raise FlorinError("store_unavailable", "New keys cannot be looked up now.", retry_after=1)
        raise unknown_key(directory, exchange.transport.client, "This API key does not exist.")
    exchange.context.tenant, exchange.context.key_id = key.tenant, key.id
    if key.revoked is not None:
        token = key.role is Role.ENROLMENT
        raise FlorinError("revoked_api_key", USED_UP if token else "This API key has been revoked.")
    if directory.expired(key):
        raise FlorinError("expired_api_key", "This key or token has expired.")
    check_tenant(directory, key)
    return key


def unknown_key(
    directory: Directory, address: str, message: str, code: str = "invalid_api_key"
) -> FlorinError:
    """The answer to a key, token or link that is not known, which counts against the client's address."""
    wait = directory.failed_keys.record(address)
    if not wait:
        return FlorinError(code, message)
    text = f"{message} Too many unknown keys have come from your address: wait {wait} s."
    return FlorinError("too_many_failed_keys", text, retry_after=wait)


def looks_like_token(bearer: bytes) -> bool:
    """Whether a bearer is the token of a person (a JWT) rather than a key."""
    return bearer.startswith(b"eyJ") and bearer.count(b".") == 2


def check_tenant(directory: Directory, key: Key) -> None:
    """Raises FlorinError for a key of a suspended tenant."""
    if key.role in TENANT_ROLES and directory.suspended(key.tenant):
        raise FlorinError("tenant_suspended", "This account is suspended. Contact its operator.")


def _either(exchange: Exchange) -> bytes:
    """A key in either header. Two different keys are refused, because it is unclear whose request it is.
    Clients send two if they find one of Anthropic's own in their environment."""
    bearer, own = exchange.bearer(), exchange.api_key()
    if bearer and own and bearer != own:
        text = "`Authorization` and `x-api-key` hold different keys. Send only one of them."
        raise FlorinError("invalid_api_key", text)
    return bearer or own


def authenticate_caller(
    exchange: Exchange, directory: Directory, follower: Follower, *, calls: str = ""
) -> Key:
    """The request's key, which must be a tenant's: other roles cannot call models. `calls`: the path of the
    endpoint, which the key's scopes must include; empty: the request only lists models."""
    key = authenticate(exchange, directory, follower, api_key=True)
    if key.role not in TENANT_ROLES:
        raise FlorinError(
            "insufficient_role",
            f"Calling models requires a key of role tenant or tenant-admin; this key has role {key.role}.",
        )
    if calls and (key.scopes.endpoints or key.scopes.read_only):
        check_endpoint(key, calls)
    return key
