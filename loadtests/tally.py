"""Results of a load test: gathered by the locustfile, written as JSON, read by run_locust."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Tokens:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0

    def add(self, usage: dict[str, Any]) -> None:
        """`usage`: the OpenAI object of one answer."""
        self.requests += 1
        self.prompt_tokens += usage["prompt_tokens"]
        self.cached_tokens += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        self.completion_tokens += usage["completion_tokens"]


@dataclass(slots=True)
class Tally:
    """Times in milliseconds."""

    latency: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Kind of request → times of its complete answers."""
    first_token: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tokens: dict[str, Tokens] = field(default_factory=lambda: defaultdict(Tokens))
    """`customer engine` → tokens reported in the answers."""
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Failure → count."""

    def of_tenant(self, tenant: str) -> Tokens:
        total = Tokens()
        for key, tokens in self.tokens.items():
            if key.split()[0] == tenant:
                total.requests += tokens.requests
                total.prompt_tokens += tokens.prompt_tokens
                total.cached_tokens += tokens.cached_tokens
                total.completion_tokens += tokens.completion_tokens
        return total

    def dump(self) -> dict[str, Any]:
        return {
            "latency": dict(self.latency),
            "first_token": dict(self.first_token),
            "tokens": {key: asdict(tokens) for key, tokens in self.tokens.items()},
            "failures": dict(self.failures),
        }

    @classmethod
    def load(cls, document: dict[str, Any]) -> Tally:
        tally = cls()
        tally.latency.update(document["latency"])
        tally.first_token.update(document["first_token"])
        tally.tokens.update({key: Tokens(**value) for key, value in document["tokens"].items()})
        tally.failures.update(document["failures"])
        return tally


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of the values lie; 0.0 if there are none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def disagreements(seen: Tally, ledger: dict[str, Tokens]) -> list[str]:
    """One sentence per figure in which the ledger differs from the clients' totals; `ledger` is what was
    added during the test, by tenant."""
    tenants = {key.split()[0] for key in seen.tokens} | set(ledger)
    sentences = []
    for tenant in sorted(tenants):
        mine, its = asdict(seen.of_tenant(tenant)), asdict(ledger.get(tenant, Tokens()))
        sentences += [
            f"{tenant}: clients saw {mine[name]:,} {name}, but the ledger has {its[name]:,}"
            for name in mine
            if mine[name] != its[name]
        ]
    return sentences
