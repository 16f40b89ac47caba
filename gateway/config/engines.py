"""Settings of connections to engines: credentials, timeouts, probes, retries."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, NonNegativeFloat, PositiveFloat, PositiveInt, field_validator

from gateway.config.field_types import RELOAD, AbsolutePath, listed

PolicyName = Literal[
    "cost",
    "random",
    "power_of_two",
    "least_loaded",
    "consistent_hash",
    "bounded_hash",
    "residency",
    "activity",
]


class EngineSettings(BaseModel):
    engine_ca: AbsolutePath | None = Field(
        None,
        description="The only CA certificates (PEM) to verify engines and agents with. Empty: the system's.",
    )
    engine_cert: AbsolutePath | None = Field(
        None, description="Certificate chain (PEM) that Florin presents to engines and agents."
    )
    engine_key: AbsolutePath | None = Field(None, description="Private key (PEM) of `FLORIN_ENGINE_CERT`.")
    engine_token_file: AbsolutePath | None = Field(
        None, description="File with the bearer token to send to every engine (vLLM's `--api-key`)."
    )
    base_model_dirs: str = Field(
        "",
        description="Comma-separated absolute paths of folders with base models on the gateway's host. If an "
        "engine says that it serves a model from one of them, the gateway reads its config.json there; other "
        "paths that engines name are never opened. Engines that `florin engine run` starts send their "
        "model's configuration themselves.",
        json_schema_extra=RELOAD,
    )
    placement_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds that a request may wait for an engine to start its answer, including retries "
        "and cold loads; after that it gets a 503.",
        json_schema_extra=RELOAD,
    )
    ttft_deadline: NonNegativeFloat = Field(
        0.0,
        description="Seconds from its arrival within which a stream's first token must come. A request that "
        "waits longer is given up with a 503: before anything is loaded for it, or while it waits in an "
        "engine's queue. Under overload, engines then work only for clients who still get their answer in "
        "time. 0: no deadline.",
        json_schema_extra=RELOAD,
    )
    fair_queue: bool = Field(
        True,
        description="Hold requests back until an engine has room, and let the tenant that was served least "
        "go next. Off: engines serve first come, first served.",
    )
    queue_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds that a request may wait for an engine with room. If the expected wait is "
        "longer, the request is refused at once with 503 and `retry-after`.",
        json_schema_extra=RELOAD,
    )
    engine_start_timeout: NonNegativeFloat = Field(
        0.0,
        description="Seconds that a request may wait while no engine of its base model is up, until one has "
        "started; after that it gets a 503. An idle fleet then wants no engine (`florin_engines_wanted`), "
        "and `florin_requests_waiting` asks for the first. 0: requests wait for no engine to start.",
        json_schema_extra=RELOAD,
    )
    max_tenant_queued: PositiveInt = Field(
        1000,
        description="Maximum requests per tenant and worker that wait for an engine with room. A tenant's "
        "own limit of queued requests counts over all workers.",
        json_schema_extra=RELOAD,
    )
    max_worker_queued: PositiveInt = Field(
        5000,
        description="Maximum requests per worker that wait for an engine with room. If half as many wait, no "
        "more wait for an engine to start.",
        json_schema_extra=RELOAD,
    )
    scheduling_policy: PolicyName = Field(
        "cost",
        description="How an engine is chosen: `cost` weighs queues, slots and loads against each other. The "
        "others are baselines to compare it with.",
    )
    load_timeout: PositiveFloat = Field(
        30.0,
        description="Seconds that an engine may take to load, unload or list adapters.",
        json_schema_extra=RELOAD,
    )
    verify_loads: bool = Field(
        True,
        description="Send each version a few fixed prompts after its first load in an engine process, and "
        "compare its answers with the base model's and its own first answers, before it gets requests. "
        "Versions with unverified shapes are always verified.",
    )
    connect_timeout: PositiveFloat = Field(
        2.0, description="Seconds to connect to an engine.", json_schema_extra=RELOAD
    )
    max_answer_bytes: PositiveInt = Field(
        64 * 1024 * 1024,
        description="Maximum size in bytes of an engine's answer that is not a stream; a longer one counts "
        "as malformed.",
        json_schema_extra=RELOAD,
    )
    first_byte_timeout: PositiveFloat = Field(
        120.0,
        description="Seconds of silence of an engine that answers probes after which requests whose answer "
        "has not begun count as lost and are retried on another engine. While its metrics change (a queue, "
        "a long prompt), they wait, however long it takes.",
        json_schema_extra=RELOAD,
    )
    engine_idle_timeout: PositiveFloat = Field(
        60.0,
        description="Seconds without data after which a started stream is resumed or ends with an error "
        "event, unless requests wait in an engine that works: it may have preempted the stream. (Probes "
        "detect dead engines much sooner.)",
        json_schema_extra=RELOAD,
    )
    hang_timeout: PositiveFloat = Field(
        20.0,
        description="Seconds without progress after which an engine with pending work counts as hung: no "
        "response bytes, no change in its metrics counters, and no answer to a one-token probe, which is "
        "sent after half of this time. Its requests are retried elsewhere.",
        json_schema_extra=RELOAD,
    )
    ejection_time: PositiveFloat = Field(
        10.0,
        description="Seconds for which a hung engine is ejected, multiplied by the number of its recent "
        "ejections, at most 300; then a probe decides. At most half of a fleet's engines are ejected at a "
        "time.",
        json_schema_extra=RELOAD,
    )
    probe_interval: PositiveFloat = Field(
        1.0, description="Seconds between health probes of each engine.", json_schema_extra=RELOAD
    )
    probe_timeout: PositiveFloat = Field(
        2.0,
        description="Seconds that an engine may take to answer a health probe.",
        json_schema_extra=RELOAD,
    )
    retry_budget: float = Field(
        0.2,
        ge=0,
        le=1,
        description="Retries after engine failures as a share of the worker's requests in the last 10 s. Ten "
        "retries per second are always allowed, and so are retries after the death of an engine.",
        json_schema_extra=RELOAD,
    )
    resume_streams: bool = Field(
        True,
        description="When an engine fails in mid-stream, resume the stream on another engine where the "
        "continuation is exact. Otherwise the stream ends with an error.",
    )
    slow_start: NonNegativeFloat = Field(
        10.0,
        description="Seconds over which an engine that is new, recovered, or failed several times in a row "
        "ramps up to its full share of requests. 0: no ramp.",
        json_schema_extra=RELOAD,
    )
    placement_interval: NonNegativeFloat = Field(
        2.0,
        description="Seconds between plans of the placement: minimum and maximum replicas, pinned adapters, "
        "changed labels. 0: adapters are loaded only when they are called.",
        json_schema_extra=RELOAD,
    )
    slo_ttft: PositiveFloat = Field(
        2.0,
        description="Seconds to the first token that the fleet should be large enough for. An autoscaler is "
        "asked for more engines before requests wait longer (`florin_engines_wanted`).",
        json_schema_extra=RELOAD,
    )
    reload_interval: NonNegativeFloat = Field(
        0.1,
        description="Seconds between two loads when a restarted engine gets its adapters back; each load "
        "stalls decoding on that engine.",
        json_schema_extra=RELOAD,
    )
    stopped_engine_hours: NonNegativeFloat = Field(
        1.0,
        description="Hours after which an engine stopped by `florin engine run` is removed from the "
        "registry. Its key stays valid. 0: never.",
        json_schema_extra=RELOAD,
    )

    @field_validator("base_model_dirs")
    @classmethod
    def _absolute(cls, entries: str) -> str:
        if relative := next((entry for entry in listed(entries) if not entry.startswith("/")), ""):
            raise ValueError(f"{relative!r} is not an absolute path")
        return entries

    @property
    def base_model_folders(self) -> tuple[Path, ...]:
        return tuple(map(Path, listed(self.base_model_dirs)))
