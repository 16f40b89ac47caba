"""Engines: how the API describes them, and how their states are changed."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from adapters.model import DriverName, Guard, Purchase, Task, Unloads
from gateway.fleet.adapters.schemas.adapters import ArmFigures
from gateway.schemas.base import Answer, GuardTerms, StrictBody
from gateway.schemas.options import Option

EngineState = Literal["active", "cordoned", "draining"]
Health = Literal["up", "down", "unknown", "hung", "ejected"]
Phase = Literal["serving", "loading", "finishing", "drained"]


class NewState(StrictBody):
    state: EngineState


class DrainOptions(StrictBody):
    timeout: Annotated[float, Field(ge=0, le=86_400), Option("Timeout")] = Field(
        600.0,
        description="Seconds for loading its adapters elsewhere; then it gets no new requests anyway. Who "
        "waits for the drain waits as long again for its requests.",
    )
    release: Annotated[
        bool,
        Option(
            "Unload its adapters once its requests have finished",
            flag="--keep",
            help="Keep its adapters assigned to it: after a restart they are loaded again.",
        ),
    ] = Field(
        True,
        description="Unload its adapters once its requests have finished. false: keep them for a restart, "
        "after which they are loaded again.",
    )


class Heartbeat(Answer):
    """The last report of the agent that runs an engine."""

    epoch: str
    instance: str
    agent: str = Field(description="URL of the agent.")
    started: int = Field(0, description="Start of the epoch, Unix microseconds, UTC.")
    starts: int = Field(0, description="Number of times that this agent has started the engine.")
    cached_versions: int = 0
    cached_bytes: int = 0


class Hang(Answer):
    """How an engine answers health checks but does no work, as seen by this worker."""

    reason: str
    since: int = Field(description="Unix microseconds, UTC.")
    ejections: int = Field(description="How many times in a row it was taken out of service for a while.")
    next_probe_seconds: float


class Capabilities(Answer):
    """What Florin offers on engines of this kind: see docs/other-engines.md."""

    loading: str = Field(
        description="When it loads an adapter: by a `call`, with a `request`, at its `start`."
    )
    lists: bool = Field(description="It lists the adapters that it holds.")
    unloads: Unloads = Field(description="What an unload does; `unknown`: each process shows it.")
    base_for_unknown: bool = Field(description="Its base model answers for an adapter that it does not hold.")
    running_counts: bool = Field(description="Each chunk of a stream has the token counts so far.")
    salts: bool = Field(description="It keeps the prefix caches of different salts apart.")
    resumes: bool = Field(description="A stream that another engine began can be continued here.")
    prompt_scores: bool
    dora: bool
    routes: Annotated[tuple[str, ...], BeforeValidator(sorted)]
    tasks: Annotated[tuple[Task, ...], BeforeValidator(sorted)]


class OwnDrain(Answer):
    """How far the drain of an engine is, while it is draining or stopping."""

    until: int = Field(
        description="When it stops taking requests at the latest, Unix microseconds, UTC. 0: it rests until "
        "the version that it serves is live."
    )
    moved: bool = Field(description="Its versions are loaded elsewhere, or could not be.")
    release: bool = Field(description="What it holds is unloaded once its requests have finished.")


Share = Annotated[int, Field(ge=1, le=50)]


class NewTrial(GuardTerms):
    share: Annotated[Share, Option()] = Field(
        description="Percentage of the requests for the base model, and for adapters that other engines "
        "hold, too.",
        examples=[5],
    )
    then: Annotated[
        tuple[Annotated[int, Field(ge=2, le=100)], ...],
        Option(help="The next share, set automatically if nothing is wrong; 100 ends the trial."),
    ] = Field(
        (100,),
        max_length=20,
        description="Shares that follow automatically, ascending; 100 makes it an engine like the others.",
        examples=[[25, 100]],
    )

    def guard(self) -> Guard:
        """Ends the trial if the engine is worse."""
        return Guard("rollback", **self.model_dump(exclude={"share"}))


class OwnTrial(Answer):
    """The trial of an engine beside the rest of its fleet."""

    share: int = Field(description="Percent of the requests that it may serve.")
    since: int = Field(description="When the comparison began, Unix microseconds, UTC.")
    stopped: str = Field(description="Why its guard has drained it; empty: it has not.")


class TrialDetails(Answer):
    """A trial, and what was counted in the last window of the engine and of the rest of its fleet."""

    engine: str
    version: str = Field(description="Of its software; empty: unknown.")
    trial: OwnTrial
    guard: GuardTerms
    own: ArmFigures
    others: ArmFigures
    verdict: Literal["waiting", "keep", "drain", "raise"] = Field(description="The guard's.")
    reason: str


class Engine(Answer):
    """An engine with its health and load, as seen by this worker."""

    name: str
    url: str
    base: str = Field(description="Its base model.")
    gpu_type: str
    gpu_count: int
    region: str = Field(description="Region in which its GPUs are billed; empty: unknown.")
    purchase: Purchase
    labels: dict[str, str]
    tenant: str = Field("", description="The tenant to which it is dedicated; empty: everyone.")
    host: str = Field(description="Failure domain; empty: the host of its URL.")
    driver: DriverName
    version: str = Field(description="Of its software, as it reports it; empty: unknown.")
    tasks: tuple[Task, ...]
    slots: int
    cpu_slots: int
    max_rank: int
    max_model_len: int = Field(description="Tokens of prompt and answer together; 0: unknown.")
    seats: int = Field(description="Requests that it runs at a time; 0: unknown.")
    holds: tuple[str, ...] = Field(description="Versions that it was started with, if it loads none later.")
    serves: str = Field(
        description="The version that is merged into its weights: it serves nothing else; empty: none is."
    )
    prompt_scores: Literal["unknown", "safe", "unsafe"] = Field(
        description="`safe`: requests with `prompt_logprobs`, or `echo` and `logprobs`, are sent there."
    )
    declared_scores: Literal["", "safe", "unsafe"] = Field(description="What its registration says of that.")
    unloads: Unloads = Field(
        description="What its process has shown an unload to do. `forgets`: the name goes, the weights stay "
        "until others take their place. `removes`: the weights go, too. `refuses`: likewise, but it keeps "
        "the name of an adapter that it no longer holds. `unknown`: taken for `forgets`."
    )
    state: EngineState = Field(
        description="`cordoned`: takes no new adapters; `draining`: takes no new requests either."
    )
    stopping: bool = Field(description="Its host is stopping it.")
    stopped: int = Field(description="When its host stopped it, Unix microseconds, UTC; 0: it did not.")
    drain: OwnDrain | None
    trial: OwnTrial | None = Field(
        None, description="Its trial beside the rest of its fleet; null: it is an engine like the others."
    )
    registered: int = Field(description="When billing for it began, Unix microseconds, UTC.")
    key: str = Field(description="Id of the host's key that registered it; empty: an operator's.")
    agent: str = Field(description="URL of the `florin engine run` that runs it; empty: none.")
    epoch: str = Field(description="Identifies its process; empty without an agent.")
    started: int = Field(description="Start of its process, Unix microseconds, UTC; 0: unknown.")
    capabilities: Capabilities
    health: Health = Field(description="`hung`, `ejected`: it answers health checks but does no work.")
    hang: Hang | None = Field(description="null while it works.")
    reason: str | None = Field(description="What is wrong with it, in words; null: nothing known.")
    running: int
    waiting: int
    kv_usage: float | None = Field(description="Part of its KV cache in use, 0 to 1; null: unknown.")
    resident: int = Field(description="Versions in its slots.")
    lost: int = Field(description="Versions that it held before its restart and that are to be loaded again.")
    heartbeat: Heartbeat | None = Field(description="null without an agent, or if that is silent.")


class RegisteredEngine(Engine):
    base_config: bool = Field(description="The base model's config.json is known: adapters can be checked.")
    agent_token: str | None = Field(
        None, description="By which the agent recognizes the gateway; left out without an agent."
    )


class RestartingEngine(Answer):
    engine: str
    restarting: bool


class TrustedEngine(Answer):
    engine: str
    base: str
    fingerprints_forgotten: int = Field(description="Versions that get new references at their next loads.")


class Move(Answer):
    """A version that a drain loads elsewhere."""

    version: str
    to: str = Field(description="The engine that loads it.")
    replaces: str | None = Field(description="The version that leaves its slot there.")
    idle_seconds: float
    in_flight: int


class HeldElsewhere(Answer):
    version: str
    engines: tuple[str, ...]


class Stay(Answer):
    """A version that is not moved."""

    version: str
    reason: str


class Drain(Answer):
    """How far the drain of an engine is, or what a drain would do."""

    engine: str
    state: EngineState
    phase: Phase = Field(
        description="`serving`: no drain; `loading`: its adapters are being loaded elsewhere; `finishing`: "
        "it gets no new requests, some still run; `drained`."
    )
    until: int | None = Field(description="Unix microseconds, UTC.")
    in_flight: int
    held: int = Field(description="Versions in its slots.")
    alone: bool = Field(description="No other engine of its fleet takes its requests.")
    moves: tuple[Move, ...] = Field(description="What remains to be loaded elsewhere.")
    elsewhere: tuple[HeldElsewhere, ...] = Field(description="What other engines hold already.")
    stays: tuple[Stay, ...] = Field(description="What is not moved.")


class ServedBase(Answer):
    """A base model, and the configuration that adapters are checked against."""

    base_model: str
    aliases: tuple[str, ...] = Field(description="Only operators see those that are paths.")
    config: dict[str, Any] | None = Field(description="The model's config.json; null: unknown.")
    chat_template: str | None = Field(
        description="SHA-256 of its chat template; empty: it has none; null: unknown."
    )
    ranks: tuple[int, ...] = Field(description="The distinct maximum ranks of its engines.")
    text_rank: int = Field(
        description="The highest of those with vLLM 0.33 or later, which serves adapters of a multimodal "
        "model's language model under their own names; 0: there are none."
    )
    engines: tuple[str, ...] = Field((), description="Only operators see them.")
