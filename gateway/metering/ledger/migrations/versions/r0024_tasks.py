"""What requests asked of their engines: to generate text, to embed it or to score it."""

from alembic import op
from sqlalchemy import Column, Text, text

revision = "0024"
down_revision = "0023"

_TABLES = ("usage_names", "rollups", "rollup_parts", "daily_rollups", "daily_parts")


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, Column("task", Text(), server_default=text("''"), nullable=False))
    op.execute("DROP VIEW usage")
    sqlite = op.get_bind().dialect.name == "sqlite"
    digits = "lower(hex(r.id))" if sqlite else "encode(r.id, 'hex')"
    op.execute(
        "CREATE VIEW usage AS SELECT r.id, "  # noqa: S608  # our names
        f"coalesce(r.request_id, 'req-' || substr({digits}, 1, 28)) AS request_id, "
        "r.attempt, t.tenant, n.key_id, n.adapter, n.version, n.base_model, p.engine, p.gpu_type, "
        "p.gpu_count, r.dispatched, r.first_token, r.ended, r.prompt_tokens, r.cached_tokens, "
        "r.completion_tokens, r.reasoning_tokens, r.n, n.usage_source, n.outcome, r.billable, "
        "r.adapter_loads, r.hour_marks, r.end_user, r.tag, n.cost_centre, n.service_tier, n.task, r.batch, "
        "r.tenant AS tenant_id FROM usage_records AS r "
        "JOIN usage_tenants AS t ON t.id = r.tenant JOIN usage_places AS p ON p.id = r.place "
        "JOIN usage_names AS n ON n.id = r.names"
    )
