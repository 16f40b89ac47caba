"""A mock engine's state: adapters, slots, prefix cache, counters, call log."""

from __future__ import annotations

import hashlib
import time
from collections import Counter, OrderedDict, deque
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtests.mock_engine import answers
from loadtests.mock_engine.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class Spec:
    """The engine's flags, named as in vLLM."""

    base: str = "base"
    root: str = "/models/base"
    max_loras: int = 2
    max_cpu_loras: int = 8
    max_lora_rank: int = 8
    max_model_len: int = 4096
    version: str = "0.32.0"
    answer_tokens: int = 8
    """Natural length of an answer in tokens."""
    max_num_seqs: int = 0
    """Maximum running requests, others wait; 0 for unlimited."""
    block_size: int = 16
    """Tokens per block of the prefix cache."""
    prompt_details: bool = True
    """--enable-prompt-tokens-details."""
    tasks: tuple[str, ...] = ("generate",)
    """What it does, as in Florin's registration: a pooling engine neither chats nor completes."""
    dimensions: int = 16
    """Components of its vectors."""
    check_paths: bool = True
    """Loads require an existing directory with adapter_config.json and adapter_model.safetensors."""
    log: int = 10_000
    """Number of calls kept in the log; 0 for speed."""
    unload: str = "forgets"
    """What an unload does: `forgets`, `removes` or `refuses`, see `adapters.model.Unloads`."""
    tells_residency: bool = False
    """Its metrics show which adapters are in its memory."""
    metrics_bytes: int = 0
    """Least length of its metrics, of which histograms are most in vLLM."""


@dataclass(slots=True)
class Call:
    """One generation request as seen by the engine. Times are CLOCK_MONOTONIC seconds."""

    path: str
    model: str
    headers: dict[str, str]
    body: Any
    began: float
    ended: float = 0.0
    outcome: str = "running"
    """running, finished, aborted (the client left), refused, or the fault that ended it."""
    sent: int = 0
    """Completion tokens sent."""


@dataclass(slots=True)
class AdminCall:
    """One load or unload."""

    action: str
    name: str
    path: str
    status: int
    at: float


