"""Inputs of operations: typed, validated, and without unknown fields."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from adapters.drivers import DRIVERS
from adapters.drivers.driver import Loading
from adapters.model import DriverName, Engine, Guard, Purchase, Task, check_name
from gateway.errors import FlorinError
from gateway.operations.engine_checks import normal_url


def as_json(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, if it is storable JSON. Raises ValueError."""
    try:
        json.dumps(config, allow_nan=False)
        orjson.dumps(config)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "it holds what JSON does not: NaN, a number beyond 64 bits, or half a letter"
        ) from None
    return config


class StrictBody(BaseModel):
    """A request body. Unknown fields are rejected, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewPrice(StrictBody):
    gpu_type: Annotated[
        str, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="As engines are labelled.")
    ]
    rate_per_gpu_hour: Annotated[
        str, Field(max_length=40, description="A decimal with at most six places.", examples=["2.50"])
    ]
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$")] = "USD"
    purchase: Literal["on_demand", "spot", "reserved"] = "on_demand"
    region: Annotated[str, Field(max_length=63, pattern=r"^[ -~]*$")] = ""
    valid_from: Annotated[
        str | None,
        Field(
            description="ISO 8601, UTC. Default: the end of the last closed month for the first price of a "
            "series, and now for a later one."
        ),
    ] = None
    valid_to: Annotated[
        str | None, Field(description="Exclusive. Default: until the next price of the series.")
    ] = None
    speedup: Annotated[
        str | None,
        Field(
            max_length=40,
            description="Speed relative to the reference GPU; a decimal with at most three places.",
            examples=["2.5"],
        ),
    ] = None
    speedup_reference: Annotated[
        str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$", description="A GPU type.")
    ] = None
    speedup_source: Annotated[
        str | None, Field(min_length=1, max_length=300, description="Who measured it, and how.")
    ] = None


class GuardSpec(StrictBody):
    """See `adapters.model.Guard`."""

    action: Literal["rollback", "hold"] = Field(
        description="What happens to a canary that is worse than the live version: it is rolled back, or its "
        "weight is frozen."
    )
    max_error_rate: float = Field(
        0.01, gt=0, lt=1, description="Part of its requests that may fail, whatever the live version's do."
    )
    max_latency_ratio: float = Field(
        1.5, ge=1, le=100, description="How many times the live version's latency its own may be."
    )
    min_requests: int = Field(50, ge=1, le=1_000_000, description="Requests before anything is decided.")
    window_seconds: int = Field(
        1800,
        ge=20,
        le=7 * 86_400,
        description="How far back requests count, and how long each weight is watched before the next.",
    )
    then: tuple[Annotated[int, Field(ge=2, le=100)], ...] = Field(
        (),
        max_length=20,
        description="Weights that follow by themselves, ascending; 100 makes the version live.",
        examples=[[50, 100]],
    )

    @model_validator(mode="after")
    def _ascending(self) -> GuardSpec:
        if any(later <= earlier for earlier, later in pairwise(self.then)):
            raise ValueError("then must ascend")
        return self

    def guard(self) -> Guard:
        return Guard(**self.model_dump())

    @classmethod
    def of(cls, guard: Guard) -> GuardSpec:
        return cls.model_construct(**asdict(guard))


class PriceCorrection(StrictBody):
    reason: Annotated[str, Field(min_length=1, max_length=300, description="Why, for the audit.")]
    gpu_type: Annotated[str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$")] = None
    rate_per_gpu_hour: Annotated[
        str | None, Field(max_length=40, description="A decimal with at most six places.", examples=["2.50"])
    ] = None
    purchase: Literal["on_demand", "spot", "reserved"] | None = None
    region: Annotated[str | None, Field(max_length=63, pattern=r"^[ -~]*$")] = None
    valid_from: Annotated[str | None, Field(description="ISO 8601, UTC.")] = None
    valid_to: Annotated[str | None, Field(description="Exclusive.")] = None
    open_ended: Annotated[bool, Field(description="Removes `valid_to`.")] = False
    speedup: Annotated[str | None, Field(max_length=40)] = None
    speedup_reference: Annotated[str | None, Field(min_length=1, max_length=63, pattern=r"^[ -~]+$")] = None
    speedup_source: Annotated[str | None, Field(min_length=1, max_length=300)] = None
    withdraw: Annotated[bool, Field(description="It should not have been added: nothing replaces it.")] = (
        False
    )


class NewExchangeRate(StrictBody):
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", description="One unit of it…", examples=["USD"])]
    target: Annotated[str, Field(pattern="^[A-Z]{3}$", description="…is worth this many of it.")]
    rate: Annotated[
        str,
        Field(max_length=40, description="A decimal above 0 with at most nine places.", examples=["0.92"]),
    ]
    valid_from: Annotated[
        str, Field(max_length=40, description="First day, UTC. Valid until the next of the same pair.")
    ]
    source: Annotated[str, Field(min_length=1, max_length=300, description="Who published it.")]
    reason: Annotated[
        str | None,
        Field(min_length=1, max_length=300, description="Required to replace the rate of the same day: why."),
    ] = None


FixedShares = Annotated[
    dict[str, Annotated[int, Field(ge=0, lt=10**9)]] | None,
    Field(
        description="For policy `fixed`: shares by tenant, in any proportion. The tenants must be known.",
        examples=[{"acme": 60, "bolt": 40}],
    ),
]
SharesTotal = Annotated[
    int | None,
    Field(ge=1, description="What the shares sum to, for example 100. Otherwise they are refused."),
]


class ClosingTerms(StrictBody):
    policy: Annotated[
        Literal["none", "proportional", "even", "fixed"] | None,
        Field(
            description="Who bears idle time, spare capacity and start-up in this month, for all tenants. "
            "Default: the standing policy."
        ),
    ] = None
    shares: FixedShares = None
    shares_total: SharesTotal = None
    allow_missing_prices: Annotated[
        bool,
        Field(description="Charge nothing for unpriced GPU time; a price added later becomes a correction."),
    ] = False
    force: Annotated[
        bool,
        Field(
            description="Close within an hour of the month's end, although workers may still hold records."
        ),
    ] = False


class NewPolicy(StrictBody):
    policy: Annotated[
        Literal["none", "proportional", "even", "fixed", "default"],
        Field(
            description="Who bears idle time, spare capacity and start-up. A tenant's own policy is `none`, "
            "`proportional`, `even`, or `default` (the installation's)."
        ),
    ]
    shares: FixedShares = None
    shares_total: SharesTotal = None
    tenant: Annotated[
        str | None, Field(max_length=200, description="Default: the installation, for all other tenants.")
    ] = None
    valid_from: Annotated[
        str | None, Field(description="First month, like `2026-11`. Default: the first open one.")
    ] = None
    reason: Annotated[str, Field(max_length=500, description="For the history and the audit log.")] = ""


Token = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9-]+$")]


class ProcessFields(StrictBody):
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
Address = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._:-]+$")]
"""A host name or an IP address."""
Replicas = Annotated[int, Field(ge=0, le=10_000)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_./-]{0,61}[a-z0-9])?$")]
Labels = Annotated[dict[LabelName, Label], Field(max_length=32)]
Tasks = Annotated[
    tuple[Task, ...],
    Field(min_length=1, max_length=16),
    AfterValidator(lambda tasks: tuple(task for task in get_args(Task) if task in tasks)),
]
"""Each once, in one order, so that equal registrations are equal."""
VersionId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?@v[1-9][0-9]{0,8}$"
    ),
]
HeldVersions = Annotated[
    tuple[VersionId, ...], Field(max_length=10_000), AfterValidator(lambda ids: tuple(sorted(set(ids))))
]
HostName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._:/-]*$")]


def check_replicas(least: int, most: int | None) -> None:
    """Raises ValueError."""
    if most == 0:
        raise ValueError("max_replicas is 0: it must be at least 1, or null for no limit")
    if most is not None and least > most:
        raise ValueError(f"min_replicas is {least}, which exceeds max_replicas ({most})")


def _not_reserved(labels: dict[str, str]) -> dict[str, str]:
    for label in ("region", "gpu_type"):
        if label in labels:
            raise ValueError(f"{label} is a label already: set the field {label} instead")
    return labels


EngineLabels = Annotated[Labels, AfterValidator(_not_reserved)]


def mistaken_kind(driver: DriverName, tasks: Iterable[Task], holds: Collection[str]) -> tuple[str, str]:
    """The field that says of an engine what its kind cannot be, and why not; both empty: none."""
    kind = DRIVERS[driver]
    wrong = sorted(set(tasks) - kind.capabilities.tasks)
    if wrong:
        return "tasks", f"Florin does not use {kind.title} to {wrong[0]}."
    if holds and kind.capabilities.loading is not Loading.START:
        return "holds", f"{kind.title} loads adapters when they are called: leave `holds` out."
    return "", ""


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
    labels: EngineLabels = Field(
        default_factory=dict,
        description="What tenants may require of it, besides `region` and `gpu_type`.",
        examples=[{"pool": "acme"}],
    )
    host: HostName = Field(
        "",
        description="Failure domain that it shares with other engines; empty: the host of its URL.",
        examples=["rack7"],
    )
    driver: DriverName = Field("vllm", description="Which kind of engine it is.")
    slots: Count = Field(description="--max-loras, or what the engine calls it.")
    cpu_slots: Count | None = Field(None, description="--max-cpu-loras; as many as `slots` if left out.")
    max_rank: Count = Field(description="--max-lora-rank")
    seats: Count | None = Field(None, description="--max-num-seqs; learned from its metrics if left out.")
    tasks: Tasks = Field(
        ("generate",), description="What it does: `generate` text, `embed` it, or `score` pairs of texts."
    )
    holds: HeldVersions = Field(
        (),
        description="Versions that it was started with, for an engine that loads none later (`tgi`).",
        examples=[["acme/support@v1"]],
    )
    verify: bool = Field(True, description="Ask the engine, and refuse it if its answers do not fit.")
    base_config: str | None = Field(
        None, max_length=4096, description="Path of the base model's config.json on the gateway's host."
    )
    base_aliases: tuple[Label, ...] = Field(
        (), max_length=100, description="Other names that adapters give the base model."
    )
    process: ProcessFields | None = Field(
        None, description="What `florin engine run` says of the process that it runs."
    )

    @property
    def brought(self) -> tuple[dict[str, Any] | None, str | None] | None:
        return None if self.process is None else (self.process.config, self.process.chat_template)

    def engine(self) -> Engine:
        check_name("engine", self.name)
        cpu_slots = self.slots if self.cpu_slots is None else self.cpu_slots
        if cpu_slots < self.slots:
            raise FlorinError(
                "invalid_value",
                f"cpu_slots is {cpu_slots}, but must be at least slots ({self.slots}).",
                param="cpu_slots",
            )
        field, why = mistaken_kind(self.driver, self.tasks, self.holds)
        if field:
            raise FlorinError("invalid_value", why, param=field)
        return Engine(
            name=self.name,
            url=normal_url(self.url),
            base_model=self.base,
            gpu_type=self.gpu_type,
            slots=self.slots,
            max_rank=self.max_rank,
            gpu_count=self.gpu_count,
            cpu_slots=cpu_slots,
            seats=self.seats or 0,
            tasks=self.tasks,
            driver=self.driver,
            holds=self.holds,
            region=self.region,
            purchase=self.purchase,
            labels=self.labels,
            host=self.host,
            epoch=self.process.epoch if self.process else "",
            agent=normal_url(self.process.agent) if self.process else "",
            stopping=self.process.stopping if self.process else False,
        )
