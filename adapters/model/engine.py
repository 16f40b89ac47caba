"""Base models and the engines that serve them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from adapters.model.adapter import Guard, Version


@dataclass(frozen=True, slots=True)
class BaseModel:
    """The frozen model of one fleet. `config` is its config.json, kept so that adapters can be checked
    against it on hosts that do not hold the model."""

    name: str
    """What engines serve it as (`--served-model-name`), and what clients call it."""
    aliases: tuple[str, ...] = ()
    """Other names and paths that an adapter's `base_model_name_or_path` may use for this model."""
    config: dict[str, Any] | None = None
    chat_template: str | None = None
    """Hex SHA-256 of its chat template; empty if it has none, None if unknown."""

    @property
    def public_aliases(self) -> tuple[str, ...]:
        """Those that are no paths of engines' hosts: tenants may see them."""
        return tuple(alias for alias in self.aliases if not alias.startswith(("/", "~")))


Purchase = Literal["on_demand", "spot", "reserved"]
"""How a GPU is paid for."""


Task = Literal["generate", "embed", "score"]
"""What an engine does: `generate` text, `embed` it, or `score` pairs of texts (rerank)."""
GENERATE: Final[Task] = "generate"
"""The task that usage records leave out, because earlier ones say nothing of any."""


MAX_STOP_STRINGS = 16
"""Stop strings of one request. VLLM 0.32 takes as many as VLLM_MAX_STOP_STRINGS says, 4 by default. Each
costs it 0.1 µs a token."""


DriverName = Literal["vllm", "sglang", "trtllm", "tgi", "lorax"]
"""A kind of engine; see `adapters.drivers`."""


Unloads = Literal["unknown", "forgets", "removes", "refuses"]
"""What an engine does when it unloads an adapter. `forgets`: only its name goes, its weights keep their place
until others take it. `removes`: its weights go, too. `refuses`: likewise, but if it no longer holds them, it
answers with an error and keeps the name. `unknown`: nothing has shown it; taken for `forgets`, which promises
least."""


Release = tuple[int, int]
"""A release of vLLM: 0.33."""


