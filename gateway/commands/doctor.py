"""florin doctor"""

from __future__ import annotations

import typer

from gateway.commands.client import ApiError, Json, UnreachableError
from gateway.commands.output import busy, note, say, show, table
from gateway.commands.session import REFUSED, Session, command

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
            body = api.get("/admin/v1/doctor")
    except UnreachableError as error:
        body = _alone("gateway", str(error), "Start it with florin serve, or set FLORIN_URL to its address.")
    except ApiError as error:
        if error.status in _KEY_STATUS:
            remedy = (
                "Set FLORIN_OPERATOR_KEY to a key with the operator role, or to the gateway's bootstrap key."
            )
            body = _alone("operator_key", str(error), remedy)
        else:
            body = _alone("gateway", str(error), "Check the gateway's log.")
    session.result(body, _people)
    if any(one["status"] == "problem" for one in body["data"]):
        raise typer.Exit(REFUSED)


def _alone(check: str, message: str, remedy: str) -> Json:
    found = {"check": check, "status": "problem", "subject": "", "message": message, "remedy": remedy}
    return {"data": [found]}


def _people(body: Json) -> None:
    found = body["data"]
    rows = [
        (
            _MARKS.get(one["status"], one["status"]),
            one["check"],
            one["subject"],
            one["message"],
            one["remedy"],
        )
        for one in found
    ]
    show(table(("", "check", "subject", "finding", "remedy"), rows))
    problems, warnings = (sum(1 for one in found if one["status"] == s) for s in ("problem", "warning"))
    if problems or warnings:
        note(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}.")
    else:
        say("No problems found.")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
