"""An engine's registration: by operators, by its own host, and in fleet files."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints, ValidationInfo, field_validator

from adapters.drivers import DRIVERS
from adapters.drivers.driver import Loading
from adapters.model import DriverName, Purchase, Task
from gateway.schemas.base import Count, Label, Labels, StrictBody, as_json
from gateway.schemas.options import Option

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


Tasks = Annotated[
    tuple[Task, ...],
    Field(min_length=1, max_length=16),
    AfterValidator(lambda tasks: tuple(task for task in get_args(Task) if task in tasks)),
]
"""Each once, in one order, so that equal registrations are equal."""
_VERSION = r"[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?@v[1-9][0-9]{0,8}"
VersionId = Annotated[str, StringConstraints(pattern=rf"^{_VERSION}$")]
OnlyVersion = Annotated[str, StringConstraints(pattern=rf"^({_VERSION})?$")]
"""Empty: none."""
HeldVersions = Annotated[
    tuple[VersionId, ...], Field(max_length=10_000), AfterValidator(lambda ids: tuple(sorted(set(ids))))
]
PromptScores = Literal["safe", "unsafe"]
HostName = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._:/-]*$")]


def _not_reserved(labels: dict[str, str]) -> dict[str, str]:
    for label in ("region", "gpu_type"):
        if label in labels:
            raise ValueError(f"{label} is a label already: set the field {label} instead")
    return labels


EngineTenant = Annotated[str, StringConstraints(pattern=r"^([a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?)?$")]
EngineLabels = Annotated[Labels, AfterValidator(_not_reserved)]


PURCHASES: Final = {"on_demand": "On demand", "spot": "Spot", "reserved": "Reserved"}
"""As a form calls them."""
_DRIVER_TITLES: Final = {name: kind.title for name, kind in DRIVERS.items()}


class EngineAddress(StrictBody):
    name: Annotated[str, Option()] = Field(description="1 to 63 of a-z, 0-9, - and _.", examples=["a1"])
    url: Annotated[str, Option("URL", flag="--url")] = Field(
        max_length=2000, description="The engine's URL.", examples=["http://10.0.0.7:8000"]
    )


class EngineOptions(StrictBody):
    """The fields of every registration of an engine."""

    base: Annotated[Label, Option("Base model")] = Field(
        description="The base model's name, as the engine serves it."
    )
    gpu_type: Annotated[Label, Option("GPU type")] = Field(
        description="Its GPU type, as named in the price book.", examples=["H200"]
    )
    serves: Annotated[OnlyVersion, Option("Serves only", metavar="TENANT/NAME@VERSION")] = Field(
        "",
        description="The version that is merged into its weights: it serves that one and nothing else. "
        "Empty: it serves its base model and adapters.",
        examples=["acme/support@v3"],
    )
    slots: Annotated[Count | None, Option()] = Field(
        None,
        validate_default=True,
        description="The engine's --max-loras, unless it serves one version only; verified once the engine "
        "has answered.",
    )
    max_rank: Annotated[Count | None, Option("Maximum rank")] = Field(
        None,
        validate_default=True,
        description="The engine's --max-lora-rank, unless it serves one version only. vLLM does not report "
        "it, so it cannot be verified.",
    )
    gpu_count: Annotated[Count, Option("GPUs")] = Field(1, description="Number of GPUs of this engine.")
    region: Annotated[str, Option()] = Field(
        "",
        max_length=63,
        pattern=r"^[ -~]*$",
        description="Region of its GPUs, as named in the price book; empty: not said.",
        examples=["eu-1"],
    )
    purchase: Annotated[Purchase, Option("Purchase", choices=PURCHASES)] = Field(
        "on_demand", description="Purchase model of its GPUs."
    )
    labels: Annotated[EngineLabels, Option(flag="--label")] = Field(
        default_factory=dict,
        description="What tenants may require of it, besides its region and GPU type.",
        examples=[{"pool": "acme"}],
    )
    tenant: Annotated[EngineTenant, Option("Set aside for")] = Field(
        "",
        description="The tenant to which it is dedicated: it serves no other. Empty: everyone. A host cannot "
        "change it with a key of its own.",
        examples=["acme"],
    )
    host: Annotated[HostName, Option("Failure domain")] = Field(
        "",
        description="Failure domain that it shares with other engines; empty: the host of its URL.",
        examples=["rack7"],
    )
    cpu_slots: Annotated[Count | None, Option("CPU slots")] = Field(
        None, description="The engine's --max-cpu-loras; as many as its slots if left out."
    )
    seats: Annotated[Count | None, Option()] = Field(
        None, description="The engine's --max-num-seqs; learned from its metrics if left out."
    )
    prompt_scores: Annotated[PromptScores | None, Option()] = Field(
        None,
        description="Whether it survives requests that have their prompts scored (`prompt_logprobs`, `echo` "
        "with `logprobs`). Left out: it is tried.",
    )
    driver: Annotated[DriverName, Option("Kind of engine", choices=_DRIVER_TITLES)] = Field(
        "vllm", description="Which kind of engine it is; see docs/other-engines.md."
    )
    tasks: Annotated[Tasks, Option(kind="words")] = Field(
        ("generate",),
        description="What it does, comma-separated: `generate` text, `embed` it, or `score` pairs of texts.",
    )
    holds: Annotated[HeldVersions, Option(flag="--holds", metavar="TENANT/NAME@VERSION")] = Field(
        (),
        description="A version that it was started with, for an engine that loads none later (`tgi`).",
        examples=[["acme/support@v1"]],
    )

    @field_validator("slots", "max_rank", "cpu_slots")
    @classmethod
    def _of_adapters(cls, value: int | None, info: ValidationInfo) -> int | None:
        serves = info.data.get("serves")
        if value is None and not serves and info.field_name != "cpu_slots":
            raise ValueError(f"{info.field_name} is required of an engine that loads adapters")
        if value is not None and serves:
            raise ValueError(f"leave {info.field_name} out: the engine loads no adapters")
        return value

    @field_validator("cpu_slots")
    @classmethod
    def _at_least_slots(cls, cpu_slots: int | None, info: ValidationInfo) -> int | None:
        slots = info.data.get("slots") or 0
        if cpu_slots is not None and cpu_slots < slots:
            raise ValueError(f"cpu_slots is {cpu_slots}, but must be at least slots ({slots})")
        return cpu_slots

    @field_validator("driver")
    @classmethod
    def _merges(cls, driver: DriverName, info: ValidationInfo) -> DriverName:
        if driver != "vllm" and info.data.get("serves"):
            raise ValueError("only vLLM serves a version that is merged into its weights")
        return driver

    @field_validator("tasks", "holds")
    @classmethod
    def _of_its_kind(cls, value: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        kind = DRIVERS[info.data.get("driver", "vllm")]
        if info.field_name == "tasks" and (foreign := sorted(set(value) - kind.capabilities.tasks)):
            raise ValueError(f"Florin does not use {kind.title} to {foreign[0]}")
        if info.field_name == "holds" and value and kind.capabilities.loading is not Loading.START:
            raise ValueError(f"{kind.title} loads adapters when they are called: leave `holds` out")
        return value


class NewEngine(EngineOptions, EngineAddress):
    verify: Annotated[
        bool,
        Option(
            "Ask the engine first, and refuse it if its answers do not fit",
            flag="--no-verify",
            help="Register the engine even if it does not answer yet.",
        ),
    ] = Field(True, description="Ask the engine, and refuse it if its answers do not fit.")
    base_config: Annotated[str | None, Option("Path of config.json", kind="path")] = Field(
        None,
        max_length=4096,
        description="The base model's config.json, if the gateway cannot read the engine's files.",
    )
    base_aliases: Annotated[
        tuple[Label, ...],
        Option(flag="--base-alias", help="Another name that adapters use for the base model."),
    ] = Field((), max_length=100, description="Other names that adapters give the base model.")
    trial: Annotated[
        int | None,
        Field(ge=1, le=50),
        Option(
            "Share of requests on trial",
            help="Try it first: it gets this percentage of the requests until it has shown that it is no "
            "worse than the rest of its fleet.",
        ),
    ] = Field(
        None,
        description="If this name is new, or its software has another version than before, and no other "
        "engine of its fleet has that version: begin a trial with this percentage of the requests.",
        examples=[5],
    )
    process: ProcessFields | None = Field(
        None, description="What `florin engine run` says of the process that it runs."
    )

    @property
    def brought(self) -> tuple[dict[str, Any] | None, str | None] | None:
        return None if self.process is None else (self.process.config, self.process.chat_template)
