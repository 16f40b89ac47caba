"""What bodies and answers have in common, and the types that several of them use."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any, Final, Generic, Literal, Self, TypeVar

import orjson
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StringConstraints,
    TypeAdapter,
    model_validator,
)

from adapters.model import Guard
from gateway.schemas.options import Option

Json = dict[str, Any]
T = TypeVar("T")


def as_json(config: dict[str, Any]) -> dict[str, Any]:
    """`config`, if it is storable JSON. Raises ValueError."""
    try:
        json.dumps(config, allow_nan=False)
        orjson.dumps(config)
    except (ValueError, TypeError, RecursionError):
        raise ValueError(
            "it contains what JSON cannot: NaN, a number beyond 64 bits, or an unpaired surrogate"
        ) from None
    return config


_ANYTHING: Final = TypeAdapter[Any](Any)


def json_of(answer: Any) -> bytes:
    """Serialize an answer, or several. Fields that were left out stay out."""
    return _ANYTHING.dump_json(answer, exclude_unset=True)


class StrictBody(BaseModel):
    """A request body. Unknown fields are rejected, so that a typo is not silently ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Answer(BaseModel):
    """What a route returns. Readers ignore fields that they do not know, so that a command line works
    with a newer gateway."""

    model_config = ConfigDict(
        extra="ignore",
        frozen=True,
        from_attributes=True,
        validate_by_name=True,  # `start`, besides its name in JSON, `from`
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    _body: Json = PrivateAttr(default_factory=dict)

    @classmethod
    def read(cls, body: Json) -> Self:
        """Read what a gateway sent. Raises pydantic.ValidationError."""
        answer = cls.model_validate(body)
        answer._body = body  # noqa: SLF001 - its own
        return answer

    @classmethod
    def of(cls, source: object, **more: object) -> Self:
        """`more`, and what `source` has under the names of the other fields."""
        same = (name for name in cls.model_fields if name not in more and hasattr(source, name))
        return cls.model_validate({name: getattr(source, name) for name in same} | more)

    @property
    def body(self) -> Json:
        """As it was sent, with fields that this version does not know; of one that was made here, its
        fields."""
        return self._body or self.model_dump(mode="json")


class Listed(Answer, Generic[T]):
    """A list."""

    data: tuple[T, ...]


class Named(Answer):
    """An object of which only the name is read."""

    name: str


class Removed(Answer):
    """What a removal did."""

    name: str
    removed: bool = Field(description="false: there was none.")


class GuardTerms(StrictBody):
    """What a guard allows: see `adapters.model.Guard`. It compares a canary with the live version, or an
    engine on trial with the rest of its fleet."""

    max_error_rate: Annotated[float, Option(help="Fraction of its requests that may fail.")] = Field(
        0.01, gt=0, lt=1, description="Part of its requests that may fail, whatever the others do."
    )
    max_latency_ratio: Annotated[
        float, Option(help="Highest ratio of its latency to that of the others.")
    ] = Field(1.5, ge=1, le=100, description="How many times the others' latency its own may be.")
    min_requests: Annotated[int, Option(help="Requests that it must get before the guard decides.")] = Field(
        50, ge=1, le=1_000_000, description="Requests before anything is decided."
    )
    window_seconds: Annotated[
        int,
        Option(
            flag="--window",
            kind="duration",
            help="How far back requests count, and how long each weight is watched.",
        ),
    ] = Field(
        1800,
        ge=20,
        le=7 * 86_400,
        description="How far back requests count, and how long each weight is watched before the next.",
    )
    then: Annotated[
        tuple[Annotated[int, Field(ge=2, le=100)], ...],
        Option(help="The next weight, set automatically if nothing is wrong."),
    ] = Field(
        (),
        max_length=20,
        description="Weights that follow automatically, ascending; 100 makes the version live.",
        examples=[[50, 100]],
    )

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise(self.then)):
            raise ValueError("then must ascend")
        return self


class GuardSpec(GuardTerms):
    """The guard of a canary."""

    action: Literal["rollback", "hold"] = Field(
        description="What happens to a canary that is worse than the live version: it is rolled back, or its "
        "weight is frozen."
    )

    def guard(self) -> Guard:
        return Guard(**self.model_dump())

    @classmethod
    def of(cls, guard: Guard) -> GuardSpec:
        return cls.model_construct(**asdict(guard))


Label = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+( [\x21-\x7e]+)*$")
]
Count = Annotated[int, Field(ge=1, le=1_000_000)]
Address = Annotated[str, StringConstraints(max_length=253, pattern=r"^[A-Za-z0-9._:-]+$")]
"""A host name or an IP address."""
Replicas = Annotated[int, Field(ge=0, le=10_000)]
LabelName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9_./-]{0,61}[a-z0-9])?$")]
Labels = Annotated[dict[LabelName, Label], Field(max_length=32)]


def check_replicas(least: int, most: int | None) -> None:
    """Raises ValueError."""
    if most == 0:
        raise ValueError("max_replicas is 0: it must be at least 1, or null for no limit")
    if most is not None and least > most:
        raise ValueError(f"min_replicas is {least}, which exceeds max_replicas ({most})")
