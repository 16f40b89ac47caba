"""Commands whose modules are imported only when they are asked for: `florin --help` imports none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class Group:
    """`florin NAME …`."""

    help: str
    load: Callable[[], Sequence[typer.Typer]]
    """Loads the apps whose commands form the group."""
    alone: Mapping[str, Callable[[], typer.Typer]] = field(default_factory=dict)
    """Loads the app of a command that must start without waiting for the rest of its group."""


@dataclass(frozen=True, slots=True)
class Command:
    """`florin NAME`."""

    help: str
    """First line of the command's docstring."""
    load: Callable[[], typer.Typer]
    """Loads the app that has a command of this name."""


class LazyRoot(TyperGroup):
    """Shows a line of help for each of `entries`, and loads a command only when it runs."""

    entries: ClassVar[Mapping[str, Group | Command]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, entry in self.entries.items():
            self.add_command(TyperGroup(name=name, help=entry.help))

    def get_command(self, ctx: Any, cmd_name: str) -> TyperGroup | TyperCommand | None:  # noqa: ARG002  # Typer's
        entry = self.entries.get(cmd_name)
        if entry is None:
            return self.commands.get(cmd_name)  # type: ignore[return-value]  # every command of Typer's is one
        if isinstance(entry, Group) and entry.alone:
            return _LargeGroup(cmd_name, entry)
        return loaded(cmd_name, entry)

    def invoke(self, ctx: Any) -> Any:
        """Without pydantic's prefix, which Typer leaves in its messages."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002  # likewise
        """Like Typer's, but using only the lines of help."""
        width = formatter.width - 6 - max(map(len, self.commands))
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(width)) for name, command in self.commands.items()]
            )


class _LargeGroup(TyperGroup):
    """A group with commands that load alone; any other command, or its help, loads all."""

    def __init__(self, name: str, entry: Group) -> None:
        self._entry = entry
        self._whole: TyperGroup | None = None
        super().__init__(name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=None)

    @property
    def commands(self) -> MutableMapping[str, Any]:
        if self._whole is None:
            self._whole = loaded(self.name or "", self._entry)  # type: ignore[assignment]  # a group
        return self._whole.commands  # type: ignore[union-attr]  # just loaded

    @commands.setter
    def commands(self, _: Any) -> None:
        """Typer's constructor sets none."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (load := self._entry.alone.get(cmd_name)) is not None:
            return loaded(cmd_name, Command("", load))
        return super().get_command(ctx, cmd_name)


def loaded(name: str, entry: Group | Command) -> TyperGroup | TyperCommand:
    group = typer.Typer(name=name, help=entry.help, no_args_is_help=True, rich_markup_mode=None)
    if isinstance(entry, Command):
        group.add_typer(entry.load())
        return typer.main.get_group(group).commands[name]  # type: ignore[return-value]  # as above
    for app in entry.load():
        group.add_typer(app)
    return typer.main.get_group(group)
