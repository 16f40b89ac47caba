"""What every command has in common: where the gateway is, the key, `--json`, and how failures end.

A command is a plain function whose first parameter is a Session; `command` gives it the common options and
turns expected failures into one sentence on stderr and an exit code: 1 refused, 2 usage, 3 unreachable.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from gateway.commands import output
from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError

P = ParamSpec("P")

REFUSED, USAGE, UNREACHABLE = 1, 2, 3

Gateway = Annotated[
    str,
    typer.Option(
        "--gateway", envvar="FLORIN_URL", help="Where the gateway listens.", rich_help_panel="Gateway"
    ),
]
OperatorKey = Annotated[
    str,
    typer.Option(
        "--operator-key",
        envvar="FLORIN_OPERATOR_KEY",
        help="A key of role operator; better in the environment than on the command line.",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's object instead of a table.")]


@dataclass(frozen=True, slots=True)
class Session:
    gateway: str
    operator_key: str
    json: bool

    @property
    def api(self) -> Api:
        """Raises UsageError when URL or key cannot be right: of a command that works without a gateway, only
        if it is asked for one."""
        return Api.to(self.gateway, self.operator_key)

    def result(self, body: Json, people: Callable[[Json], None]) -> None:
        """The object for scripts, or `people`'s rendering of it."""
        if self.json:
            output.print_json(body)
        else:
            people(body)


def command(
    app: typer.Typer, name: str
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[..., None]]:
    def register(function: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, gateway: str, operator_key: str, as_json: bool, **kwargs: Any) -> None:
            with_failures(
                lambda: function(Session(gateway, operator_key, as_json), *args, **kwargs),
                as_json=as_json,
            )

        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        common = [
            _option("gateway", Gateway, "http://127.0.0.1:8080"),
            _option("operator_key", OperatorKey, ""),
            _option("as_json", AsJson, default=False),
        ]
        run.__signature__ = signature.replace(parameters=[*own, *common])  # type: ignore[attr-defined]  # inspect's protocol
        run.__annotations__ = {p.name: p.annotation for p in (*own, *common)} | {"return": None}
        app.command(name)(run)
        return run

    return register


def with_failures(action: Callable[[], None], *, as_json: bool = False) -> None:
    """Run `action`; what may be expected to go wrong ends in a sentence and an exit code. `as_json` prints a
    refusal as an object, too, so that a script reads its code and findings."""
    try:
        action()
    except UsageError as error:
        output.fail(str(error))
        raise typer.Exit(USAGE) from error
    except UnreachableError as error:
        output.fail(str(error))
        raise typer.Exit(UNREACHABLE) from error
    except ApiError as error:
        if as_json:
            refusal = {"message": str(error), "code": error.code, "findings": list(error.findings)}
            output.print_json({"error": refusal})
        output.fail(str(error), () if as_json else error.findings)
        raise typer.Exit(REFUSED) from error


def confirm(question: str, *, yes: bool, unattended: bool = True) -> None:
    """Ask a person before something is lost. Where nobody can be asked, a script has already decided; unless
    `unattended` is False: then it must have said so. Raises UsageError, typer.Abort."""
    if yes:
        return
    if sys.stdin.isatty() and sys.stderr.isatty():
        typer.confirm(question, abort=True, err=True)
    elif not unattended:
        raise UsageError(f"{question} Nobody can be asked here: say --yes.")


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
