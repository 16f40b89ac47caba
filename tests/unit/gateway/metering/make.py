"""Usage records for tests."""

from sqlalchemy import Connection, select, update

from gateway.metering.ledger.record_rows import RECORD
from gateway.metering.ledger.schema import usage, usage_records
from gateway.metering.ledger.shared_names import SharedNames, shared_by
from gateway.metering.records import FINAL, UsageRecord, record_id
from gateway.units import HOUR


class LogStub:
    """What the shipper needs of the living log, when there is none."""

    synced_segment = 2**31

    def flush(self):
        return True


def record(request_id="req-1", attempt=1, **changes):
    start = changes.pop("dispatched", 100 * HOUR)
    made = UsageRecord(
        id=record_id(request_id, attempt),
        request_id=request_id,
        attempt=attempt,
        tenant="acme",
        key_id="key",
        adapter="acme/support",
        version="v1",
        base_model="base",
        engine="gpu-a",
        gpu_type="H100",
        gpu_count=1,
        dispatched=start,
        first_token=start + 10,
        ended=start + 1_000_000,
        prompt_tokens=10,
        cached_tokens=None,
        completion_tokens=5,
        reasoning_tokens=0,
        n=1,
        usage_source="engine_final",
        outcome="ok",
        billable=True,
        seq=FINAL,
        seen=start + 1_000_000,
    )
    return made._replace(**changes)


def intent(request_id="req-1", attempt=1, **changes):
    start = changes.get("dispatched", 100 * HOUR)
    base = {
        "seq": 0, "ended": None, "outcome": "", "billable": False, "usage_source": "none", "seen": start,
        "prompt_tokens": 0, "completion_tokens": 0, "first_token": None,
    }  # fmt: skip
    return record(request_id, attempt, **{**base, **changes})


def change_record(connection: Connection, id_: str, **changes: object) -> None:
    """What somebody does behind the ledger's back: to the record's own row, or to whose it is."""
    stored = UsageRecord(**connection.execute(select(*RECORD).where(usage.c.id == id_)).mappings().one())
    values = shared_by(stored._replace(**{k: v for k, v in changes.items() if k in UsageRecord._fields}))
    numbers = SharedNames().numbers(connection, [values])[values]
    own = {name: value for name, value in changes.items() if name in usage_records.columns}
    changed = {**own, **dict(zip(("tenant", "place", "names"), numbers, strict=True))}
    done = connection.execute(update(usage_records).where(usage_records.c.id == id_).values(**changed))
    assert done.rowcount == 1
