"""The flags that `florin engine run` adds to a vLLM command line, and those that it refuses. Pure.

Written for vLLM 0.32 and 0.33, whose flags and variables were read from their packages. Each reason says what
would break; docs/reference/engine-flags.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adapters.engine_agent.engine_command import CommandLine, CommandRefusedError, parse
from adapters.model import MAX_STOP_STRINGS, Task
from adapters.placement.fingerprint import TOP

KEEP_ALIVE_SECONDS = 75
"""Keep-alive of idle connections in seconds. The gateway closes its own after 4 s, which with vLLM's default
of 5 s leaves one second of slack."""
LEAST_KEEP_ALIVE_SECONDS = 5

_ONE_SERVER = "adapters are loaded into one process, but each of several API servers keeps its own list"
_LOCAL_DISK = "versions are staged on this host's disk, which processes on other hosts cannot read"
_BEHIND = "they are loaded without Florin's knowledge, under foreign names"

REFUSED = {
    "lora-modules": f"{_BEHIND}: register them with `florin adapter add`",
    "default-mm-loras": f"{_BEHIND}, and apply to requests for other versions",
    "no-enable-lora": "the engine could not serve adapters",
    "no-enable-prompt-tokens-details": "cached tokens would not be counted or billed correctly",
    "uds": "the gateway reaches engines over TCP only",
    "root-path": "the gateway calls /v1 at the root of the engine's URL",
    "headless": "an engine without its API cannot be called",
    "grpc": "the gateway speaks HTTP, and this replaces it",
    "tokens-only": "it removes the chat and completion routes",
    "skip-tokenizer-init": "requests contain text",
    "disable-log-stats": "load, drain and costs are based on the engine's metrics",
    "data-parallel-rank": _ONE_SERVER,
    "data-parallel-start-rank": _ONE_SERVER,
    "data-parallel-size-local": _ONE_SERVER,
    "data-parallel-address": _ONE_SERVER,
    "data-parallel-hybrid-lb": _ONE_SERVER,
    "data-parallel-external-lb": _ONE_SERVER,
    "data-parallel-multi-port-external-lb": _ONE_SERVER,
    "enable-elastic-ep": _ONE_SERVER,
}
"""Flags that are refused, and why."""

ONLY = {
    "api-server-count": (("1",), _ONE_SERVER),
    "data-parallel-size": (("1",), f"{_ONE_SERVER}: run one engine for each GPU set instead"),
    "nnodes": (("1",), _LOCAL_DISK),
    "node-rank": (("0",), _LOCAL_DISK),
    "distributed-executor-backend": (
        ("mp", "uni"),
        f"{_LOCAL_DISK}, and Ray's processes outlive the engine",
    ),
    "logprobs-mode": (
        ("raw_logprobs", "processed_logprobs"),
        "versions are verified by log probabilities; with logits, this engine would differ from all others",
    ),
}
"""Flags restricted to these values, and why."""

_NO_LORA = "these kernels do not apply adapters, so vLLM would not start"

EXCEPT = {
    "moe-backend": (
        (
            "deep_gemm_mega_moe",
            "flashinfer_moe_ep_cutedsl",
            "flashinfer_moe_ep_mega_deep_gemm",
            "aiter_mega_moe",
        ),
        _NO_LORA,
    ),
}
"""Flags for which these values are refused, and why."""

PASSED = {
    "kv-transfer-config": "each version has cache salts of its own, so a cache outside of the engine cannot "
    "mix the prefixes of two versions or tenants, even if it does not look at the adapter's name",
    "watchdog-config": "it writes the stacks of an engine that hangs to a file, and ends nothing: Florin "
    "finds such an engine by itself",
    "enable-sleep-mode": "nothing can put the engine to sleep while its development routes are refused",
    "sleep-mode-backend": "without effect, for the same reason",
}
"""Flags that one might expect to be refused, and why they are not."""

REFUSED_ENVIRONMENT: dict[str, tuple[Callable[[str], bool], str]] = {
    "VLLM_SERVER_DEV_MODE": (
        lambda v: v.strip() not in {"", "0"},
        "anyone who reaches the engine could reset its caches, put it to sleep or read its settings",
    ),
    "VLLM_LORA_RESOLVER_CACHE_DIR": (bool, _BEHIND),
    "VLLM_LORA_RESOLVER_HF_REPO_LIST": (bool, _BEHIND),
    "VLLM_PLUGINS": (lambda v: "resolver" in v, _BEHIND),
    "VLLM_SKIP_MODEL_NAME_VALIDATION": (
        lambda v: v.strip().lower() in {"1", "true"},
        "the base model would answer for an adapter that is not loaded",
    ),
    "VLLM_USE_RUST_FRONTEND": (
        lambda v: v.strip() not in {"", "0"},
        "vLLM's Rust frontend serves routes that Florin does not know",
    ),
    "VLLM_REQUEST_BODY_LOG_LEVEL": (
        lambda v: v.strip().upper() != _NEVER,
        "the engine's log would contain prompts; Florin sets it to NOTSET, with which it never does",
    ),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": (
        lambda v: v.strip().lower() not in {"1", "true"},
        "adapters could not be loaded; Florin sets it",
    ),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": (
        lambda v: v.strip() != "0",
        "an allowed media host could redirect the engine into your own network",
    ),
    "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": (
        lambda v: not v.strip().isdigit() or int(v) < LEAST_KEEP_ALIVE_SECONDS,
        "the gateway reuses connections that were idle for up to 4 seconds",
    ),
}  # fmt: skip
"""Variables → a test for values that are refused, and why."""

_NEVER = "NOTSET"
"""A level at which Python's `logging` logs nothing."""