@dataclass(slots=True)
class State:
    """Mutable state, changed only by the engine's connections."""

    spec: Spec
    adapters: dict[str, str] = field(default_factory=dict)
    """Engine-side name → path, in load order."""
    started: float = field(default_factory=time.time)
    calls: deque[Call] = field(default_factory=deque)
    admin: list[AdminCall] = field(default_factory=list)
    probes: Counter[str] = field(default_factory=Counter)
    verifications: Counter[str] = field(default_factory=Counter)
    """Model → number of fingerprint probes."""
    contents: dict[str, str] = field(default_factory=dict)
    """Engine-side name → digest of its files at load time."""
    vocabulary: dict[str, int] = field(default_factory=dict)
    """Word → token, of what was tokenized."""
    running: Counter[str] = field(default_factory=Counter)
    """Model → requests in flight now."""
    max_running: int = 0
    max_distinct: int = 0
    """Peak number of distinct adapters in flight, excluding the base model."""
    swaps: int = 0
    """Requests whose adapter was not in a GPU slot."""
    disk_reads: int = 0
    """Requests whose adapter was also not in the CPU cache."""
    ready: float = field(default_factory=time.time)
    """When its model was loaded; `started` is when its process began."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    finished: int = 0
    in_flight: int = 0
    queued: int = 0
    """Number of requests in flight that wait for others."""
    hanging: int = 0
    """Number of requests in flight that it will never answer."""
    stepped: float = 0.0
    """Time of its latest step."""
    _cpu: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _gpu: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _prefixes: set[tuple[str, str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.calls = deque(maxlen=self.spec.log)

    # adapters

    def load(self, body: Any) -> tuple[int, bytes]:
        """POST /v1/load_lora_adapter, with vLLM's status and message."""
        fields = body if isinstance(body, dict) else {}
        name, path = fields.get("lora_name"), fields.get("lora_path")
        status, answer = self._load(name, path)
        self.admin.append(AdminCall("load", str(name), str(path), status, time.monotonic()))
        return status, answer

    def note_refused_load(self, body: Any, status: int) -> None:
        fields = body if isinstance(body, dict) else {}
        name, path = str(fields.get("lora_name")), str(fields.get("lora_path"))
        self.admin.append(AdminCall("load", name, path, status, time.monotonic()))

    def _load(self, name: Any, path: Any) -> tuple[int, bytes]:
        if not (isinstance(name, str) and isinstance(path, str) and name and path):
            return _bad("Both 'lora_name' and 'lora_path' must be provided.")
        if name == self.spec.base:
            return _bad(f"The lora adapter '{name}' conflicts with a served base model.")
        if name in self.adapters:
            return _bad(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
                "in place, set 'load_inplace' to True."
            )
        if self.spec.check_paths:
            directory = Path(path)
            if not (directory / "adapter_config.json").is_file():
                message = f"Loading lora {name} failed: No adapter found for <path>"
                return 404, answers.error(message, "NotFoundError", 404)
            if not (directory / "adapter_model.safetensors").is_file():
                message = f"{path} doesn't contain tensors"
                return 500, answers.error(message, "InternalServerError", 500)
        self.adapters[name] = path
        self.contents[name] = _digest(Path(path))
        self._use(self._cpu, name, self.spec.max_cpu_loras)
        self._use(self._gpu, name, self.spec.max_loras)
        return 200, f"Success: LoRA adapter '{name}' added successfully.".encode()

    def unload(self, body: Any) -> tuple[int, bytes]:
        """Drop the name. As in vLLM, the weights stay in both caches, unless `Spec.unload` differs."""
        name = body.get("lora_name") if isinstance(body, dict) else None
        if not name:
            status, answer = _bad("'lora_name' needs to be provided to unload a LoRA adapter.")
        elif name not in self.adapters:
            message = f"The lora adapter '{name}' cannot be found."
            status, answer = 404, answers.error(message, "NotFoundError", 404)
        elif self.spec.unload == "refuses" and name not in self._cpu:
            message = f"The lora adapter '{name}' is not held by the engine."
            status, answer = 500, answers.error(message, "InternalServerError", 500)
        else:
            del self.adapters[name]
            if self.spec.unload != "forgets":
                self._cpu.pop(name, None)
                self._gpu.pop(name, None)
            status, answer = 200, f"Success: LoRA adapter '{name}' removed successfully.".encode()
        self.admin.append(AdminCall("unload", str(name), "", status, time.monotonic()))
        return status, answer

    def forget(self) -> None:
        """Reset as after a restart: no adapters, empty caches, zero counters, a new start time."""
        self.adapters.clear()
        self._cpu.clear()
        self._gpu.clear()
        self._prefixes.clear()
        self.prompt_tokens = self.cached_tokens = self.generation_tokens = self.finished = 0
        self.stepped = 0.0
        self.started = self.ready = time.time()

    # generation

    def begin(self, request: GenerationRequest) -> int:
        """Record the start of a request; returns its cached prompt tokens."""
        model = request.model
        self.running[model] += 1
        self.in_flight += 1
        self.stepped = time.time()
        self.max_running = max(self.max_running, self.in_flight)
        if model != self.spec.base:
            distinct = len(self.running) - (self.spec.base in self.running)
            self.max_distinct = max(self.max_distinct, distinct)
            self.swaps += self._use(self._gpu, model, self.spec.max_loras)
            self.disk_reads += self._use(self._cpu, model, self.spec.max_cpu_loras)
        self.prompt_tokens += sum(request.prompts)
        cached = self._cached(request)
        self.cached_tokens += cached
        return cached

    def end(self, request: GenerationRequest, generated: int) -> None:
        self.in_flight -= 1
        self.stepped = time.time()
        self.running[request.model] -= 1
        if not self.running[request.model]:
            del self.running[request.model]
        self.generation_tokens += generated
        self.finished += 1

    def _cached(self, request: GenerationRequest) -> int:
        blocks = (sum(request.prompts) - 1) // self.spec.block_size
        if blocks <= 0:
            return 0
        key = (request.salt, request.model, request.prompt)
        if key in self._prefixes:
            return blocks * self.spec.block_size
        self._prefixes.add(key)
        return 0

    @staticmethod
    def _use(cache: OrderedDict[str, None], name: str, size: int) -> int:
        """Insert into an LRU cache; 1 on a miss, 0 on a hit."""
        if name in cache:
            cache.move_to_end(name)
            return 0
        cache[name] = None
        if len(cache) > size:
            cache.popitem(last=False)
        return 1

    # queries

    def metrics(self, waiting: int) -> bytes:
        label = f'{{engine="0",model_name="{self.spec.base}"}}'
        lines = [
            f"process_start_time_seconds {self.started:.2f}",
            f"vllm:prompt_tokens_created{label} {self.ready!r}",
        ]
        for name, kind, value in (
            ("num_requests_running", "gauge", float(self.in_flight - self.queued)),
            ("num_requests_waiting", "gauge", float(waiting + self.queued)),
            ("kv_cache_usage_perc", "gauge", min(1.0, self.in_flight / 256)),
            ("prompt_tokens_total", "counter", float(self.prompt_tokens)),
            ("prompt_tokens_cached_total", "counter", float(self.cached_tokens)),
            ("generation_tokens_total", "counter", float(self.generation_tokens)),
        ):
            lines += [f"# TYPE vllm:{name.removesuffix('_total')} {kind}", f"vllm:{name}{label} {value}"]
        success = f'{{engine="0",finished_reason="stop",model_name="{self.spec.base}"}}'
        lines.append(f"vllm:request_success_total{success} {float(self.finished)}")
        if self.in_flight > self.hanging:
            self.stepped = time.time()
        if self.stepped:  # vLLM reports it from its first step on
            labels = f'max_lora="{self.spec.max_loras}",running_lora_adapters="",waiting_lora_adapters=""'
            lines.append(f"vllm:lora_requests_info{{{labels}}} {self.stepped!r}")
        if self.spec.tells_residency:
            lines.append(f"vllm:num_gpu_loaded_lora_adapters{label} {float(len(self._gpu))}")
            lines.append(f"vllm:max_gpu_lora_adapters{label} {float(self.spec.max_loras)}")
            lines += [
                f'vllm:lora_adapter_loaded{{adapter_name="{name}",engine="0",level='
                f'"{"gpu" if name in self._gpu else "cpu"}",pinned="false",rank="8"}} 1.0'
                for name in self._cpu
            ]
        bucket = (
            f'vllm:time_to_first_token_seconds_bucket{{engine="0",le="0.25",model_name="{self.spec.base}"}} 0'
        )
        lines += [bucket] * (self.spec.metrics_bytes // len(bucket))
        return ("\n".join(lines) + "\n").encode()

    def log(self) -> dict[str, Any]:
        return {
            "calls": [asdict(call) for call in self.calls],
            "admin": [asdict(call) for call in self.admin],
            "probes": dict(self.probes),
            "verifications": dict(self.verifications),
            "adapters": self.adapters,
            "running": dict(self.running),
            "max_running": self.max_running,
            "max_distinct": self.max_distinct,
            "swaps": self.swaps,
            "disk_reads": self.disk_reads,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "generation_tokens": self.generation_tokens,
            "finished": self.finished,
        }

    def clear_log(self) -> None:
        self.calls.clear()
        self.admin.clear()
        self.probes.clear()
        self.max_running = self.max_distinct = self.swaps = self.disk_reads = 0


def _digest(directory: Path) -> str:
    files = sorted(directory.glob("*")) if directory.is_dir() else []
    hasher = hashlib.sha256()
    for file in files:
        hasher.update(file.name.encode() + b"\0" + file.read_bytes())
    return hasher.hexdigest()


def _bad(message: str) -> tuple[int, bytes]:
    return 400, answers.error(message, "InvalidUserInput", 400)
