"""Adapters and their versions: how they are registered and changed, and how the API describes them.

Fields marked *operators* are left out of what a tenant's own administrator gets: which engines hold a
version, and where its files are, is not the tenant's.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import orjson
from pydantic import Field, StringConstraints, model_validator

from gateway.evaluations.schemas import LastEvaluation
from gateway.schemas.base import Answer, GuardSpec, Replicas, StrictBody, check_replicas
from gateway.schemas.options import Option

VersionState = Literal["live", "canary", "ready", "retired", "quarantined", "failed"]


VersionName = Annotated[str, StringConstraints(pattern=r"^v[1-9][0-9]{0,8}$")]
FullName = Annotated[str, Field(description="TENANT/NAME", max_length=200, examples=["acme/support"])]
BaseName = Annotated[str | None, Field(max_length=500, description="Base model, if several match.")]
AssumeBase = Annotated[bool, Field(description="Accept an adapter that names another base model.")]
UnverifiedShapes = Annotated[
    bool,
    Field(
        description="Vouch for an adapter's shapes where the base model's architecture is unknown. Operators "
        "only; of no effect for a known architecture."
    ),
]
Digest = Annotated[
    Annotated[str, StringConstraints(pattern="^sha256:[0-9a-f]{64}$")] | None,
    Field(description="Expected digest of the version. Omitted: any."),
]


class NewAdapter(StrictBody):
    adapter: FullName
    source: Annotated[str, Option(kind="path")] = Field(
        description="An absolute directory on the gateway's host, or a URL: file, http(s), s3, hf.",
        min_length=1,
        max_length=4096,
    )
    base_model: Annotated[BaseName, Option()] = None
    assume_base: Annotated[
        AssumeBase,
        Option(help="Accept an adapter that names another base model; shapes are still checked."),
    ] = False
    unverified_shapes: Annotated[
        UnverifiedShapes,
        Option(help="Vouch for its shapes if the base model's architecture is unknown."),
    ] = False
    digest: Annotated[Digest, Option(metavar="sha256:…")] = None


class NewLive(StrictBody):
    version: VersionName = Field(examples=["v2"])
    weight: Annotated[int, Option()] = Field(
        100, ge=1, le=100, description="Percentage of calls. Below 100, the version becomes a canary."
    )
    wait: Annotated[
        bool, Option(flag="--no-wait", help="Switch immediately; the first request loads the version.")
    ] = Field(True, description="Load the version first; if no engine can hold it, change nothing.")
    require_eval: Annotated[bool, Option()] = Field(
        False, description="Refuse unless the version has passed its last evaluation."
    )
    require_eval_of: Annotated[
        str,
        Option(metavar="SHA256", help="Also require that the evaluation used this held-out set."),
    ] = Field("", pattern="^([0-9a-f]{64})?$", description="The same, of the data with this SHA-256.")
    guard: GuardSpec | None = Field(
        None,
        description="What watches the canary. Null: nothing. Omitted: what watches the same canary already.",
    )
    force: Annotated[bool, Option()] = Field(
        False, description="Change a weight that the canary's guard holds. This ends the hold."
    )

    @model_validator(mode="after")
    def _guards_a_canary(self) -> Self:
        if self.guard is not None and self.weight == 100:
            raise ValueError("only a canary has a guard: its weight is below 100")
        return self


class NewPin(StrictBody):
    pinned: bool


class NewReplicas(StrictBody):
    min_replicas: Annotated[Replicas, Option(flag="--min")] = Field(
        0, description="Engines that hold it, even if it is not called."
    )
    max_replicas: Annotated[Replicas | None, Option(flag="--max")] = Field(
        None,
        description="Most engines that hold one version of it; null: as many as it needs.",
        examples=[4],
    )

    @model_validator(mode="after")
    def _possible(self) -> Self:
        check_replicas(self.min_replicas, self.max_replicas)
        return self


class Place(Answer):
    """A version on an engine."""

    engine: str
    state: str
    version: str


class Problem(Answer):
    """A version that is not served."""

    version: str
    state: VersionState
    reason: str


class Finding(Answer):
    """What a check of an adapter found."""

    code: str
    message: str
    found: str
    expected: str
    remedy: str
    severity: Literal["error", "warning"]


class Canary(Answer):
    """A version that gets part of the calls."""

    version: str
    weight: int = Field(description="Percent of the calls.")
    guard: GuardSpec | None
    held: str | None = Field(description="Why its guard holds its weight; null: it does not.")


class GuardOutcome(Answer):
    """What the guard of the last canary decided."""

    verdict: Literal["hold", "rollback", "promote"]
    version: str
    reason: str
    decided_at: int = Field(description="Unix microseconds, UTC.")


class Latency(Answer):
    """Seconds; null: none was seen."""

    p50: float | None
    p95: float | None


class ArmFigures(Answer):
    """What was counted of one of the two versions in the last window."""

    requests: int
    failures: int
    error_rate: float | None = Field(description="0 to 1; null without requests.")
    first_token: Latency
    per_token: Latency


class CanaryComparison(Answer):
    """The canary beside the live version, in the last window."""

    canary: ArmFigures
    live: ArmFigures
    verdict: Literal["waiting", "keep", "hold", "rollback", "promote"] | None = Field(
        description="The guard's; null without one."
    )
    reason: str | None


class Adapter(Answer):
    adapter: str = Field(description="TENANT/NAME.")
    live: str | None = Field(description="The version that its bare name calls.")
    canary: Canary | None
    outcome: GuardOutcome | None
    previous: str | None = Field(description="What a rollback makes live.")
    history: tuple[str, ...] = Field(description="What was live before, oldest first.")
    versions: tuple[str, ...] = Field(description="Those that can be called.")
    base_model: str | None = Field(description="Of the live version.")
    rank: int | None = Field(description="Of the live version.")
    size_bytes: int | None = Field(description="Of the live version.")
    loaded: bool = Field(description="An engine holds the live version.")
    pinned: bool | None = Field(None, description="Its versions are never evicted. *Operators.*")
    min_replicas: int | None = Field(
        None, description="Fewest engines that hold the live version. *Operators.*"
    )
    max_replicas: int | None = Field(
        None, description="Most engines that hold one version; null: no limit. *Operators.*"
    )
    cost_centre: str
    require_eval: bool = Field(description="A version is promoted only if it has passed its last evaluation.")
    eval_data: str | None = Field(description="SHA-256 of the data of that evaluation; null: any.")
    placed: tuple[Place, ...] | None = Field(None, description="Where its versions are. *Operators.*")
    trouble: tuple[Problem, ...] = Field(description="Versions that are quarantined or failed.")


class ServingStatus(Answer):
    """What keeps a version from being served."""

    code: str = Field(description="Which check.")
    engine: str | None = Field(None, description="Where it was found. *Operators.*")
    since: int = Field(description="Unix microseconds, UTC.")
    attempts: int
    retry: int | None = Field(description="When it is tried again, Unix microseconds, UTC.")


class Version(Answer):
    version: str
    state: VersionState
    reason: str | None = Field(description="What keeps it from being served.")
    evidence: dict[str, Any] | None = Field(description="What its verification compared.")
    serving_status: ServingStatus | None
    digest: str = Field(description="SHA-256 of its files.")
    rank: int
    size_bytes: int
    base_model: str
    source: str = Field(description="For tenants, of an operator's source only the kind.")
    path: str | None = Field(None, description="Its files on the gateway's host. *Operators.*")
    created: int = Field(description="Unix microseconds, UTC.")
    retired: int | None = Field(description="Unix microseconds, UTC.")
    trusted: bool | None = Field(None, description="Released from quarantine. *Operators.*")
    unverified_shapes: bool
    min_vllm: str = Field(description="Only engines of this vLLM and later get it; empty: all do.")
    warnings: tuple[Finding, ...]
    engine_name: str | None = Field(None, description="Its name on engines. *Operators.*")
    loaded: bool
    placed: tuple[Place, ...] | None = Field(None, description="Where it is. *Operators.*")


class VersionDetails(Version):
    evaluation: LastEvaluation | None


class AdapterVersion(Version):
    adapter: str


class ReleasedVersion(AdapterVersion):
    released: bool = Field(description="false: it was served already.")


class AdapterDetails(Adapter):
    version_details: tuple[VersionDetails, ...]
    comparison: CanaryComparison | None = Field(
        description="null without a canary, or while Redis is unavailable."
    )


class PromotedAdapter(Adapter):
    resident: tuple[str, ...] | None = Field(
        None, description="Engines that hold the version now; null: nothing was loaded. *Operators.*"
    )
    warnings: tuple[str, ...]


class ScaledAdapter(Adapter):
    warnings: tuple[str, ...] = Field(description="What keeps the minimum from being reached.")


class RegisteredVersion(Answer):
    adapter: str
    version: str
    digest: str
    live: str | None = Field(description="The adapter's live version.")
    created: bool = Field(description="false: there was a version with the same files.")
    warnings: tuple[Finding, ...]


class RemovedAdapter(Answer):
    adapter: str
    removed: bool = Field(description="false: there was none.")


class Trial(StrictBody):
    messages: list[dict[str, Any]] | None = Field(None, min_length=1, description="Of a chat.")
    prompt: str | None = Field(None, min_length=1, description="Instead: a text to be continued.")
    max_tokens: int = Field(512, ge=1, le=16_384)
    temperature: Annotated[float | None, Field(ge=0, le=2)] = None
    seed: int | None = None
    stream: bool = True

    @model_validator(mode="after")
    def _exactly_one_input(self) -> Self:
        if (self.messages is None) == (self.prompt is None):
            raise ValueError("send either messages or prompt")
        return self

    def body(self, model: str) -> bytes:
        """The body of the request to `model`."""
        body = self.model_dump(exclude_none=True) | {"model": model}
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        return orjson.dumps(body)


class Completion(Answer):
    """The answer in OpenAI's format."""

    id: str
    object: str = Field(examples=["chat.completion"])
    created: int = Field(description="Unix seconds.")
    model: str
    choices: tuple[dict[str, Any], ...]
    usage: dict[str, Any] | None