SECRET = {"api-key"}
"""Flags whose values are not shown in messages."""
NO_DOMAIN = "media.invalid"
"""A name that never resolves (RFC 2606). vLLM treats an empty list of allowed domains as all domains."""

DEFAULTS = {"max-loras": 1, "max-lora-rank": 16, "tensor-parallel-size": 1, "pipeline-parallel-size": 1,
            "prefill-context-parallel-size": 1, "port": 8000}  # fmt: skip
"""vLLM's defaults."""

_READ = {*DEFAULTS, "max-cpu-loras", "max-num-seqs", "enable-lora", "enable-prompt-tokens-details", "host",
         "model", "config", "served-model-name", "chat-template", "max-logprobs", "api-key", "ssl-certfile",
         "ssl-keyfile", "ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers", "enable-ssl-refresh",
         "allowed-media-domains", "runner", "convert", "enable-log-requests"}  # fmt: skip
KNOWN = _READ | REFUSED.keys() | ONLY.keys() | EXCEPT.keys()


@dataclass(frozen=True, slots=True)
class Addition:
    words: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How the engine is started, and the facts derived from its flags."""

    command: tuple[str, ...]
    additions: tuple[Addition, ...]
    """Flags added to `command`, with the reasons."""
    environment: dict[str, str]
    """Variables added to the engine's environment."""
    model: str
    """Directory or Hub id."""
    names: tuple[str, ...]
    """Names that it serves the model as; the first is the base model's name."""
    slots: int
    cpu_slots: int
    max_rank: int
    seats: int
    """Requests that it runs at a time; 0: vLLM's default, which depends on the GPU."""
    host: str
    port: int
    gpus: int
    """Number of GPUs that it runs on."""
    chat_template: str | None
    """`--chat-template`: a file, or the template itself."""
    tls: bool = False
    mutual: bool = False
    """Whether it requires a client certificate."""
    tasks: tuple[Task, ...] = ("generate",)
    """What it is for."""
    api_key: str = field(default="", repr=False)
    """The first API key that it accepts; empty if it requires none."""


