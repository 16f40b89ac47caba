"""florin engine trial"""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError, segment
from gateway.commands.options import with_options
from gateway.commands.output import clean, facts, say, show
from gateway.commands.session import Session, command
from gateway.fleet.adapters.commands.page import guard_terms, show_arms
from gateway.fleet.engines.commands.engines import Name
from gateway.fleet.engines.schemas.engines import Engine, NewTrial, TrialDetails

app = typer.Typer()


@command(app, "trial")
@with_options(NewTrial, all_optional=True)
def trial(
    session: Session,
    name: Name,
    *,
    end: Annotated[
        bool, typer.Option("--end", help="End its trial: it becomes an engine like the others.")
    ] = False,
    changes: Json,
) -> None:
    """Try an engine of another build, such as a new vLLM version, beside the rest of its fleet: it gets a
    share of the requests, and is compared with the others. If it is no worse, it becomes an engine like them;
    if it is, it is drained. Without options, show how it compares.

    Put an engine on trial before its upgrade: its new process begins the comparison. `florin engine roll
    --trial` does this for a fleet.

    Example: florin engine trial gpu1 --share 5 --window 30m

    Example: florin engine trial gpu1
    """
    path = f"/admin/v1/engines/{segment(name)}/trial"
    if end:
        if changes:
            raise UsageError("--end takes no other options.")
        session.result(
            session.api.delete(path, Engine), lambda e: say(f"Engine {clean(e.name)} is on no trial.")
        )
    elif changes:
        if "share" not in changes:
            raise UsageError("These options need --share.")
        session.result(session.api.put(path, changes, Engine), _begun)
    else:
        session.result(session.api.get(path, TrialDetails), show_trial)


def _begun(engine: Engine) -> None:
    if engine.trial is not None:
        name = clean(engine.name)
        say(
            f"Engine {name} is on trial with {engine.trial.share} % of the requests. To follow: florin "
            f"engine trial {name}"
        )


def show_trial(details: TrialDetails) -> None:
    stopped = details.trial.stopped
    share = "none: its guard has drained it" if stopped else f"{details.trial.share} % of the requests"
    terms = f"drain it if {guard_terms(details.guard)}"
    show(
        facts([("engine", details.engine), ("version", details.version), ("share", share), ("guard", terms)])
    )
    show_arms((f"{details.engine} (on trial)", details.own), ("the rest of its fleet", details.others))
    say(f"Verdict: {details.verdict}. {clean(details.reason)}")
