"""Try a version on behalf of an operator, whose key cannot call models.

It runs as the requests of an operator's evaluation do: under the tenant's evaluation key, with the tenant's
limits and budget, and in its usage and on its bill, where that key tells it from the tenant's own requests.
"""

from __future__ import annotations

from adapters.errors import NotFoundError
from adapters.model import AdapterName
from adapters.store.protocol.registry import AuditNote
from gateway.operations.state import State
from gateway.tenants.directory import Key, evaluation_key_id


def trial_key(state: State, name: AdapterName, number: int) -> Key:
    """The key under which the request runs. Raises NotFoundError."""
    version = state.catalog.versions.get(f"{name}@v{number}")
    tenant = state.directory.tenants.get(name.tenant)
    key = None if tenant is None else state.directory.batch_key(evaluation_key_id(tenant))
    if version is None or version.retired is not None or key is None:
        raise NotFoundError(f"There is no callable version v{number} of adapter {str(name)!r}.")
    return key


async def record(state: State, name: AdapterName, number: int, request_id: str, *, actor: str) -> None:
    """Record the trial before its request is sent; without the audit entry, nothing is sent. Raises
    StoreUnavailableError."""
    note = AuditNote(actor, "adapter.try", str(name), f"v{number}", {"request_id": request_id})
    await state.store.commit((), audit=note)