def plan(
    command: Sequence[str],
    environ: Mapping[str, str],
    *,
    host: str,
    port: int = DEFAULTS["port"],
    loads: bool = True,
    read: Callable[[str], str] = lambda path: Path(path).read_text(),
) -> Launch:
    """`host`, `port`: where the engine listens unless its flags say otherwise. `loads`: it loads adapters.
    Raises CommandRefusedError with all reasons."""
    line = parse(command, KNOWN, read=read)
    reasons = [*line.reasons, *_refusals(line, {**environ, **line.environment})]
    numbers = {name: _number(line, name, reasons) for name in DEFAULTS}
    slots, rank = numbers["max-loras"] or 1, numbers["max-lora-rank"] or DEFAULTS["max-lora-rank"]
    cpu_slots = _number(line, "max-cpu-loras", reasons) or slots
    seats = _number(line, "max-num-seqs", reasons) or 0
    if cpu_slots < slots:
        reasons.append(
            f"--max-cpu-loras {cpu_slots} is less than --max-loras {slots}, so vLLM does not start."
        )
    model = line.model or line.value("model")
    if not model:
        reasons.append("the model is missing: put it right after `serve`.")
    elif line.model and line.value("model") not in {None, line.model}:
        reasons.append(f"the model is given twice: {line.model} and {line.value('model')}.")
    if reasons:
        raise CommandRefusedError(reasons)
    assert model  # otherwise there was a reason
    additions = _additions(line, slots, cpu_slots, rank, host, port, loads=loads)
    return Launch(
        command=(*command, *(word for addition in additions for word in addition.words)),
        additions=additions,
        environment=_environment({**environ, **line.environment}),
        model=model,
        names=line.values("served-model-name") or (model,),
        slots=slots,
        cpu_slots=cpu_slots,
        max_rank=rank,
        seats=seats,
        host=line.value("host") or host,
        port=numbers["port"] or port,
        gpus=_gpus(numbers),
        chat_template=line.value("chat-template"),
        tls="ssl-certfile" in line,
        mutual=line.value("ssl-cert-reqs") == "2",
        tasks=_tasks(line),
        api_key=line.value("api-key") or {**environ, **line.environment}.get("VLLM_API_KEY", ""),
    )


def _tasks(line: CommandLine) -> tuple[Task, ...]:
    """By `--runner` and `--convert`. The model's architecture alone does not tell."""
    if line.value("runner") != "pooling":
        return ("generate",)
    return ("score",) if line.value("convert") == "classify" else ("embed", "score")


def _refusals(line: CommandLine, environ: Mapping[str, str]) -> list[str]:
    reasons = [f"--{name} is refused: {reason}." for name, reason in REFUSED.items() if name in line]
    for name, (allowed, reason) in ONLY.items():
        value = line.value(name)
        if name in line and value not in allowed:
            reasons.append(f"--{name} {value or '(nothing)'} is refused: {reason}.")
    for name, (refused, reason) in EXCEPT.items():
        value = (line.value(name) or "").replace("-", "_")
        if name in line and value in refused:
            reasons.append(f"--{name} {value} is refused: {reason}.")
    if "enable-log-requests" in line and environ.get("VLLM_LOGGING_LEVEL", "").strip().upper() == "DEBUG":
        reasons.append(
            "--enable-log-requests with VLLM_LOGGING_LEVEL=DEBUG is refused: the engine's log would contain "
            "prompts."
        )
    for name, (bad, reason) in REFUSED_ENVIRONMENT.items():
        if name in environ and bad(environ[name]):
            reasons.append(f"{name} in the environment is refused: {reason}.")
    reasons += _too_few_logprobs(line)
    reasons += _half_of_tls(line)
    for name in sorted(line.flags.keys() & KNOWN - REFUSED.keys()):  # a refused flag's value may be a secret
        if len(set(line.flags[name])) > 1:
            given = ", ".join(" ".join(values) or "nothing" for values in line.flags[name])
            given = "" if name in SECRET else f", as {given}"
            reasons.append(f"--{name} is given more than once{given}: give it once.")
    return reasons


