"""What operations are given: checked, typed, and without a field that nobody knows."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from adapters.model import Engine, Purchase, check_name
from gateway.errors import FlorinError
from gateway.operations.engine_checks import normal_url


def as_json(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, which can be stored and read again. Raises ValueError."""
    try:
        json.dumps(config, allow_nan=False)
        orjson.dumps(config)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "it holds what JSON does not: NaN, a number beyond 64 bits, or half a letter"
        ) from None
    return config


class StrictBody(BaseModel):
    """A request body: unknown fields are refused, so that a slip is not silently without effect."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewPrice(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    rate_per_gpu_hour: Annotated[
        str, Field(max_length=40, description="A decimal of at most six places.", examples=["2.50"])
    ]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    purchase: Literal["on_demand", "spot", "reserved"] = "on_demand"
    region: Annotated[str, Field(max_length=63, pattern=r"^[ -~]*$")] = ""
    valid_from: Annotated[
        str | None,
        Field(
            description="ISO 8601, UTC. Left out: the first price of its series holds from the beginning of "
            "what is not closed, a later one from now on."
        ),
    ] = None
    valid_to: Annotated[
        str | None, Field(description="Not included. Left out: until the next price of its series.")
    ] = None
    speedup: Annotated[
        str | None,
        Field(
            max_length=40,
            description="How many times as fast as the reference GPU; a decimal of at most three places.",
            examples=["2.5"],
        ),
    ] = None
    speedup_reference: Annotated[
        str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="A GPU type.")
    ] = None
    speedup_source: Annotated[
        str | None, Field(min_length=1, max_length=300, description="Who measured it, and how.")
    ] = None


Token = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]


class HostFields(StrictBody):
    epoch: Token = Field(description="Of the engine's process; another one holds nothing.")
    instance: Token = Field(description="Of the agent's process.")
    agent: str = Field(max_length=2000, description="Where the gateway reaches the agent.")
    stopping: bool = Field(False, description="The engine is being drained.")
    config: Annotated[dict[str, Any], AfterValidator(as_json)] | None = Field(
        None, description="The base model's config.json."
    )
    chat_template: str | None = Field(
        None,
        max_length=64,
        pattern=r"^[0-9a-f]*$",
        description="SHA-256, hex, of the base model's chat template; empty: it has none.",
    )


Label = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+( [\x21-\x7e]+)*$")
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]


class NewEngine(StrictBody):
    name: str = Field(examples=["a1"])
    url: str = Field(max_length=2000, examples=["http://10.0.0.7:8000"])
    base: Label = Field(description="The base model, as the engine serves it.")
    gpu_type: Label = Field(description="What prices are given for.", examples=["H200"])
    gpu_count: Count = 1
    region: str = Field(
        "",
        max_length=63,
        pattern=r"^[ -~]*$",
        description="Where its GPUs are paid for, as in the price book; empty: not said.",
        examples=["eu-1"],
    )
    purchase: Purchase = "on_demand"
    slots: Count = Field(description="--max-loras")
    cpu_slots: Count | None = Field(None, description="--max-cpu-loras; as many as `slots` if left out.")
    max_rank: Count = Field(description="--max-lora-rank")
    verify: bool = Field(True, description="Ask the engine, and refuse it if its answers do not fit.")
    base_config: str | None = Field(
        None, max_length=4096, description="Path of the base model's config.json on the gateway's host."
    )
    base_aliases: tuple[Label, ...] = Field(
        (), max_length=100, description="Other names that adapters give the base model."
    )
    host: HostFields | None = Field(None, description="What `florin engine run` says of its host.")

    @property
    def brought(self) -> tuple[dict[str, Any] | None, str | None] | None:
        return None if self.host is None else (self.host.config, self.host.chat_template)

    def engine(self) -> Engine:
        check_name("engine", self.name)
        cpu_slots = self.slots if self.cpu_slots is None else self.cpu_slots
        if cpu_slots < self.slots:
            raise FlorinError(
                "invalid_value",
                f"cpu_slots is {cpu_slots}, but must be at least slots ({self.slots}).",
                param="cpu_slots",
            )
        return Engine(
            name=self.name,
            url=normal_url(self.url),
            base_model=self.base,
            gpu_type=self.gpu_type,
            slots=self.slots,
            max_rank=self.max_rank,
            gpu_count=self.gpu_count,
            cpu_slots=cpu_slots,
            region=self.region,
            purchase=self.purchase,
            epoch=self.host.epoch if self.host else "",
            agent=normal_url(self.host.agent) if self.host else "",
            stopping=self.host.stopping if self.host else False,
        )
