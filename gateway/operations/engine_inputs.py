"""Inputs of operations on engines: what a registration says, typed, validated, and without unknown fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints

from adapters.drivers import DRIVERS
from adapters.drivers.driver import Loading
from adapters.model import DriverName, Engine, Purchase, Task, check_name
from gateway.errors import FlorinError
from gateway.operations.engine_checks import normal_url
from gateway.operations.inputs import Count, Label, Labels, StrictBody, as_json

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
VersionId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?@v[1-9][0-9]{0,8}$"
    ),
]
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
    prompt_scores: PromptScores | None = Field(
        None,
        description="Whether it survives requests that have their prompts scored. Left out: it is tried.",
    )
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
            prompt_scores=self.prompt_scores or "unknown",
            declared_scores=self.prompt_scores or "",
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
