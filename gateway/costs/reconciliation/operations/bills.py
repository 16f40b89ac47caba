"""Import and remove the GPU provider's bills."""

from __future__ import annotations

from adapters.errors import Finding
from gateway.costs.reconciliation.bill_files import BillFormat
from gateway.costs.reconciliation.bills import (
    BillConflictError,
    BillNotFoundError,
    BillRefusedError,
    import_bill,
    remove_bill,
)
from gateway.errors import FlorinError
from gateway.operations.state import State
from gateway.operations.transaction import Json


async def add(
    state: State, path: str, *, file_name: str, reading: BillFormat, skip_bad: bool, actor: str
) -> Json:
    """Import the file at `path`. Returns what was imported; `new` is 0 if all lines were imported before.
    Raises FlorinError with a finding for each mistake, LedgerUnavailableError."""
    try:
        return await state.ledger_process.run(
            import_bill,
            path,
            file_name=file_name,
            reading=reading,
            skip_bad=skip_bad,
            now=state.clock.now(),
            actor=actor,
        )
    except BillRefusedError as error:
        findings = tuple(
            Finding("bill_line", mistake.reason, mistake.where, "") for mistake in error.mistakes
        )
        raise FlorinError("bill_rejected", error.message, findings=findings) from error
    except BillConflictError as error:
        raise FlorinError("conflict", str(error)) from error


async def remove(state: State, source: str, *, actor: str) -> Json:
    """Remove an import and its lines. `source`: SHA-256 of the file, or a prefix of it. Raises FlorinError,
    LedgerUnavailableError."""
    try:
        return await state.ledger_process.run(remove_bill, source, now=state.clock.now(), actor=actor)
    except BillNotFoundError as error:
        raise FlorinError("not_found", str(error)) from error
