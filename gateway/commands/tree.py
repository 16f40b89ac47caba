"""The tree of `florin` commands. The commands live in gateway.commands, the server in gateway.serving.server.

Listing the commands imports none of them, and running one imports only its group, so that `florin --help` and
`florin engine list` start quickly. To add a command, add its module to a group below; a new group or a
top-level command is a new entry.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gateway.commands.lazy_groups import Command, Group, LazyRoot, loaded

_HELP = (
    "Florin: a multi-LoRA serving gateway for vLLM. Routes each request to the right adapter on the right "
    "GPU, and accounts for each customer's cost to the token."
)
_EPILOG = (
    "All commands but serve, demo, backup, restore, fleet-file and version need a running gateway: "
    "FLORIN_URL, and FLORIN_OPERATOR_KEY or a customer's FLORIN_KEY. "
    "Exit codes: 1 refused or failed, 2 usage or settings, 3 gateway unreachable."
)


def _tenant() -> Sequence[typer.Typer]:
    from gateway.tenants.commands import tenants

    return (tenants.app,)


def _key() -> Sequence[typer.Typer]:
    from gateway.tenants.keys import commands as keys

    return (keys.app,)


def _version() -> typer.Typer:
    from gateway.commands import version

    return version.app


def _whoami() -> typer.Typer:
    from gateway.tenants.people.commands import whoami

    return whoami.app


def _console() -> typer.Typer:
    from gateway.commands import console

    return console.app


def _login() -> typer.Typer:
    from gateway.tenants.people.commands import login

    return login.app


def _adapter() -> Sequence[typer.Typer]:
    from gateway.evaluations import commands as adapter_eval
    from gateway.fleet.adapters.commands import adapters, check
    from gateway.fleet.adapters.commands import add as adapter_add
    from gateway.fleet.adapters.commands import convert as adapter_convert

    return (
        adapters.app,
        adapter_add.app,
        adapter_eval.app,
        check.app,
        adapter_convert.app,
    )


def _engine() -> Sequence[typer.Typer]:
    from gateway.fleet.engines.commands import draining, engines, enrolling, rolling, trials
    from gateway.fleet.engines.commands import run as engine_run

    return (engines.app, draining.app, trials.app, rolling.app, engine_run.app, enrolling.app)


def _placement() -> typer.Typer:
    from gateway.fleet.placement import commands as placement

    return placement.app


def _price() -> Sequence[typer.Typer]:
    from gateway.costs.prices.commands import prices

    return (prices.app,)


def _exchange_rate() -> Sequence[typer.Typer]:
    from gateway.costs.prices.commands import exchange_rates

    return (exchange_rates.app,)


def _batch() -> Sequence[typer.Typer]:
    from gateway.batches import commands as batches

    return (batches.app,)


def _rate_card() -> Sequence[typer.Typer]:
    from gateway.costs.selling import commands as rate_cards

    return (rate_cards.app,)


def _cost() -> Sequence[typer.Typer]:
    from gateway.costs.adapter_costs import commands as adapter_costs
    from gateway.costs.closing.commands import periods
    from gateway.costs.energy import commands as energy
    from gateway.costs.events.commands import events
    from gateway.costs.export import commands as export
    from gateway.costs.forecasting.commands import ahead, budgets
    from gateway.costs.margins import commands as margin
    from gateway.costs.policies.commands import policy
    from gateway.costs.proofs import commands as proofs
    from gateway.costs.reconciliation.commands import accept, bills, reconcile, true_up
    from gateway.costs.reports.commands import compare, report
    from gateway.costs.sample_month import commands as sample
    from gateway.costs.set_aside.commands import quarantine, set_aside
    from gateway.costs.statement.commands import statement

    return (
        *(
            report.app,
            export.app,
            statement.app,
            margin.app,
            compare.app,
            periods.app,
            policy.app,
            proofs.app,
        ),
        *(bills.app, reconcile.app, accept.app, true_up.app, set_aside.app, quarantine.app),
        *(ahead.app, budgets.app, events.app, energy.app, adapter_costs.app, sample.app),
    )


def _cost_report() -> typer.Typer:
    from gateway.costs.reports.commands import report

    return report.app


def _manual_line() -> Sequence[typer.Typer]:
    from gateway.costs.manual_lines import commands as manual_lines

    return (manual_lines.app,)


def _credit() -> Sequence[typer.Typer]:
    from gateway.costs.credits import commands as credit

    return (credit.app,)


def _commitment() -> Sequence[typer.Typer]:
    from gateway.costs.commitments.commands import commitments, report

    return (commitments.app, report.app)


def _calibrate() -> typer.Typer:
    from gateway.costs.calibration import commands as calibrate

    return calibrate.app


def _plan() -> typer.Typer:
    from gateway.planning.commands import plan as command

    return command.app


def _declarative() -> typer.Typer:
    from gateway.declarative.commands import apply as declarative

    return declarative.app


def _controller() -> typer.Typer:
    from gateway.kubernetes.commands import controller

    return controller.app


def _fleet_file() -> Sequence[typer.Typer]:
    from gateway.declarative.commands import fleet_files

    return (fleet_files.app,)


def _registry() -> Sequence[typer.Typer]:
    from gateway.installation.registry import commands as registry

    return (registry.app,)


def _audit() -> Sequence[typer.Typer]:
    from gateway.installation.audit import commands as audit

    return (audit.app,)


def _events() -> Sequence[typer.Typer]:
    from gateway.event_streams import commands as event_streams

    return (event_streams.app,)


def _backup() -> typer.Typer:
    from gateway.installation.backup import commands as backup

    return backup.app


def _doctor() -> typer.Typer:
    from gateway.installation.doctor import commands as doctor

    return doctor.app


_LOADED_WHEN_ASKED: dict[str, Group | Command] = {
    "tenant": Group("Customers, who own keys and adapters.", _tenant),
    "key": Group("API keys for clients, operators, finance and engines.", _key),
    "whoami": Command(
        "Show the key in use: its role, scopes and limits, and a customer's quotas.",
        _whoami,
    ),
    "console": Command("Print a link that signs a browser in to the console with this key.", _console),
    "login": Command(
        "Sign in as yourself, with the gateway's OpenID Connect issuer. Other commands then need no key.",
        _login,
    ),
    "logout": Command("End the sign-in at this gateway: revoke its refresh token, and forget it.", _login),
    "adapter": Group("LoRA adapters: register, promote, roll back.", _adapter),
    "engine": Group("vLLM engines that serve the adapters.", _engine),
    "placement": Command("Show which adapter versions live on which engines' slots.", _placement),
    "explain": Command(
        "Explain where a request would go now, or where a recent one went, and why.", _placement
    ),
    "price": Group("GPU hourly rates over time.", _price),
    "exchange-rate": Group("Dated exchange rates, for reports in another currency.", _exchange_rate),
    "batch": Group("Tenants' batches: what runs when engines are idle.", _batch),
    "rate-card": Group("What customers pay: prices per million tokens, by month.", _rate_card),
    "cost": Group("What each customer used and cost.", _cost, {"report": _cost_report}),
    "manual-line": Group(
        "Lines of statements that no usage makes: fees, charges, credits, refunds.", _manual_line
    ),
    "credit": Group("Prepaid credits of tenants, which their statements draw.", _credit),
    "commitment": Group("GPUs that are paid for whether used or not.", _commitment),
    "calibrate": Command(
        "Measure the GPU time of prompt, cached and output tokens, of the KV cache, and of adapter loads.",
        _calibrate,
    ),
    "plan": Command(
        "Say how many engines of which GPU type a workload needs, with how many slots, and what they cost.",
        _plan,
    ),
    "apply": Command(
        "Change the installation to match a fleet file. Applying it again changes nothing.", _declarative
    ),
    "export": Command(
        "Write the registry as a fleet file. Applied to an empty installation, it restores this one.",
        _declarative,
    ),
    "fleet-file": Group("Fleet files: check one without a gateway, and their JSON Schema.", _fleet_file),
    "controller": Command(
        "Bring the registry to what Tenant and LoraAdapter resources in Kubernetes say, until SIGTERM.",
        _controller,
    ),
    "registry": Group("The registry in Redis: compare, rewrite or accept it after a loss.", _registry),
    "audit": Group("The audit log, and which version answered a request.", _audit),
    "events": Group("The audit and usage events that Florin sends to other systems.", _events),
    "backup": Command("Write registry, ledger and adapter files to one file.", _backup),
    "restore": Command("Restore a backup into an empty installation.", _backup),
    "doctor": Command("Diagnose this installation and say how to fix it.", _doctor),
    "version": Command("Print Florin's version and commit, or those of all running gateways.", _version),
}


class _Root(LazyRoot):
    entries = _LOADED_WHEN_ASKED


def tree() -> typer.Typer:
    """The whole command."""
    app = typer.Typer(
        cls=_Root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        help=_HELP,
        epilog=_EPILOG,
    )
    for command in (serve, demo):
        app.command()(command)
    return app


def loaded_tree() -> TyperGroup:
    """The same with every command loaded, for documentation and tests."""
    root: Any = typer.main.get_command(tree())
    root.commands |= {name: loaded(name, entry) for name, entry in _LOADED_WHEN_ASKED.items()}
    return root  # type: ignore[no-any-return]  # as above


def serve(
    *,
    uds: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            envvar="FLORIN_UDS",
            help="Listen on this Unix socket instead of a port. Clients: FLORIN_URL=unix:PATH.",
        ),
    ] = None,
) -> None:
    """Run the gateway until SIGTERM or Ctrl-C. Settings: FLORIN_* variables or florin.yaml.

    Example: FLORIN_OPERATOR_KEY=… FLORIN_PORT=8080 florin serve
    """
    from gateway.serving import server

    if uds is not None:
        os.environ["FLORIN_UDS"] = str(uds)  # a reload reads the environment again
    raise typer.Exit(server.serve())


def demo(
    *,
    exit_after: Annotated[bool, typer.Option("--exit", help="Play the transcript, then exit.")] = False,
    env_file: Annotated[
        Path | None, typer.Option(help="Write the demo's URLs and keys to this file, as shell variables.")
    ] = None,
) -> None:
    """Run the whole system on this machine: real engines, three customers. Stop it with Ctrl-C.

    Example: florin demo --exit
    """
    from deploy.demo import main

    gc.enable()  # off since `gateway.cli`
    raise typer.Exit(main.run(exit_after=exit_after, env_file=env_file))
