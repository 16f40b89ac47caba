"""florin fleet-file …: what can be said of a fleet file without a gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from adapters.wording import counted
from gateway.commands.client import UsageError
from gateway.commands.output import clean, note, print_json, say
from gateway.commands.session import REFUSED, Session, command
from gateway.declarative.commands import fleet_file
from gateway.declarative.operations.sections import SECTIONS
from gateway.schemas.base import Answer

if TYPE_CHECKING:
    from gateway.declarative.operations.document import Document, Mistake

app = typer.Typer()


class FleetFileMistake(Answer):
    line: int
    lines: tuple[int, ...]
    path: str
    message: str
    expected: str


class Refusal(Answer):
    kind: str
    id: str
    reason: str


class CheckedFile(Answer):
    valid: bool
    findings: tuple[FleetFileMistake, ...]
    objects: dict[str, int]
    refused_by_an_empty_installation: tuple[Refusal, ...]


@command(app, "check", local=True)
def check(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A fleet file; - reads stdin.")],
) -> None:
    """Check a fleet file as `florin apply` would, without a gateway and without the keys that it refers to.

    Prints each mistake with its line, and what an empty installation would refuse: that may exist at yours.
    Exit code 0: the file is valid; 1: it is not.

    Example: florin fleet-file check fleet.yaml
    """
    source = fleet_file.parsed(file)
    checked = _checked(source)
    session.result(checked, lambda result: _people(file, result))
    if not checked.valid:
        raise typer.Exit(REFUSED)


@command(app, "schema", local=True)
def schema(session: Session) -> None:
    """Print the JSON Schema of fleet files, for editors: a file that begins with `# yaml-language-server:
    $schema=fleet.schema.json` is completed and checked while it is written.

    Example: florin fleet-file schema > fleet.schema.json
    """
    from gateway.declarative.operations.json_schema import fleet_file_schema

    del session  # the schema is JSON in any case
    print_json(fleet_file_schema())


def _checked(source: fleet_file.FleetFile) -> CheckedFile:
    from gateway.declarative.operations.document import read

    findings: list[FleetFileMistake] = []
    for key_id, key in source.secrets():
        path = f"keys.{key_id}.secret"
        try:
            key["secret"] = fleet_file.placeholder(path, key["secret"])
        except UsageError as error:
            message = str(error).removeprefix(f"{path} ")
            line = source.line(("keys", key_id, "secret"))
            findings.append(
                FleetFileMistake(line=line, lines=(line,), path=path, message=message, expected="-")
            )
            key["secret"] = fleet_file.placeholder(path, {"env": path})  # one mistake, named once
    document, mistakes = read(source.document)
    findings += (_mistake(source, mistake) for mistake in mistakes)
    return CheckedFile(
        valid=not findings,
        findings=tuple(sorted(findings, key=lambda finding: finding.line)),
        objects={
            section: len(source.document[section] or ())
            for section in SECTIONS
            if isinstance(source.document.get(section), dict | list)
        },
        refused_by_an_empty_installation=() if document is None else _needs(document),
    )


def _mistake(source: fleet_file.FleetFile, mistake: Mistake) -> FleetFileMistake:
    path, _, message = mistake.finding.message.partition(": ")
    lines = tuple(map(source.line, mistake.places))
    return FleetFileMistake(
        line=lines[0], lines=lines, path=path, message=message, expected=mistake.finding.expected
    )


def _needs(document: Document) -> tuple[Refusal, ...]:
    """What the file needs of an installation beyond itself, or contradicts itself in."""
    import time

    from adapters.registry.catalog import Catalog
    from gateway.declarative.operations.current import Snapshot, read
    from gateway.declarative.operations.plan import plan
    from gateway.tenants.directory import Directory

    empty = read(Snapshot.take(Catalog(), Directory()), ())
    actions = plan(empty, document, clock=time.time_ns() // 1000).actions
    return tuple(Refusal.of(action) for action in actions if action.verb == "refuse")


def _people(name: str, checked: CheckedFile) -> None:
    for finding in checked.findings:
        say(f"{clean(name)}:{finding.line}: {clean(finding.path)}: {clean(finding.message)}")
        if finding.expected != "-":
            say(f"    expected: {clean(finding.expected)}")
    for refusal in checked.refused_by_an_empty_installation:
        note(
            f"An empty installation would refuse {refusal.kind} {clean(refusal.id)}: {clean(refusal.reason)}"
        )
    if checked.valid:
        counts = ", ".join(f"{section} {count:,}" for section, count in checked.objects.items())
        say(f"{clean(name)} is valid: {counts or 'no sections'}.")
    else:
        note(f"{clean(name)} is not valid: {counted(len(checked.findings), 'mistake')}.")
