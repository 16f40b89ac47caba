"""florin doctor"""

from __future__ import annotations

import typer

from adapters.wording import counted
from gateway.commands.client import ApiError, UnreachableError
from gateway.commands.output import busy, note, say, show, table
from gateway.commands.session import REFUSED, Session, command
from gateway.installation.schemas import Diagnosis
from gateway.schemas.base import Listed

app = typer.Typer()

_MARKS = {"problem": "PROBLEM", "warning": "warning", "ok": "ok"}
_KEY_STATUS = (401, 403)


@command(app, "doctor")
def doctor(session: Session) -> None:
    """Diagnose this installation and say how to fix it. Exit code 1 if there is a problem.

    Example: florin doctor
    """
    api = session.api  # a malformed URL or key is a usage error
    try:
        with busy("Checking the gateway, Redis, the ledger and every engine …"):
            checks = api.get("/admin/v1/doctor", Listed[Diagnosis])
    except UnreachableError as error:
        checks = _alone(
            "gateway", str(error), "Start it with florin serve, or set FLORIN_URL to its address."
        )
    except ApiError as error:
        if error.status in _KEY_STATUS:
            remedy = (
                "Set FLORIN_OPERATOR_KEY to a key with the operator role, or to the gateway's bootstrap key."
            )
            checks = _alone("operator_key", str(error), remedy)
        else:
            checks = _alone("gateway", str(error), "Check the gateway's log.")
    session.result(checks, _people)
    if any(check.status == "problem" for check in checks.data):
        raise typer.Exit(REFUSED)


def _alone(check: str, message: str, remedy: str) -> Listed[Diagnosis]:
    diagnosis = {"check": check, "status": "problem", "subject": "", "message": message, "remedy": remedy}
    return Listed[Diagnosis].read({"data": [diagnosis]})


def _people(checks: Listed[Diagnosis]) -> None:
    rows = [
        (_MARKS[check.status], check.check, check.subject, check.message, check.remedy)
        for check in checks.data
    ]
    show(table(("", "check", "subject", "finding", "remedy"), rows))
    statuses = [check.status for check in checks.data]
    problems, warnings = statuses.count("problem"), statuses.count("warning")
    if problems or warnings:
        note(f"{counted(problems, 'problem')}, {counted(warnings, 'warning')}.")
    else:
        say("No problems found.")
