"""Parses an engine's command line as vLLM does.

vLLM accepts `--max-loras 4`, `--max_loras=4`, a YAML file with flags as keys (`--config FILE`; the command
line wins) and, through argparse, any unique prefix of a flag (`--max-lora 4`). Prefixes are refused here,
because their meaning depends on the other flags of the vLLM release.
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
    """The command would start an engine that Florin cannot use; `reasons` are sentences."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__("\n".join(self.reasons))


@dataclass(frozen=True, slots=True)
class CommandLine:
    model: str | None
    """The positional argument after `serve`."""
    flags: dict[str, tuple[tuple[str, ...], ...]]
    """Flag name without dashes → its values, for each occurrence on the command line."""
    config: dict[str, tuple[str, ...]]
    """The same for the `--config` file, one occurrence each."""
    environment: dict[str, str]
    """NAME=VALUE words before the command, as for `env`."""
    reasons: tuple[str, ...] = field(default=())
    """Why it is ambiguous."""

    def __contains__(self, name: str) -> bool:
        return name in self.flags or name in self.config

    def values(self, name: str) -> tuple[str, ...] | None:
        """The values that vLLM uses: the last occurrence on the command line, else the file's; None if not
        given."""
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
    """`known`: flags whose abbreviations are refused. Raises CommandRefusedError if it is not an engine
    command."""
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
            reasons.append("a second `--` hides the rest from vLLM: remove it.")
            continue
        if not _is_flag(word):
            reasons.append(f"unexpected value {word!r}: put the model right after `serve`.")
            continue
        name, glued = _name(word, known, reasons)
        if name == "config" and glued is not None:
            reasons.append("vLLM ignores --config=FILE: write `--config FILE`.")
        values = [glued] if glued is not None else []
        while glued is None and args and not _is_flag(args[0]):
            values.append(args.pop(0))
        flags[name] = (*flags.get(name, ()), tuple(values))
    config = _config(flags, read, reasons)
    assigned = {m[1]: m[2] for m in map(_ASSIGNMENT.fullmatch, before) if m}
    return CommandLine(model, flags, config, assigned, tuple(reasons))


def _start(command: Sequence[str]) -> int:
    """Index of the engine's first argument: after `… serve`, or after `-m` and vLLM's server module."""
    for i, word in enumerate(command):
        if i and (word == "serve" or (word in _MODULES and command[i - 1] == "-m")):
            return i + 1
    reason = (
        "`--` must be followed by the engine's command with literal arguments: "
        "`vllm serve MODEL …` or `python -m vllm.entrypoints.openai.api_server --model MODEL …`."
    )
    raise CommandRefusedError([reason])


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not word[1].isdigit()


def _name(word: str, known: Collection[str], reasons: list[str]) -> tuple[str, str | None]:
    """The flag's canonical name, and the value attached with `=`."""
    written, equals, value = word.partition("=")
    glued = value if equals else None
    if written.startswith("--"):
        name, dot, _ = written[2:].partition(".")
        name = name.replace("_", "-")
        if name not in known and not dot:
            meant = sorted(flag for flag in known if flag.startswith(name))
            if meant:
                reasons.append(f"{written} abbreviates --{meant[0]}: write it in full.")
        return name, glued
    if match := _GLUED.fullmatch(written):
        return SHORT[match[1]], match[2]
    if written in SHORT:
        return SHORT[written], glued
    if written not in OTHER_SHORT and not written.startswith("-O"):
        meant = sorted(short for short in SHORT if short.startswith(written))
        if meant:
            reasons.append(f"{written} abbreviates {meant[0]}: write it in full.")
    return written.lstrip("-"), glued


def _config(
    flags: dict[str, tuple[tuple[str, ...], ...]], read: Callable[[str], str], reasons: list[str]
) -> dict[str, tuple[str, ...]]:
    """The flags that vLLM reads from the file."""
    times = flags.get("config")
    if not times:
        return {}
    if len(times) > 1 or len(times[0]) != 1:
        reasons.append("--config takes one file and may be given once.")
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
    file_flags: dict[str, tuple[str, ...]] = {}
    for key, value in content.items():
        name = str(key).partition(".")[0].replace("_", "-")
        if value is False:
            file_flags[f"no-{name}"] = ()
        elif value is True:
            file_flags[name] = ()
        elif isinstance(value, list):
            if value:
                file_flags[name] = tuple(map(str, value))
        else:
            file_flags[name] = (json.dumps(value) if isinstance(value, dict) else str(value),)
    return file_flags
