"""Settings of files and batches."""

from __future__ import annotations

from pydantic import BaseModel, Field, NonNegativeInt, PositiveFloat, PositiveInt

from gateway.config.field_types import RELOAD


class BatchSettings(BaseModel):
    batch_concurrency: NonNegativeInt = Field(
        64,
        description="Maximum lines of batches that a worker has in flight, over all batches that it runs. "
        "0: it runs none.",
        json_schema_extra=RELOAD,
    )
    batch_lease: PositiveFloat = Field(
        30.0,
        ge=1.0,
        description="Seconds after which other workers take over the batches of one that died; at least 1.",
        json_schema_extra=RELOAD,
    )
    batch_max_lines: PositiveInt = Field(
        50_000, description="Maximum lines of one batch.", json_schema_extra=RELOAD
    )
    tenant_batches: PositiveInt = Field(
        100, description="Maximum batches of a tenant that have not ended.", json_schema_extra=RELOAD
    )
    tenant_batch_lines: PositiveInt = Field(
        500_000,
        description="Maximum lines of a tenant's batches that have no answer yet.",
        json_schema_extra=RELOAD,
    )
    max_file_bytes: PositiveInt = Field(
        200 * 1024 * 1024, description="Maximum size in bytes of an uploaded file.", json_schema_extra=RELOAD
    )
    tenant_files: PositiveInt = Field(
        1000, description="Maximum files of a tenant, output files included.", json_schema_extra=RELOAD
    )
    tenant_file_bytes: PositiveInt = Field(
        5 * 1024**3,
        description="Maximum bytes of a tenant's files, output files included, beyond which uploads are "
        "refused. They are stored in the ledger's database.",
        json_schema_extra=RELOAD,
    )
    file_retention_days: PositiveInt = Field(
        30,
        description="Days after which a file is deleted, unless its upload says otherwise; and a batch, once "
        "its files are gone.",
        json_schema_extra=RELOAD,
    )
