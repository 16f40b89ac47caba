"""The ledger process without a process."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

from gateway.costs.maintenance.ledger_process import LedgerProcess
from gateway.metering.ledger.ledger import Ledger


class LedgerProcessHere(LedgerProcess):
    """Runs ledger functions in a thread, one at a time; what would go to a process and come back is pickled, too.
    Mutable: `going`, without which calls wait."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("sqlite://")
        self._ledger = ledger
        self._turn = asyncio.Lock()
        self.going = asyncio.Event()
        self.going.set()

    async def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        call = pickle.dumps((function, args, kwargs))
        async with self._turn:
            await self.going.wait()
            answer, error = pickle.loads(await asyncio.to_thread(self._call, call))  # our own
        if error is not None:
            raise error
        return answer

    def _call(self, call: bytes) -> bytes:
        function, args, kwargs = pickle.loads(call)  # our own
        try:
            return pickle.dumps((function(self._ledger, *args, **kwargs), None))
        except Exception as error:  # noqa: BLE001  # whoever called gets it
            return pickle.dumps((None, error))

    def _other(self, name: str) -> LedgerProcess:
        return self._beside.setdefault(name, LedgerProcessHere(self._ledger))
