"""The terms of tenants and keys as options: `--requests-per-minute 600`, `--max-bytes 10GB`.

Several commands have the same options, so they are declared here once. `with_terms` gives a command groups of
them, and calls it with `changes`: the part of the API's body that was asked for.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.output import clean

NONE: Final = "none"
"""Removes a limit, or empties a list."""
_COUNT = re.compile(r"([0-9]{1,15})([kKMG]?)", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,15})(?:(?:([KMGT])(i?))?B)?", re.ASCII)
_POWERS: Final = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}


@dataclass(frozen=True, slots=True)
class TermOption:
    flag: str
    """`--max-bytes`"""
    path: tuple[str, ...]
    """Where the value belongs in the API's body."""
    help: str
    parse: Callable[[str, Any], Any]
    metavar: str = "N"
    kind: Any = str

    @property
    def name(self) -> str:
        return self.flag.partition("/")[0].removeprefix("--").replace("-", "_")

    def parameter(self) -> inspect.Parameter:
        option = typer.Option(
            self.flag,
            metavar=None if self.kind is bool else self.metavar,
            help=self.help,
            show_default=False,
        )
        annotation = Annotated[self.kind | None, option]  # type: ignore[name-defined]  # a type that varies
        return inspect.Parameter(
            self.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
        )

    def put(self, changes: Json, given: Any) -> None:
        """Raises UsageError."""
        *parents, field = self.path
        for parent in parents:
            changes = changes.setdefault(parent, {})
        changes[field] = self.parse(self.flag, given)


def with_terms(
    *groups: Sequence[TermOption],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def register(function: Callable[..., None]) -> Callable[..., None]:
        options = [option for group in groups for option in group]

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> None:
            changes: Json = {}
            for option in options:
                given = kwargs.pop(option.name)
                if given is not None:
                    option.put(changes, given)
            function(*args, changes=changes, **kwargs)

        signature = inspect.signature(function, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != "changes"]
        added = [option.parameter() for option in options]
        run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]  # inspect's protocol
        return run

    return register


def _count(flag: str, text: str) -> int | None:
    """`600`, `100k`, `2M`; `none`."""
    if text == NONE:
        return None
    match = _COUNT.fullmatch(text.replace(",", "").replace("_", ""))
    if match is None:
        raise UsageError(f"{flag}: {text!r} is not a number such as 600, 100k or 2M, or `none`.")
    thousands: int = 1000 ** _POWERS[match[2]]
    return int(match[1]) * thousands


def _size(flag: str, text: str) -> int | None:
    """`10GB`, `512MiB`, `1000`; `none`."""
    if text == NONE:
        return None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise UsageError(f"{flag}: {text!r} is not a size such as 10GB, 512MiB or 1000000, or `none`.")
    unit: int = (1024 if match[3] else 1000) ** _POWERS[match[2] or ""]
    return int(match[1]) * unit


def _money(flag: str, text: str) -> str | None:
    if text == NONE:
        return None
    if re.fullmatch(r"[0-9]{1,13}(\.[0-9]{1,6})?", text, re.ASCII) is None:
        raise UsageError(f"{flag}: {text!r} is not an amount such as 250 or 99.50, or `none`.")
    return text


def _given(flag: str, value: Any) -> Any:
    del flag
    return value


def _text(flag: str, text: str) -> str | None:
    del flag
    return None if text == NONE else text


def _list(flag: str, values: list[str]) -> list[str]:
    if NONE in values and len(values) > 1:
        raise UsageError(f"{flag}: `none` stands alone.")
    return [] if values == [NONE] else values


def _of(section: str) -> Callable[..., TermOption]:
    def option(flag: str, field: str, text: str, parse: Any = _count, **more: Any) -> TermOption:
        return TermOption(flag, (section, field), text, parse, **more)

    return option


_limit, _budget, _quota, _policy, _scope = map(_of, ("limits", "budget", "quotas", "policy", "scopes"))
_LIST: Final = {"kind": list[str]}

