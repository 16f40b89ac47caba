"""What every command has in common: where the gateway is, the key, `--json`, and how failures end.

A command is a plain function whose first parameter is a Session; `command` gives it the common options and
turns expected failures into one sentence on stderr and an exit code: 1 refused, 2 usage, 3 unreachable.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from adapters.security.secret_files import KeyFileError, read_key
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
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="FLORIN_OPERATOR_KEY_FILE",
        help="A file with such a key, which nobody else may read (mode 0600).",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
HostKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="FLORIN_ENGINE_KEY_FILE",
        help="Where this host's own key is kept (mode 0600); ~/.local/state/florin/engines/NAME/key.",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
"""Of the commands that run on a GPU host. An operator's file is none of theirs: a token's exchange writes."""
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's object instead of a table.")]


@dataclass(frozen=True, slots=True)
class Session:
    gateway: str
    operator_key: str
    key_file: Path | None
    json: bool
    key_on_command_line: bool = False
    """Where every process of the machine can read it."""

    @property
    def api(self) -> Api:
        """Raises UsageError when URL or key cannot be right: of a command that works without a gateway, only
        if it is asked for one."""
        if self.key_file is None:
            return Api.to(self.gateway, self.operator_key)
        if self.operator_key:
            raise UsageError(
                "A key and a key file are both given (FLORIN_OPERATOR_KEY, --key-file): name one."
            )
        try:
            return Api.to(self.gateway, read_key(self.key_file.expanduser()))
        except KeyFileError as error:
            raise UsageError(str(error)) from error

    def result(self, body: Json, people: Callable[[Json], None]) -> None:
        """The object for scripts, or `people`'s rendering of it."""
        if self.json:
            output.print_json(body)
        else:
            people(body)


def command(
    app: typer.Typer, name: str, *, key_file: Any = KeyFile
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[..., None]]:
    def register(function: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            context: typer.Context,
            *args: Any,
            gateway: str,
            operator_key: str,
            key_file: Path | None,
            as_json: bool,
            **kwargs: Any,
        ) -> None:
            key_said, file_said = (_on_command_line(context, name) for name in ("operator_key", "key_file"))
            if key_said != file_said:  # an option counts, and not what the environment has beside it
                operator_key, key_file = (operator_key, None) if key_said else ("", key_file)
            _collect_garbage_again()
            session = Session(gateway, operator_key, key_file, as_json, key_said)
            with_failures(lambda: function(session, *args, **kwargs), as_json=as_json)

        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context)
        common = [
            _option("gateway", Gateway, "http://127.0.0.1:8080"),
            _option("operator_key", OperatorKey, ""),
            _option("key_file", key_file, None),
            _option("as_json", AsJson, default=False),
        ]
        run.__signature__ = signature.replace(parameters=[context, *own, *common])  # type: ignore[attr-defined]  # inspect's protocol
        run.__annotations__ = {p.name: p.annotation for p in (context, *own, *common)} | {"return": None}
        app.command(name)(run)
        return run

    return register


def _collect_garbage_again() -> None:
    """It was off while this command was loaded (`gateway.cli`), if a process was started for it."""
    if not gc.isenabled():
        gc.freeze()  # what is here now stays: it need not be walked, neither now nor at exit
        gc.enable()


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


def _on_command_line(context: typer.Context, name: str) -> bool:
    """Whether a parameter was given as an option, and not by a variable."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