def _half_of_tls(line: CommandLine) -> list[str]:
    """TLS flags that only look secure, or that do not start."""
    reasons = []
    if ("ssl-certfile" in line) != ("ssl-keyfile" in line):
        reasons.append("--ssl-certfile and --ssl-keyfile belong together: give both or neither.")
    reasons += [
        f"--{name} has no effect without --ssl-certfile and --ssl-keyfile."
        for name in ("ssl-ca-certs", "ssl-cert-reqs", "ssl-ciphers", "enable-ssl-refresh")
        if name in line and "ssl-certfile" not in line
    ]
    cert_reqs = line.value("ssl-cert-reqs")
    if "ssl-ca-certs" in line and cert_reqs != "2":
        reasons.append(
            "--ssl-ca-certs without --ssl-cert-reqs 2 accepts clients without a certificate: add "
            "--ssl-cert-reqs 2."
        )
    elif "ssl-cert-reqs" in line and cert_reqs == "2" and "ssl-ca-certs" not in line:
        reasons.append("--ssl-cert-reqs 2 needs --ssl-ca-certs, the CA of the client certificates.")
    elif "ssl-cert-reqs" in line and cert_reqs not in {"0", "2"}:
        reasons.append(
            f"--ssl-cert-reqs {cert_reqs or '(nothing)'} is refused: 2 requires a client certificate, "
            "0 does not, and 1 accepts clients without one."
        )
    if "api-key" in line and not line.value("api-key"):
        reasons.append("--api-key needs a key; prefer VLLM_API_KEY, which other users cannot see.")
    return reasons


def _too_few_logprobs(line: CommandLine) -> list[str]:
    """With fewer logprobs, vLLM refuses the probes that verify a version after its load."""
    value = line.value("max-logprobs") or ""
    enough = value == "-1" or (value.isascii() and value.isdigit() and int(value) >= TOP)
    if enough or "max-logprobs" not in line:
        return []
    reason = (
        f"a loaded version is verified by its {TOP} likeliest tokens; vLLM's default is 20, and -1 no limit"
    )
    return [f"--max-logprobs {value or '(nothing)'} is refused: {reason}."]


def _number(line: CommandLine, name: str, reasons: list[str]) -> int | None:
    """The flag's value as a number above 0; None if not given."""
    if name not in line:
        return None
    value = line.value(name) or ""
    if value.isascii() and value.isdigit() and 0 < int(value) < 1_000_000:
        return int(value)
    reasons.append(f"--{name} {value or '(nothing)'} is not a number above 0.")
    return None


def _gpus(numbers: Mapping[str, int | None]) -> int:
    total = 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "prefill-context-parallel-size"):
        total *= numbers[name] or 1
    return total


def _additions(
    line: CommandLine, slots: int, cpu_slots: int, rank: int, host: str, port: int, *, loads: bool
) -> tuple[Addition, ...]:
    additions = {
        "enable-lora": ((), "the engine serves adapters"),
        "api-server-count": (("1",), _ONE_SERVER),
        "max-loras": ((str(slots),), "vLLM's default: one version at a time; more need GPU memory"),
        "max-cpu-loras": ((str(cpu_slots),), "vLLM's default: as many as --max-loras"),
        "max-lora-rank": ((str(rank),), "vLLM's default"),
        "enable-prompt-tokens-details": ((), "cached tokens are counted and reported"),
        "allowed-media-domains": (
            (NO_DOMAIN,),
            "clients' media URLs are not fetched; to allow them, give the domains in FLORIN_MEDIA_HOSTS",
        ),
        "host": ((host,), "only the address by which this host reaches the gateway"),
        "port": ((str(port),), "vLLM's default, or the port of --advertise"),
    }
    return tuple(
        Addition((f"--{name}", *values), reason)
        for name, (values, reason) in additions.items()
        if name not in line and (loads or name not in _OF_ADAPTERS)
    )


_OF_ADAPTERS = frozenset({"enable-lora", "max-loras", "max-cpu-loras", "max-lora-rank"})


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    added = {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_USE_RUST_FRONTEND": "0",
        "VLLM_REQUEST_BODY_LOG_LEVEL": _NEVER,
    }
    if "VLLM_HTTP_TIMEOUT_KEEP_ALIVE" not in environ:
        added["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_SECONDS)
    if "VLLM_MAX_STOP_STRINGS" not in environ:
        added["VLLM_MAX_STOP_STRINGS"] = str(MAX_STOP_STRINGS)
    return added