LIMITS: Final = (
    _limit("--requests-per-minute", "requests_per_minute", "Requests per minute."),
    _limit("--tokens-per-minute", "tokens_per_minute", "Prompt and output tokens per minute."),
    _limit("--concurrent", "concurrent", "Requests at a time, queued ones included."),
    _limit("--queued", "queued", "Requests that may wait for an engine; 0: none."),
    _limit("--max-context", "max_context", "Prompt and output tokens of one request."),
    _limit("--max-output", "max_output", "Output tokens of one request."),
)
BUDGET: Final = (
    _budget("--budget-tokens-day", "tokens_per_day", "Tokens per day, UTC."),
    _budget("--budget-tokens-month", "tokens_per_month", "Tokens per month, UTC."),
    _budget("--budget-money-day", "money_per_day", "Money per day.", _money, metavar="AMOUNT"),
    _budget("--budget-money-month", "money_per_month", "Money per month.", _money, metavar="AMOUNT"),
    _budget("--budget-warn", "warn_percent", "Warn from this percentage on.", _given, kind=int),
)
QUOTAS: Final = (
    _quota("--max-adapters", "adapters", "Quota: adapters."),
    _quota("--max-versions", "versions", "Quota: versions of one adapter that are not retired."),
    _quota("--max-bytes", "bytes", "Quota: size of all versions: 10GB.", _size, metavar="SIZE"),
    _quota("--max-rank", "max_rank", "Quota: rank of an adapter."),
    _quota("--uploads-per-hour", "uploads_per_hour", "Quota: uploads per hour."),
    _quota("--max-keys", "keys", "Quota: valid keys."),
)
POLICY: Final = (
    TermOption("--weight", ("weight",), "Its share of a busy fleet.", _given, kind=float),
    TermOption(
        "--cache-group",
        ("cache_group",),
        "Tenants of one group share prefix caches; `none` to share with no other tenant.",
        _text,
        metavar="GROUP",
    ),
    _policy(
        "--media-host",
        "media_hosts",
        "Host from which engines may fetch its media; `none`: no host. Repeatable; replaces all.",
        _list,
        metavar="HOST",
        **_LIST,
    ),
    _policy(
        "--chat-templates/--no-chat-templates",
        "chat_templates",
        "Whether requests may bring a chat template.",
        _given,
        kind=bool,
    ),
    _policy(
        "--structured-outputs/--no-structured-outputs",
        "structured_outputs",
        "Whether requests may ask for structured outputs.",
        _given,
        kind=bool,
    ),
    _policy(
        "--pass-field",
        "pass_fields",
        "Field unknown to Florin that engines get; `none`: no field. Repeatable; replaces all.",
        _list,
        metavar="FIELD",
        **_LIST,
    ),
)
COST: Final = (
    TermOption(
        "--cost-centre",
        ("cost_centre",),
        "Label of its usage in `florin cost report --by cost_centre`; `none` to remove it.",
        _text,
        metavar="LABEL",
    ),
)
KEY: Final = (
    TermOption("--label", ("label",), "What it is for.", _given, metavar="TEXT"),
    TermOption(
        "--expires",
        ("expires",),
        "When it expires: 90d, 24h, or a date such as 2027-06-30 (its start, UTC); `none`: never.",
        _text,
        metavar="WHEN",
    ),
    _scope(
        "--adapter",
        "adapters",
        "Adapter that it may call: support, acme/support, or with `*`. Repeatable; replaces all; "
        "`none`: every one.",
        _list,
        metavar="ADAPTER",
        **_LIST,
    ),
    _scope(
        "--endpoint",
        "endpoints",
        "Endpoint that it may call, such as /v1/chat/completions. Repeatable; replaces all; `none`: "
        "every one.",
        _list,
        metavar="PATH",
        **_LIST,
    ),
    _scope(
        "--read-only/--no-read-only",
        "read_only",
        "It may list models and read, but neither call nor change anything.",
        _given,
        kind=bool,
    ),
    TermOption(
        "--priority",
        ("priority",),
        "Whether its requests are served before others of the installation: high, normal or low.",
        _given,
        metavar="CLASS",
    ),
)

_WORDS: Final = {
    "requests_per_minute": "{} requests/min",
    "tokens_per_minute": "{} tokens/min",
    "concurrent": "{} at a time",
    "queued": "{} queued",
    "max_context": "context {}",
    "max_output": "output {}",
    "tokens_per_day": "{} tokens/day",
    "tokens_per_month": "{} tokens/month",
    "money_per_day": "{} per day",
    "money_per_month": "{} per month",
    "adapters": "{} adapters",
    "versions": "{} versions each",
    "bytes": "{} bytes",
    "max_rank": "rank {}",
    "uploads_per_hour": "{} uploads/hour",
    "keys": "{} keys",
}


def in_words(terms: Json) -> list[str]:
    """Limits, a budget or quotas: those that are set."""
    found = [words.format(clean(terms[f])) for f, words in _WORDS.items() if terms.get(f) is not None]
    if found and "warn_percent" in terms:
        found.append(f"warning at {terms['warn_percent']} %")
    return found


def policy_in_words(policy: Json) -> Iterator[str]:
    for field, name in (("media_hosts", "media from"), ("pass_fields", "also fields")):
        if policy[field] is not None:
            yield f"{name} {' '.join(policy[field]) or 'none'}"
    for field in ("chat_templates", "structured_outputs"):
        if policy[field] is not None:
            yield f"{'' if policy[field] else 'no '}{field.replace('_', ' ')}"


def scopes_in_words(key: Json) -> Iterator[str]:
    scopes = key["scopes"]
    if scopes["read_only"]:
        yield "read-only"
    yield from scopes["adapters"]
    yield from scopes["endpoints"]
