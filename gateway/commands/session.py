"""Common to all commands: the gateway's URL, the key, `--json`, and error handling.

A command is a plain function whose first parameter is a Session; `command` gives it the common options and
turns expected failures into one sentence on stderr and an exit code: 1 refused, 2 usage, 3 unreachable.
Once the reader of its output has left, it ends silently with 141.
"""

from __future__ import annotations

import errno
import functools
import gc
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Final, ParamSpec, TypeVar, overload

import typer

from adapters.security.secret_files import KeyFileError, read_key
from gateway.commands import output
from gateway.commands.client import Api, ApiError, Json, UnreachableError, UsageError, full_name

if TYPE_CHECKING:  # imported where an answer is read, to keep help texts fast
    from gateway.schemas.base import Answer

P = ParamSpec("P")
A = TypeVar("A", bound="Answer")

REFUSED, USAGE, UNREACHABLE = 1, 2, 3
_BROKEN_PIPE: Final = 141
"""As a shell reports a program that SIGPIPE ended."""

Gateway = Annotated[
    str,
    typer.Option("--gateway", envvar="FLORIN_URL", help="The gateway's URL.", rich_help_panel="Gateway"),
]
OperatorKey = Annotated[
    str,
    typer.Option(
        "--operator-key",
        "--key",
        envvar=["FLORIN_KEY", "FLORIN_OPERATOR_KEY"],
        help="Your key: an operator's, or a customer's of role tenant-admin. Prefer the environment to the "
        "command line.",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar=["FLORIN_KEY_FILE", "FLORIN_OPERATOR_KEY_FILE"],
        help="A file that contains the key, readable only by you (mode 0600).",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
HostKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="FLORIN_ENGINE_KEY_FILE",
        help="File of this host's own key (mode 0600). Default: ~/.local/state/florin/engines/NAME/key.",
        show_default=False,
        rich_help_panel="Gateway",
    ),
]
"""For commands on a GPU host, which write this file. Never an operator's key file."""
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")]
YesInScripts = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required in scripts.")
]
"""For `confirm(…, unattended=False)`."""
AsJson = Annotated[bool, typer.Option("--json", help="Print the API's object instead of a table.")]


@dataclass(frozen=True, slots=True)
class Session:
    gateway: str
    operator_key: str
    key_file: Path | None
    json: bool
    key_on_command_line: bool = False
    """Where every process on the machine can read it."""

    @property
    def api(self) -> Api:
        """Raises UsageError if the URL or the key is malformed. Commands that work without a gateway must not
        access it."""
        if self.key_file is None:
            return Api.to(self.gateway, self.operator_key or self._signed_in())
        if self.operator_key:
            raise UsageError("Both a key and a key file are set (FLORIN_KEY, --key-file): use one.")
        try:
            return Api.to(self.gateway, read_key(self.key_file.expanduser()))
        except KeyFileError as error:
            raise UsageError(str(error)) from error

    def _signed_in(self) -> str:
        """The token of a `florin login` at this gateway; empty if there was none. Raises UsageError,
        UnreachableError."""
        from gateway.tenants.people.commands import sign_ins

        return sign_ins.token(self.gateway) if sign_ins.path_of(self.gateway).exists() else ""

    def adapter(self, name: str) -> str:
        """`acme/support`, also for `support` with a key of tenant acme. Raises UsageError, ApiError."""
        if "/" in name:
            full_name(name)
            return name
        from gateway.tenants.people.schemas import Me

        me = self.api.get("/admin/v1/me", Me)
        if me.tenant_terms is None:
            raise UsageError(f"{name!r} is not TENANT/NAME, like acme/support.")
        return f"{me.tenant}/{name}"

    def adapter_path(self, name: str) -> str:
        """The adapter's path in the admin API. Raises UsageError, ApiError."""
        return f"/admin/v1/adapters/{full_name(self.adapter(name))}"

    @overload
    def result(self, answer: A, people: Callable[[A], None]) -> None: ...
    @overload
    def result(self, answer: Json, people: Callable[[Json], None]) -> None: ...
    def result(self, answer: A | Json, people: Callable[[Any], None]) -> None:
        """Print the object as it was sent for scripts, or render it for people."""
        if self.json:
            output.print_json(answer if isinstance(answer, dict) else answer.body)
        else:
            people(answer)


