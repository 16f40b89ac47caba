"""The tree of `florin` commands. The commands live in gateway.commands, the server in gateway.server."""

from __future__ import annotations

import importlib
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated, Any

import typer

from gateway.commands.output import print_json, say

_HELP = (
    "Florin: a multi-LoRA serving gateway for vLLM. Each request to the right adapter on the right GPU, "
    "each customer's cost to the token."
)
_EPILOG = (
    "All but serve, demo and version speak to a running gateway: FLORIN_URL, FLORIN_OPERATOR_KEY. "
    "Exit codes: 1 refused or failed, 2 usage or settings, 3 gateway unreachable."
)
_GROUPS = {
    "tenant": ("tenants:app",),
    "key": ("keys:app",),
    "adapter": ("adapters:app", "adapter_add", "check", "release"),
    "engine": ("engines:app", "engine_run", "tokens", "trust"),
    "audit": ("audit:app",),
    "price": ("prices:prices",),
    "registry": ("registry:app",),
    "cost": (
        *("cost.app:app", "cost.bills", "cost.compare", "cost.export", "cost.periods", "cost.proofs"),
        *("cost.reconcile", "cost.report", "cost.set_aside", "cost.statement"),
    ),
}
"""Group → the module and name of its Typer app, and the modules whose commands join it."""
_SINGLE = {
    "placement": "placement",
    "explain": "placement",
    "calibrate": "calibrate",
    "apply": "declarative",
    "export": "declarative",
    "doctor": "doctor",
}
"""Command → the module that registers it."""


def tree(wanted: str = "") -> typer.Typer:
    """The whole command; `wanted`: the first word, if that is all that will be asked for."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=_HELP,
        epilog=_EPILOG,
    )
    everything = wanted not in _GROUPS and wanted not in _SINGLE
    for name, (group, *joining) in _GROUPS.items():
        if everything or name == wanted:
            module, _, attribute = group.partition(":")
            app.add_typer(getattr(_module(module), attribute), name=name)
            for other in joining:
                _module(other)
    for module in dict.fromkeys(_SINGLE.values()):
        if everything or module == _SINGLE.get(wanted):
            _module(module).register(app)
    for command in (serve, demo, version):
        app.command()(command)
    return app


def _module(name: str) -> Any:
    return importlib.import_module(f"gateway.commands.{name}")


def serve() -> None:
    """Run the gateway until SIGTERM or Ctrl-C. Settings: FLORIN_* variables or florin.yaml.

    Example: FLORIN_OPERATOR_KEY=… FLORIN_PORT=8080 florin serve
    """
    from gateway import server  # noqa: PLC0415  # uvicorn and the app load only where they run

    raise typer.Exit(server.serve())


def demo(
    *,
    exit_after: Annotated[bool, typer.Option("--exit", help="Play the transcript, then stop.")] = False,
    env_file: Annotated[
        Path | None, typer.Option(help="Write the demo's URLs and keys here, as shell lines.")
    ] = None,
) -> None:
    """Show the whole system on this machine: real engines, three customers. Ctrl-C stops all of it.

    Example: florin demo --exit
    """
    # By name, since the demo stands above the command in the layers: it runs `florin` itself.
    main = importlib.import_module("deploy.demo.main")
    raise typer.Exit(main.run(exit_after=exit_after, env_file=env_file))


def version(*, as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False) -> None:
    """Print Florin's version."""
    number = distribution_version("florin")
    if as_json:
        print_json({"version": number})
    else:
        say(f"florin {number}")
