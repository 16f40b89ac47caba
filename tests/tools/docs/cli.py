"""The page of the `florin` command: every command with its arguments and options."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gateway.commands.tree import loaded_tree
from tests.tools.docs.markdown import code, document, table

_GATEWAY = "Gateway"
"""Help panel of the options that all commands share, which are listed only once."""

_COMMON = """
## Gateway options

Commands that call a gateway also accept these.
"""


def page() -> str:
    root: Any = loaded_tree()
    named = list(commands(root, "florin"))
    shared: dict[str, Any] = {}
    for _, command in named:
        shared |= {option.name: option for option in command.params if _of_gateway(option)}
    index = table(("command", "what it does"), ((_linked(name), _first(c)) for name, c in named))
    sections = [_section(name, command) for name, command in named]
    return document(
        "Command line",
        root.help,
        root.epilog,
        index,
        _COMMON,
        _parameters(list(shared.values())),
        *sections,
    ).replace(str(Path.home()), "~")


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Full name and command, of all that can be run, groups resolved."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for word, below in sorted(inner.items()):
        if not below.hidden:
            yield from commands(below, f"{name} {word}")


def _section(name: str, command: Any) -> str:
    own = [p for p in command.params if not _of_gateway(p) and not getattr(p, "hidden", False)]
    *text, last = [" ".join(part.split()) for part in (command.help or "").split("\n\n")]
    parts = [f"## {name}", *text]
    if last.startswith("Example: "):
        parts.append(f"```\n{last.removeprefix('Example: ')}\n```")
    else:
        parts.append(last)
    if own:
        parts.append(_parameters(own))
    if len(own) < len(command.params):
        parts.append("Takes the [gateway options](#gateway-options).")
    return "\n\n".join(part for part in parts if part)


def _parameters(parameters: list[Any]) -> str:
    return table(("argument or option", "default", "meaning"), (_row(p) for p in parameters))


def _row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = code(parameter.metavar or parameter.name.upper())
    else:
        name = ", ".join(code(o) for o in (*parameter.opts, *parameter.secondary_opts))
        if parameter.metavar:
            name += f" {code(parameter.metavar)}"
    if parameter.envvar:
        variables = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
        name += f" ({', '.join(map(code, variables))})"
    return name, _default(parameter), parameter.help or ""


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    default = parameter.default
    if default in (None, "", False, ()) or callable(default) or not getattr(parameter, "show_default", True):
        return ""
    return code("on" if default is True else default)


def _of_gateway(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == _GATEWAY


def _first(command: Any) -> str:
    return (command.help or "").split("\n\n")[0]


def _linked(name: str) -> str:
    return f"[{code(name)}](#{name.replace(' ', '-')})"
