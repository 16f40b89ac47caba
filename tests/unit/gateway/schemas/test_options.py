"""Fields that people fill in: one definition makes the command line's option and the console's form field."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest
import typer
from pydantic import Field
from typer.testing import CliRunner

from gateway.commands.client import UsageError
from gateway.commands.options import with_options
from gateway.console.api_client import ApiError
from gateway.console.forms import body_of, fields_of
from gateway.schemas.base import StrictBody
from gateway.schemas.options import Option
from gateway.schemas.typed_text import parsed


class Limits(StrictBody):
    tokens: Annotated[int | None, Option("Tokens a day", flag="--day-tokens", clears=True)] = Field(
        None, description="Per day."
    )


class Room(StrictBody):
    name: Annotated[str, Option()] = Field(description="Its name.")
    limits: Limits = Limits()
    beds: Annotated[int, Field(ge=1), Option()] = Field(2, description="Beds.")
    size: Annotated[int | None, Option(kind="size")] = None
    kind: Annotated[Literal["single", "double"], Option(choices={"single": "Single room"})] = "single"
    quiet: Annotated[bool, Option(flag="--no-quiet")] = True
    tags: Annotated[dict[str, str], Option(flag="--tag")] = Field(default_factory=dict)
    guests: Annotated[tuple[str, ...], Option(flag="--guest", clears=True)] = ()
    internal: str = "not for people"


@pytest.fixture
def command():
    app, bodies = typer.Typer(), []

    @app.command()
    @with_options(Room)
    def add(*, changes):
        bodies.append(changes)

    def run(*words: str):
        result = CliRunner().invoke(app, words)
        if isinstance(result.exception, UsageError):
            raise result.exception
        return bodies.pop() if bodies else result

    return run


def test_options_say_only_what_was_given(command):
    assert command("--name", "a") == {"name": "a"}
    assert command(
        *("--name", "a", "--day-tokens", "100k", "--beds", "3", "--size", "10GiB", "--kind", "double"),
        *("--no-quiet", "--tag", "floor=1", "--tag", "view=sea", "--guest", "ann", "--guest", "bob"),
    ) == {
        "name": "a",
        "limits": {"tokens": 100_000},
        "beds": 3,
        "size": 10 * 1024**3,
        "kind": "double",
        "quiet": False,
        "tags": {"floor": "1", "view": "sea"},
        "guests": ["ann", "bob"],
    }


def test_none_clears_what_may_be_cleared(command):
    assert command("--name", "a", "--day-tokens", "none", "--guest", "none") == {
        "name": "a",
        "limits": {"tokens": None},
        "guests": [],
    }


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--day-tokens", "many"),
            "--day-tokens: 'many' is not a number such as 600, 100k or 2M, or `none`.",
        ),
        (("--size", "big"), "--size: 'big' is not a size such as 10GB, 512MiB or 1000000."),
        (("--tag", "floor"), "--tag: 'floor' is not LABEL=VALUE, such as pool=acme."),
        (("--tag", "a=1", "--tag", "a=2"), "--tag: a is given twice, as '1' and '2'."),
        (("--guest", "none", "--guest", "bob"), "--guest: `none` stands alone, or `none`."),
    ],
)
def test_what_is_wrong_is_named_with_its_option(command, words, problem):
    with pytest.raises(UsageError) as error:
        command("--name", "a", *words)
    assert str(error.value).startswith(problem.removesuffix(", or `none`."))


@pytest.mark.parametrize("words", [(), ("--name", "a", "--beds", "0"), ("--name", "a", "--kind", "triple")])
def test_what_the_command_line_itself_can_refuse(command, words):
    assert command(*words).exit_code == 2


def test_a_form_has_the_same_fields():
    fields = {field.name: field for field in fields_of(Room)}
    assert list(fields) == ["name", "limits.tokens", "beds", "size", "kind", "quiet", "tags", "guests"]
    assert (fields["limits.tokens"].label, fields["limits.tokens"].help) == ("Tokens a day", "Per day.")
    assert fields["kind"].options == [("single", "Single room"), ("double", "double")]
    assert (fields["quiet"].kind, fields["quiet"].value, fields["name"].required) == ("checkbox", True, True)


def test_a_form_shows_what_is_there_as_people_type_it():
    room = Room(
        name="a", size=10 * 1000**3, tags={"floor": "1"}, limits=Limits(tokens=5), guests=("ann", "bob")
    )
    values = {field.name: field.value for field in fields_of(Room, values=room)}
    assert values["size"] == "10 GB"
    assert values["tags"] == "floor=1"
    assert values["guests"] == "ann\nbob"
    assert values["limits.tokens"] == "5"


def test_the_body_of_a_form():
    form = {
        "name": " a ",
        "limits.tokens": "",
        "beds": "3",
        "size": "1 GB",
        "kind": "double",
        "tags": "floor=1\n",
    }
    assert body_of(Room, lambda name: form.get(name, "")) == {
        "name": "a",
        "limits": {"tokens": None},
        "beds": 3,
        "size": 1000**3,
        "kind": "double",
        "quiet": False,
        "tags": {"floor": "1"},
        "guests": [],
    }
    with pytest.raises(ApiError, match="Beds: 'many' is not a number") as error:
        body_of(Room, lambda name: "many" if name == "beds" else "", "beds")
    assert error.value.param == "beds"


@pytest.mark.parametrize("kind", ["count", "size", "money", "number"])
@pytest.mark.parametrize("text", ["", "-1", "1e9", "9" * 40, "\uff11\uff12", "1.5.2", "none", "x" * 100_000])
def test_numbers_are_not_guessed(kind, text):
    with pytest.raises(ValueError, match="is not a"):
        parsed(kind, text)


@pytest.mark.parametrize(("text", "number"), [("90s", 90), ("30m", 1800), ("1h", 3600), ("7d", 604_800)])
def test_times(text, number):
    assert parsed("duration", text) == number


@pytest.mark.parametrize("text", ["", "1", "0h", "-1h", "1w", "1h 30m", "\u0661h", "9" * 30 + "s"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError, match="is not a time"):
        parsed("duration", text)