def command(
    app: typer.Typer, name: str, *, key_file: Any = KeyFile, local: bool = False
) -> Callable[[Callable[Concatenate[Session, P], None]], Callable[..., None]]:
    """`local`: the command never asks a gateway, and has no options for one."""

    def register(function: Callable[Concatenate[Session, P], None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(
            context: typer.Context,
            *args: Any,
            gateway: str = "",
            operator_key: str = "",
            key_file: Path | None = None,
            as_json: bool,
            **kwargs: Any,
        ) -> None:
            key_said, file_said = (_on_command_line(context, name) for name in ("operator_key", "key_file"))
            if key_said != file_said:  # an option overrides the environment
                operator_key, key_file = (operator_key, None) if key_said else ("", key_file)
            _collect_garbage_again()
            session = Session(gateway, operator_key, key_file, as_json, key_said)
            with_failures(lambda: function(session, *args, **kwargs), as_json=as_json)

        signature = inspect.signature(function, eval_str=True)
        own = list(signature.parameters.values())[1:]
        context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY, annotation=typer.Context)
        of_gateway = [
            _option("gateway", Gateway, "http://127.0.0.1:8080"),
            _option("operator_key", OperatorKey, ""),
            _option("key_file", key_file, None),
        ]
        common = [*([] if local else of_gateway), _option("as_json", AsJson, default=False)]
        run.__signature__ = signature.replace(parameters=[context, *own, *common])  # type: ignore[attr-defined]  # inspect's protocol
        run.__annotations__ = {p.name: p.annotation for p in (context, *own, *common)} | {"return": None}
        app.command(name)(run)
        return run

    return register


def _collect_garbage_again() -> None:
    """`gateway.cli` turned it off while the command was loaded."""
    if not gc.isenabled():
        gc.freeze()  # what is loaded stays, and need not be traversed
        gc.enable()


_UNWRITABLE: Final = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EPIPE}


def with_failures(action: Callable[[], None], *, as_json: bool = False) -> None:
    """Run `action`; turn expected failures into a sentence and an exit code. `as_json` also prints a refusal,
    or an unreachable gateway, as an object, so that scripts can read its code and findings."""
    try:
        _with_refusals(action, as_json=as_json)
        typer.echo(nl=False)  # flushes, so that an error of the output is met here
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        if error.errno != errno.EPIPE:
            output.fail(f"The output cannot be written: {error.strerror}.")
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)  # for what is still buffered
        raise typer.Exit(_BROKEN_PIPE if error.errno == errno.EPIPE else REFUSED) from error


def _with_refusals(action: Callable[[], None], *, as_json: bool) -> None:
    """Raises OSError, also where the refusal cannot be written."""
    try:
        action()
    except UsageError as error:
        output.fail(str(error))
        raise typer.Exit(USAGE) from error
    except (UnreachableError, ApiError) as error:
        output.fail(str(error), () if as_json else error.findings)
        if as_json:
            refusal = {"message": str(error), "code": error.code, "findings": list(error.findings)}
            output.print_json({"error": refusal})
        raise typer.Exit(REFUSED if isinstance(error, ApiError) else UNREACHABLE) from error


PriceYes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Do not ask about a price that is at least five times, or at most a fifth of, the one before "
        "it. Required for those in scripts.",
    ),
]


def post_price(session: Session, path: str, body: Json, answer: type[A], *, yes: bool) -> A:
    """POST a price or a rate. Of one that may be a slip a person is asked. Raises ApiError, typer.Abort."""
    try:
        return session.api.post(path, body, answer, {"confirm": True} if yes else None)
    except ApiError as error:
        if not unconfirmed(error.code):
            raise
        typer.confirm(f"{error} Is it right?", abort=True, err=True)
    return session.api.post(path, body, answer, {"confirm": True})


def unconfirmed(code: str | None) -> bool:
    """Whether an error asks for a confirmation, and there is somebody to give it."""
    return code == "confirmation_required" and _attended()


def _attended() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str, *, yes: bool, unattended: bool = True) -> None:
    """Ask for confirmation. Without a terminal, proceed, unless `unattended` is False: then --yes is
    required. Raises UsageError, typer.Abort."""
    if yes:
        return
    if _attended():
        typer.confirm(question, abort=True, err=True)
    elif not unattended:
        raise UsageError(f"{question} Confirm with --yes when not on a terminal.")


def _on_command_line(context: typer.Context, name: str) -> bool:
    """Whether a parameter was given as an option rather than by a variable."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)
