"""What is in the database beside the tables: the view of usage records with their names, and triggers that
refuse to rewrite what is append-only."""

from __future__ import annotations

from sqlalchemy import DDL, event

from gateway.metering.ledger.schema.chain import ledger_chain
from gateway.metering.ledger.schema.journal import audit_log
from gateway.metering.ledger.schema.metadata import schema

_DIGITS = {"sqlite": "lower(hex(r.id))", "postgresql": "encode(r.id, 'hex')"}
_FUNCTION = (
    "CREATE FUNCTION florin_append_only() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION '%% is append-only', TG_TABLE_NAME; END $$"
)


def _create(statement: str, dialect: str) -> None:
    """Once all tables are there."""
    ddl = DDL(statement)  # type: ignore[no-untyped-call]
    event.listen(schema, "after_create", ddl.execute_if(dialect=dialect))


for _dialect, _digits in _DIGITS.items():
    _create(
        "CREATE VIEW usage AS SELECT r.id, "  # noqa: S608  # our names
        f"coalesce(r.request_id, 'req-' || substr({_digits}, 1, 28)) AS request_id, "
        "r.attempt, t.tenant, n.key_id, n.adapter, n.version, n.base_model, p.engine, p.gpu_type, "
        "p.gpu_count, r.dispatched, r.first_token, r.ended, r.prompt_tokens, r.cached_tokens, "
        "r.completion_tokens, r.reasoning_tokens, r.n, n.usage_source, n.outcome, r.billable, "
        "r.adapter_loads, r.hour_marks, r.end_user, r.tag, n.cost_centre, n.service_tier, n.task, r.batch, "
        "r.tenant AS tenant_id FROM usage_records AS r "
        "JOIN usage_tenants AS t ON t.id = r.tenant JOIN usage_places AS p ON p.id = r.place "
        "JOIN usage_names AS n ON n.id = r.names",
        _dialect,
    )
_create(_FUNCTION, "postgresql")
for _table in (audit_log.name, ledger_chain.name):
    _create(
        f"CREATE TRIGGER {_table}_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON {_table} "
        "FOR EACH STATEMENT EXECUTE FUNCTION florin_append_only()",
        "postgresql",
    )
    for _change in ("UPDATE", "DELETE"):
        _create(
            f"CREATE TRIGGER {_table}_no_{_change.lower()} BEFORE {_change} ON {_table} "
            f"BEGIN SELECT RAISE(ABORT, '{_table} is append-only'); END",
            "sqlite",
        )
