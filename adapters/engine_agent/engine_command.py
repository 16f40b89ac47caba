"""An engine's command line, read as vLLM reads it.

vLLM takes `--max-loras 4`, `--max_loras=4`, a YAML file whose keys are flags (`--config FILE`; the command
line wins), and, by argparse, any unique beginning of a flag (`--max-lora 4`). The last is refused here: what
a flag means must not depend on which others vLLM has.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

SHORT = {
    "-asc": "api-server-count",
    "-tp": "tensor-parallel-size",
    "-pp": "pipeline-parallel-size",
    "-pcp": "prefill-context-parallel-size",
    "-dp": "data-parallel-size",
    "-dpn": "data-parallel-rank",
    "-dpr": "data-parallel-start-rank",
    "-dpl": "data-parallel-size-local",
    "-dpa": "data-parallel-address",
    "-dpp": "data-parallel-rpc-port",
    "-dpb": "data-parallel-backend",
    "-dph": "data-parallel-hybrid-lb",
    "-dpe": "data-parallel-external-lb",
    "-dpm": "data-parallel-multi-port-external-lb",
    "-n": "nnodes",
    "-r": "node-rank",
}
OTHER_SHORT = {"-h", "-q", "-ep", "-sc", "-dc", "-cc", "-ac", "-dcp"}
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server.entry")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_GLUED = re.compile(r"(-[nr])(\d+)")


class CommandRefusedError(Exception):
    """The command would not make an engine that Florin can use; `reasons` are sentences."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


@dataclass(frozen=True, slots=True)
class CommandLine:
    model: str | None
    """The positional argument after `serve`."""
    flags: dict[str, tuple[tuple[str, ...], ...]]
    """Name without dashes → the values of each time that it stands on the command line."""
    config: dict[str, tuple[str, ...]]
    """The same of the `--config` file, once each."""
    environment: dict[str, str]
    """NAME=VALUE words before the engine's own, as `env` takes them."""
    reasons: tuple[str, ...] = field(default=())
    """Why it cannot be read for certain."""

    def __contains__(self, name: str) -> bool:
        return name in self.flags or name in self.config

    def values(self, name: str) -> tuple[str, ...] | None:
        """What vLLM will take: the last on the command line, else the file's. None: it is not given."""
        times = self.flags.get(name)
        return times[-1] if times else self.config.get(name)

    def value(self, name: str) -> str | None:
        values = self.values(name)
        return values[0] if values else None


def parse(
    command: Sequence[str],
    known: Collection[str],
    *,
    read: Callable[[str], str] = lambda p: Path(p).read_text(),
) -> CommandLine:
    """`known`: the flags whose abbreviations must be refused. Raises CommandRefusedError when it is no
    command of an engine at all."""
    start = _start(command)
    before, args = command[:start], list(command[start:])
    reasons: list[str] = []
    model = None
    if before[-1] == "serve" and args and not args[0].startswith("-"):
        model = args.pop(0)
    flags: dict[str, tuple[tuple[str, ...], ...]] = {}
    while args:
        word = args.pop(0)
        if word == "--":
            reasons.append("a second `--` hides what follows from vLLM: leave it out.")
            continue
        if not _is_flag(word):
            reasons.append(f"{word!r} stands where no value is expected: put the model right after `serve`.")
            continue
        name, glued = _name(word, known, reasons)
        if name == "config" and glued is not None:
            reasons.append("--config=FILE is ignored by vLLM: write `--config FILE`.")
        values = [glued] if glued is not None else []
        while glued is None and args and not _is_flag(args[0]):
            values.append(args.pop(0))
        flags[name] = (*flags.get(name, ()), tuple(values))
    config = _config(flags, read, reasons)
    assigned = {m[1]: m[2] for m in map(_ASSIGNMENT.fullmatch, before) if m}
    return CommandLine(model, flags, config, assigned, tuple(reasons))


def _start(command: Sequence[str]) -> int:
    """Where the engine's own arguments begin: after `… serve`, or after `-m` and vLLM's server module."""
    for i, word in enumerate(command):
        if i and (word == "serve" or (word in _MODULES and command[i - 1] == "-m")):
            return i + 1
    reason = (
        "after `--` must stand the engine's command, with its arguments in plain sight: "
        "`vllm serve MODEL …` or `python -m vllm.entrypoints.openai.api_server --model MODEL …`."
    )
    raise CommandRefusedError([reason])


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit()


def _name(word: str, known: Collection[str], reasons: list[str]) -> tuple[str, str | None]:
    """The flag's name in dashes, and the value that is glued to it."""
    written, equals, value = word.partition("=")
    glued = value if equals else None
    if written.startswith("--"):
        name, dot, _ = written[2:].partition(".")
        name = name.replace("_", "-")
        if name not in known and not dot:
            meant = sorted(flag for flag in known if flag.startswith(name))
            if meant:
                reasons.append(f"{written} abbreviates --{meant[0]}: write it out.")
        return name, glued
    if match := _GLUED.fullmatch(written):
        return SHORT[match[1]], match[2]
    if written in SHORT:
        return SHORT[written], glued
    if written not in OTHER_SHORT and not written.startswith("-O"):
        meant = sorted(short for short in SHORT if short.startswith(written))
        if meant:
            reasons.append(f"{written} abbreviates {meant[0]}: write it out.")
    return written.lstrip("-"), glued


def _config(
    flags: dict[str, tuple[tuple[str, ...], ...]], read: Callable[[str], str], reasons: list[str]
) -> dict[str, tuple[str, ...]]:
    """The flags that vLLM will take from the file."""
    times = flags.get("config")
    if not times:
        return {}
    if len(times) > 1 or len(times[0]) != 1:
        reasons.append("--config wants one file, once.")
        return {}
    path = times[0][0]
    try:
        content = yaml.safe_load(read(path))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reasons.append(f"--config {path} cannot be read: {error}.")
        return {}
    if not isinstance(content, dict):
        reasons.append(f"--config {path} is not a mapping of flags.")
        return {}
    found: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        name = str(key).partition(".")[0].replace("_", "-")
        if value is False:
            found[f"no-{name}"] = ()
        elif value is True:
            found[name] = ()
        elif isinstance(value, list):
            if value:
                found[name] = tuple(map(str, value))
        else:
            found[name] = (json.dumps(value) if isinstance(value, dict) else str(value),)
    return found