@lru_cache(maxsize=256)
def release_of(version: str) -> Release:
    """(0, 33) for `0.33.1rc2`; (0, 0) if it is unknown."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", version)
    return (int(match[1]), int(match[2])) if match else (0, 0)


DEDICATED = "dedicated to"
"""Label of an engine that is dedicated to a tenant, and what requests of that tenant have among the labels
that they require: others must not go there, but these may go elsewhere, too. An operator's labels have no
spaces."""


def has_labels(labels: Mapping[str, str], requires: Mapping[str, str]) -> bool:
    """Whether an engine with these labels has the required ones, and is not dedicated to another tenant."""
    if DEDICATED in labels and labels[DEDICATED] != requires.get(DEDICATED):
        return False
    return not requires or all(
        labels.get(label) == value or (label == DEDICATED and label not in labels)
        for label, value in requires.items()
    )


@dataclass(frozen=True, slots=True)
class Drain:
    """A drain of an engine that loads its versions on other engines first. Until they are `moved`, the
    engine serves what it holds."""

    until: int
    """When the engine stops taking requests at the latest, Unix microseconds, UTC. 0: it rests until the
    version that it serves is live."""
    moved: bool = False
    """Its versions are loaded elsewhere, or could not be: it takes no new requests."""
    release: bool = True
    """Unload what it holds once its requests have finished."""


@dataclass(frozen=True, slots=True)
class Trial:
    """The trial of an engine that is of another build than the others of its fleet: it gets a share of the
    requests until its guard makes it an engine like the others, or drains it."""

    share: int
    """Percent of the requests for the base model and for versions that others hold, too."""
    guard: Guard
    since: int
    """When its comparison with the others began, which identifies that; Unix microseconds, UTC."""
    stopped: str = ""
    """Why its guard has drained it; empty: it has not."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One server process: vLLM, unless `driver` names another kind."""

    name: str
    url: str
    base_model: str
    gpu_type: str
    slots: int
    """`--max-loras`: how many versions Florin assigns here."""
    max_rank: int
    gpu_count: int = 1
    cpu_slots: int = 0
    """`--max-cpu-loras`, at least `slots`."""
    seats: int = 0
    """`--max-num-seqs`: how many requests it runs at a time; 0 if unknown."""
    state: Literal["active", "cordoned", "draining"] = "active"
    """cordoned: takes no new adapters; draining: takes no new requests either."""
    region: str = ""
    """Region in which its GPUs are billed, as named in the price book; empty if unknown."""
    purchase: Purchase = "on_demand"
    registered: int = 0
    """When billing for it began, Unix microseconds, UTC; 0 if unknown."""
    epoch: str = ""
    """Identifies the engine's process; set by `florin engine run`. A process with a new epoch is assumed to
    be empty. If this is empty, only the engine's own model list tells what it holds."""
    agent: str = ""
    """URL of the `florin engine run` agent that stages files on its host; if empty, the engine reads the
    artifact store directly."""
    stopping: bool = False
    """Its host is shutting it down, so it takes no new requests. The next epoch clears this flag; `state`
    belongs to the operator."""
    stopped: int = 0
    """When its host shut it down, Unix microseconds, UTC; 0 if it did not."""
    key: str = ""
    """Id of the host's own API key that registered it; empty if an operator's key did."""
    labels: dict[str, str] = field(default_factory=dict)
    """What tenants may require of it, besides `region` and `gpu_type`, which count as labels."""
    host: str = ""
    """Failure domain that it shares with other engines; empty: the host of its URL."""
    drain: Drain | None = None
    """How far its drain is, while it is draining or stopping; None: it takes no requests from the start."""
    version: str = ""
    """vLLM's version, as the registered process reports it; empty if unknown."""
    prompt_scores: Literal["unknown", "safe", "unsafe"] = "unknown"
    """Whether the registered process survives scoring a prompt: `prompt_logprobs`, `echo` with `logprobs`."""
    declared_scores: Literal["", "safe", "unsafe"] = ""
    """What its registration says of that; empty: the engine is tried."""
    unloads: Unloads = "unknown"
    """What the registered process has shown an unload to do."""
    started: int = 0
    """When that process started, as it reports, Unix microseconds, UTC; 0 if unknown."""
    tasks: tuple[Task, ...] = ("generate",)
    """What it is asked to do, in the order of `Task`."""
    driver: DriverName = "vllm"
    """Which kind of engine it is."""
    max_model_len: int = 0
    """Tokens of prompt and answer that a request may have, as the registered process reports it; 0 if
    unknown."""
    holds: tuple[str, ...] = ()
    """Ids of the versions that it was started with, if it is of a kind that loads none later."""
    serves: str = ""
    """Id of the version that is merged into its weights. It serves that one and nothing else, and loads
    nothing. Empty: it serves its base model and adapters."""
    merged_as: str = ""
    """That version's name on engines: what the engine calls its own weights."""
    trial: Trial | None = None
    """None: it is an engine like the others."""
    tenant: str = ""
    """The only tenant that it serves; empty: it serves all."""

    @property
    def domain(self) -> str:
        """Its failure domain. Replicas should be in different ones."""
        return self.host or _host(self.url) or self.url

    @property
    def all_labels(self) -> dict[str, str]:
        """With its region and GPU type, and the tenant to which it is dedicated."""
        labels = {**self.labels, "region": self.region, "gpu_type": self.gpu_type}
        return {**labels, DEDICATED: self.tenant} if self.tenant else labels

    @property
    def model(self) -> str:
        """What it calls its own weights."""
        return self.merged_as or self.base_model

    @property
    def only(self) -> tuple[str, ...] | None:
        """Ids of the only versions that it can hold; None: it loads any."""
        if self.serves:
            return (self.serves,)
        return self.holds if self.driver == "tgi" else None

    @property
    def release(self) -> Release:
        """Its release of vLLM; (0, 0) if it is unknown, or another kind of engine."""
        return release_of(self.version) if self.driver == "vllm" else (0, 0)

    def fits(self, version: Version) -> bool:
        """Whether it can hold the version, whatever else it holds."""
        if self.serves:  # nothing is loaded, so nothing is asked of its kernels
            return version.id == self.serves
        return (
            version.rank <= self.max_rank
            and (self.only is None or version.id in self.only)
            and self.release >= release_of(version.min_vllm)
        )

    def meets(self, requires: Mapping[str, str]) -> bool:
        """Whether it has all of these labels, and is not dedicated to another tenant."""
        return has_labels(self.all_labels, requires)

    def replaces(self, other: Engine) -> bool:
        """Whether it can serve what another engine of its fleet is there for."""
        return self.name != other.name and self.serves in ("", other.serves)

    @property
    def rests(self) -> bool:
        """It takes no requests until the version that it serves is live."""
        return self.drain is not None and not self.drain.until

    @property
    def on_trial(self) -> bool:
        """Whether its trial decides which requests it gets."""
        return self.trial is not None and not self.trial.stopped

    @property
    def moving(self) -> bool:
        """Its versions are being loaded elsewhere; until then it serves them."""
        return self.drain is not None and not self.drain.moved

    @property
    def takes_requests(self) -> bool:
        return (self.state != "draining" and not self.stopping) or self.moving

    @property
    def takes_adapters(self) -> bool:
        return self.state == "active" and not self.stopping


@lru_cache(maxsize=4096)
def _host(url: str) -> str | None:
    return urlsplit(url).hostname
