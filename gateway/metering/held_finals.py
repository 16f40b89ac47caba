"""Holds back the final usage record of a request whose answer is stored, not sent.

An answer that goes to a client is logged first, then sent. One that is stored in the ledger's database can do
better: its usage record is inserted in the same transaction, so that neither exists without the other. Until
then, the usage log has the attempt as one that is running. If the worker dies, its successor closes it as
orphaned: not billable if the transaction did not commit, and a known duplicate if it did (see
`Ledger.insert`).
"""

from __future__ import annotations

from gateway.metering.attempt import AttemptMeter, Recorder
from gateway.metering.records import Outcome, UsageRecord, parse_line


class HeldFinals:
    """The final record of one request that is held back. Its attempts that are not billable are logged as
    usual.

    Mutable: `release` must be called once the request is over; it is idempotent. On the worker's event loop
    only."""

    def __init__(self) -> None:
        self._meter: Recorder | None = None
        self._attempt: AttemptMeter | None = None
        self._line = b""

    def __repr__(self) -> str:
        return f"<HeldFinals {self._attempt}>"

    def recorder(self, meter: Recorder) -> Recorder:
        """The recorder of an attempt of this request."""
        self._meter = meter
        return _Holding(self, meter)

    def hold(self, attempt: AttemptMeter, line: bytes) -> None:
        self.release(delivered=False)  # only the last one can be delivered
        self._attempt, self._line = attempt, line
        attempt.held = True

    @property
    def record(self) -> UsageRecord | None:
        """The record of the answer; None: no attempt was billable."""
        return parse_line(self._line) if self._attempt is not None else None

    def release(self, *, delivered: bool) -> None:
        """Log the final record: as it is, or as one of an attempt whose answer nobody will see."""
        attempt, meter, line = self._attempt, self._meter, self._line
        if attempt is None or meter is None:
            return
        self._attempt, attempt.held = None, False
        if not delivered:
            # As its successor would have logged it: if it was stored all the same, the two agree.
            line = parse_line(line)._replace(billable=False, outcome=Outcome.ORPHANED.value).line()
        meter.finished(attempt, line)


class _Holding:
    """See `attempt.Recorder`."""

    def __init__(self, finals: HeldFinals, meter: Recorder) -> None:
        self.clock = meter.clock
        self._finals = finals
        self._meter = meter

    def finished(self, attempt: AttemptMeter, line: bytes) -> None:
        if attempt.billable:
            self._finals.hold(attempt, line)
        else:
            self._meter.finished(attempt, line)

    @property
    def written(self) -> bool:
        return self._meter.written

    async def settled(self) -> None:
        await self._meter.settled()
