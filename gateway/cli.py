"""The `florin` command. Thin: the commands live in gateway.commands, the server in gateway.server."""

from __future__ import annotations

import importlib
from importlib.metadata import version as distribution_version
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands import adapter_add as _adapter_add  # noqa: F401  # joins the group
from gateway.commands import (
    adapters,
    audit,
    calibrate,
    declarative,
    doctor,
    engines,
    keys,
    placement,
    prices,
    registry,
    tenants,
)
from gateway.commands import check as _check  # noqa: F401  # joins the group of adapters
from gateway.commands import engine_run as _engine_run  # noqa: F401  # joins the group of engines
from gateway.commands import release as _release  # noqa: F401  # joins the group of adapters
from gateway.commands import tokens as _tokens  # noqa: F401  # joins the group of engines
from gateway.commands import trust as _trust  # noqa: F401  # joins the group of engines
from gateway.commands.cost import app as cost
from gateway.commands.cost import bills as _bills  # noqa: F401  # joins the group
from gateway.commands.cost import compare as _compare  # noqa: F401  # joins the group
from gateway.commands.cost import export as _export  # noqa: F401  # joins the group
from gateway.commands.cost import periods as _periods  # noqa: F401  # joins the group
from gateway.commands.cost import proofs as _proofs  # noqa: F401  # joins the group
from gateway.commands.cost import reconcile as _reconcile  # noqa: F401  # joins the group
from gateway.commands.cost import report as _report  # noqa: F401  # joins the group
from gateway.commands.cost import set_aside as _set_aside  # noqa: F401  # joins the group
from gateway.commands.cost import statement as _statement  # noqa: F401  # joins the group
from gateway.commands.output import print_json, say

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Florin: a multi-LoRA serving gateway for vLLM. Each request to the right adapter on the right GPU, "
    "each customer's cost to the token.",
    epilog="All but serve, demo and version speak to a running gateway: FLORIN_URL, FLORIN_OPERATOR_KEY. "
    "Exit codes: 1 refused or failed, 2 usage or settings, 3 gateway unreachable.",
)
app.add_typer(tenants.app, name="tenant")
app.add_typer(keys.app, name="key")
app.add_typer(adapters.app, name="adapter")
app.add_typer(engines.app, name="engine")
placement.register(app)
app.add_typer(audit.app, name="audit")
app.add_typer(prices.prices, name="price")
app.add_typer(cost.app, name="cost")
calibrate.register(app)
declarative.register(app)
app.add_typer(registry.app, name="registry")
doctor.register(app)


@app.command()
def serve() -> None:
    """Run the gateway until SIGTERM or Ctrl-C. Settings: FLORIN_* variables or florin.yaml.

    Example: FLORIN_OPERATOR_KEY=… FLORIN_PORT=8080 florin serve
    """
    from gateway import server  # noqa: PLC0415  # uvicorn and the app load only where they run

    raise typer.Exit(server.serve())


@app.command()
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


@app.command()
def version(*, as_json: Annotated[bool, typer.Option("--json", help="Print an object.")] = False) -> None:
    """Print Florin's version."""
    number = distribution_version("florin")
    if as_json:
        print_json({"version": number})
    else:
        say(f"florin {number}")


def main() -> None:
    app(prog_name="florin")


if __name__ == "__main__":
    main()
