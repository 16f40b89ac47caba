"""florin engine …"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated

import typer

from gateway.commands.adapters import absolute
from gateway.commands.client import Json, segment
from gateway.commands.labels import EngineDomain, EngineLabels, PromptScoresOption, labels, shown
from gateway.commands.output import busy, clean, note, say, show, table
from gateway.commands.prices import Purchase
from gateway.commands.session import Session, command, confirm

app = typer.Typer()

Columns = tuple[tuple[str, Callable[[Json], object]], ...]
"""Names, and what each shows of an engine."""
Name = Annotated[str, typer.Argument(help="The engine's name.")]


class Driver(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    TRTLLM = "trtllm"
    TGI = "tgi"
    LORAX = "lorax"


_STATES = {
    "active": "is active: it accepts adapters and requests",
    "cordoned": "is cordoned: it accepts no new adapters",
}


@command(app, "add")
def add(
    session: Session,
    *,
    name: Annotated[str, typer.Option(help="1 to 63 of a-z, 0-9, - and _.")],
    url: Annotated[str, typer.Option("--url", help="The engine's URL, for example http://10.0.0.7:8000.")],
    base: Annotated[str, typer.Option(help="The base model's name, as the engine serves it.")],
    gpu_type: Annotated[str, typer.Option(help="GPU type, as named in the price book, for example H200.")],
    slots: Annotated[
        int, typer.Option(min=1, help="The engine's --max-loras; verified once the engine has answered.")
    ],
    max_rank: Annotated[
        int,
        typer.Option(
            min=1, help="The engine's --max-lora-rank. vLLM does not report it, so it cannot be verified."
        ),
    ],
    gpu_count: Annotated[int, typer.Option(min=1, help="Number of GPUs of this engine.")] = 1,
    region: Annotated[str, typer.Option(help="Region of its GPUs, as named in the price book.")] = "",
    purchase: Annotated[Purchase, typer.Option(help="Purchase model of its GPUs.")] = Purchase.ON_DEMAND,
    label: EngineLabels = None,
    domain: EngineDomain = "",
    cpu_slots: Annotated[
        int | None, typer.Option(help="The engine's --max-cpu-loras; at least --slots.")
    ] = None,
    seats: Annotated[
        int | None,
        typer.Option(min=1, help="The engine's --max-num-seqs; learned from its metrics if left out."),
    ] = None,
    prompt_scores: PromptScoresOption = None,
    driver: Annotated[
        Driver, typer.Option(help="Which kind of engine it is; see docs/engines.md.")
    ] = Driver.VLLM,
    holds: Annotated[
        list[str] | None,
        typer.Option(
            "--holds",
            metavar="TENANT/NAME@VERSION",
            help="A version that it was started with; only for engines that load none later. Repeatable.",
        ),
    ] = None,
    tasks: Annotated[
        str, typer.Option(help="What it does, comma-separated: generate, embed (vectors), score (rerank).")
    ] = "generate",
    base_config: Annotated[
        str | None,
        typer.Option(help="The base model's config.json, if the gateway cannot read the engine's files."),
    ] = None,
    base_alias: Annotated[
        list[str] | None,
        typer.Option(help="Another name that adapters use for the base model. Repeatable."),
    ] = None,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Register the engine even if it does not answer yet.")
    ] = False,
) -> None:
    """Register an engine by its URL, or update its registration. Repeating the command changes nothing.

    For engines on a shared filesystem, or not started by Florin; `florin engine run` registers its own.

    The gateway asks the engine what it serves and compares the answers with these options.

    Example: florin engine add --name a1 --url http://10.0.0.7:8000 --base llama-8b --gpu-type H200 --slots 8
    --max-rank 64
    """
    body: Json = {
        "name": name,
        "url": url,
        "base": base,
        "gpu_type": gpu_type,
        "gpu_count": gpu_count,
        "region": region,
        "purchase": purchase.value,
        "labels": labels("--label", label),
        "host": domain,
        "slots": slots,
        "cpu_slots": cpu_slots,
        "max_rank": max_rank,
        "seats": seats,
        "prompt_scores": prompt_scores and prompt_scores.value,
        "driver": driver.value,
        "holds": holds or [],
        "tasks": [task.strip() for task in tasks.split(",")],
        "verify": not no_verify,
        "base_config": None if base_config is None else absolute(base_config),
        "base_aliases": base_alias or [],
    }
    with busy(f"Asking {url} …"):
        answer = session.api.post("/admin/v1/engines", body)
    session.result(answer, _added)


@command(app, "list")
def list_(
    session: Session,
    *,
    wide: Annotated[
        bool,
        typer.Option(
            "--wide", "-w", help="Also agent, highest rank, labels, version, prompt scores and URL."
        ),
    ] = False,
) -> None:
    """List engines with their health and the requests that run and wait there, in 80 columns; --wide shows
    the rest. Agent: uptime of the engine process, as reported by `florin engine run` on its host, or silent
    if no report arrives. Prompt scores: whether requests with `prompt_logprobs`, or `echo` and `logprobs`,
    are safe there; only then are they sent there.

    Example: florin engine list --wide
    """
    session.result(session.api.get("/admin/v1/engines"), lambda body: _show_list(body, wide=wide))


def _show_list(body: Json, *, wide: bool) -> None:
    if not body["data"]:
        note("No engines yet: florin engine add --name … --url …")
    columns = (*_COLUMNS, *(_WIDE if wide else ()), *_LAST)
    rows = [[shown_field(engine) for _, shown_field in columns] for engine in body["data"]]
    names = [name for name, _ in columns]
    right = [name for name in ("slots", "max rank", "run", "wait") if name in names]
    show(table(names, rows, right=right))
    for engine in body["data"]:
        if engine.get("hang"):
            note(f"{clean(engine['name'])} {clean(engine['hang']['reason'])}.")
        if not wide and _agent(engine) == "silent":
            note(f"{clean(engine['name'])}: its agent, florin engine run, sends no reports.")


@command(app, "cordon")
def cordon(session: Session, name: Name) -> None:
    """Stop placing new adapters on an engine; adapters it holds are still served.

    Example: florin engine cordon a1
    """
    _state(session, name, "cordoned")


@command(app, "uncordon")
def uncordon(session: Session, name: Name) -> None:
    """Return an engine to service after a cordon or a drain. Ends a drain in progress.

    Example: florin engine uncordon a1
    """
    _state(session, name, "active")


@command(app, "remove")
def remove(
    session: Session,
    name: Name,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
) -> None:
    """Remove an engine and its placements. Repeating the command changes nothing.

    Example: florin engine remove a1 --yes
    """
    confirm(f"Remove engine {name}?", yes=yes)
    body = session.api.delete(f"/admin/v1/engines/{segment(name)}")
    session.result(
        body,
        lambda b: say(
            f"Engine {clean(b['name'])} {'removed' if b['removed'] else 'was not registered; nothing to do'}."
        ),
    )


@command(app, "trust")
def trust(
    session: Session,
    name: Name,
    *,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
    ] = False,
) -> None:
    """Accept an engine's current base model answers as the reference for its fleet.

    Use it after changing the base model, its quantization or vLLM, when loads are refused because engines are
    suspect. Versions of the fleet get new references at their next loads; quarantines stay.

    Example: florin engine trust a1 --yes
    """
    confirm(f"Use the answers of {name} as the reference for its whole fleet?", yes=yes, unattended=False)
    session.result(session.api.post(f"/admin/v1/engines/{segment(name)}/trust"), _trusted)


def _added(body: Json) -> None:
    say(f"Engine {clean(body['name'])} serves {clean(body['base'])} at {clean(body['url'])}.")
    if not body["base_config"]:
        note(
            f"Florin does not have the config.json of {clean(body['base'])} and cannot check "
            "adapters without it: run the command again with --base-config PATH."
        )


def _shown_state(engine: Json) -> str:
    if not engine["stopping"]:
        return str(engine["state"])
    end = "stopped" if engine.get("stopped") else "stopping"
    return end if engine["state"] == "active" else f"{engine['state']}, {end}"


def _agent(engine: Json) -> str | None:
    """`up 3h 12m`, or `silent`; None without one."""
    if not engine["agent"]:
        return None
    heartbeat = engine["heartbeat"]
    if not heartbeat:
        return "silent"
    return f"up {lasting(time.time() - heartbeat['started'] / 1e6)}" if heartbeat.get("started") else "up"


def lasting(seconds: float) -> str:
    """`42s`, `12m`, `3h 12m`, `5d 3h`."""
    minutes, hours = int(seconds) // 60, int(seconds) // 3600
    if minutes < 1:
        return f"{max(0, int(seconds))}s"
    if hours < 1:
        return f"{minutes}m"
    return f"{hours}h {minutes % 60}m" if hours < 24 else f"{hours // 24}d {hours % 24}h"


def _gpus(engine: Json) -> str:
    """`2 x H200`, with purchase model and region if set: `2 x H200 spot, eu-1`."""
    purchase = "" if engine["purchase"] == Purchase.ON_DEMAND else f" {engine['purchase']}"
    region = f", {engine['region']}" if engine["region"] else ""
    return f"{engine['gpu_count']} x {engine['gpu_type']}{purchase}{region}"


def _state(session: Session, name: str, state: str) -> None:
    body = session.api.put(f"/admin/v1/engines/{segment(name)}/state", {"state": state})
    session.result(body, lambda b: say(f"Engine {clean(b['name'])} {_STATES[b['state']]}."))


def _trusted(body: Json) -> None:
    say(
        f"{clean(body['engine'])} is now the reference for {clean(body['base'])}; "
        f"{body['fingerprints_forgotten']} versions get new references at their next loads."
    )


_COLUMNS: Columns = (
    ("engine", lambda e: e["name"]),
    ("state", _shown_state),
    ("health", lambda e: e["health"]),
    ("gpus", _gpus),
    ("slots", lambda e: f"{e['resident']}/{e['slots']}"),
    ("run", lambda e: e["running"]),
    ("wait", lambda e: e["waiting"]),
)
_WIDE: Columns = (
    ("agent", _agent),
    ("max rank", lambda e: e["max_rank"]),
    ("labels", lambda e: shown(e["labels"])),
    ("engine version", lambda e: f"{e['driver']} {e['version']}".strip()),
    (
        "prompt scores",
        lambda e: f"{e['prompt_scores']} (set)" if e["declared_scores"] else e["prompt_scores"],
    ),
    ("url", lambda e: e["url"]),
)
_LAST: Columns = (("base", lambda e: e["base"]),)
"""A model's name may be long, and then its column is the one that folds."""
