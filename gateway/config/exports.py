"""Settings of exports by schedule."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

_DESTINATION = re.compile(
    r"s3://[A-Za-z0-9][A-Za-z0-9._-]{1,254}(/[^?#\\\x00-\x20]{0,512})?|file:///[^?#\x00-\x1f]{1,512}"
)


class ExportSettings(BaseModel):
    export_to: str = Field(
        "",
        description="Where Florin itself writes the FOCUS files of every month: `s3://BUCKET/PREFIX`, with "
        "the credentials of the environment (`AWS_*`), or `file:///DIRECTORY`. Empty: no exports.",
    )
    export_every: float = Field(
        6.0, gt=0, le=24, description="Hours between two exports of a month that is not closed."
    )
    export_dataset: Literal["chargeback", "infrastructure"] = Field(
        "chargeback", description="Dataset of these exports; see `florin cost export`."
    )
    export_format: Literal["focus-1.2", "focus-1.4", "cloudzero"] = Field(
        "focus-1.2",
        description="FOCUS version of these exports; or `cloudzero`: its Common Bill Format, in folders as "
        "its S3 connections read them.",
    )
    export_granularity: Literal["daily", "hourly"] = Field(
        "daily", description="Charge periods of these exports."
    )
    export_file: Literal["csv.gz", "parquet"] = Field("csv.gz", description="Format of these files.")

    @model_validator(mode="after")
    def _for_cloudzero(self) -> Self:
        if self.export_format == "cloudzero" and self.export_to:
            if self.export_file != "csv.gz":
                raise ValueError("export_file must be csv.gz with export_format cloudzero")
            if self.export_to.startswith("s3://") and "/" not in self.export_to.removeprefix("s3://"):
                raise ValueError("export_to needs a folder in the bucket with export_format cloudzero")
        return self

    @field_validator("export_to")
    @classmethod
    def _destination(cls, text: str) -> str:
        if text and (not _DESTINATION.fullmatch(text) or ".." in text.split("/")):
            msg = "must be s3://BUCKET/PREFIX or file:///DIRECTORY, without credentials"
            raise ValueError(msg)
        return text.rstrip("/")
