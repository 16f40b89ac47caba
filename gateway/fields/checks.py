"""Checks of simple values. They use `type(v) is`, since bool is an int in Python but not in JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.fields.rule import Check, FieldReading, Table, WrongError, read

LARGEST_INT = 2**31 - 1
"""For token ids and counts, which engines store in 32 bits."""
_TOKEN_ID = re.compile(r"[0-9]{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class That:
    """A check that passes accepted values unchanged. `must` is for the error message and the docs."""

    accepts: Callable[[Any], bool]
    must: str
    converts: Callable[[Any], Any] | None = None
    """Applied first: what is accepted and sent."""

    def __call__(self, value: Any, _: FieldReading) -> Any:
        if self.converts is not None:
            value = self.converts(value)
        if not self.accepts(value):
            raise WrongError(self.must)
        return value


def that(accepts: Callable[[Any], bool], must: str) -> Check:
    return That(accepts, must)


def integral(value: Any) -> Any:
    """An integral float as an integer: languages with one kind of number write `5.0`."""
    return int(value) if type(value) is float and value.is_integer() else value


def integrals(value: Any) -> Any:
    """The same for the items of a list, or of each list in it."""
    if type(value) is not list:
        return value
    kinds = set(map(type, value))
    if list in kinds:
        return [_integral_items(item) if type(item) is list else item for item in value]
    return _integral_items(value) if float in kinds else value


def _integral_items(values: list[Any]) -> list[Any]:
    return list(map(integral, values)) if float in set(map(type, values)) else values


def integer(low: int, high: int = LARGEST_INT) -> Check:
    return That(
        lambda v: type(v) is int and low <= v <= high,
        f"be an integer from {low} to {high}",
        integral,
    )


def number(low: float, high: float = math.inf) -> Check:
    def accepts(v: Any) -> bool:
        return (type(v) is float or type(v) is int) and low <= v <= high and v != math.inf

    return that(
        accepts, f"be a number from {low} to {high}" if high < math.inf else f"be a number of at least {low}"
    )


def one_of(*words: str) -> Check:
    listed = ", ".join(f"`{word}`" for word in words)
    return that(lambda v: type(v) is str and v in words, f"be one of {listed}")


def text(most: int | None = None) -> Check:
    """`most`: maximum number of characters."""
    if most is None:
        return that(lambda v: type(v) is str, "be a string")
    return that(lambda v: type(v) is str and len(v) <= most, f"be a string of at most {most:,} characters")


switch = that(lambda v: type(v) is bool, "be true or false")


def texts(most: int, length: int, *, single: bool = False) -> Check:
    """A list of at most `most` non-empty strings, or with `single` also one such string."""

    def fits(v: Any) -> bool:
        return type(v) is str and 0 < len(v) <= length

    def accepts(v: Any) -> bool:
        return (single and fits(v)) or (type(v) is list and len(v) <= most and all(map(fits, v)))

    must = f"list at most {most:,} strings of 1 to {length:,} characters"
    return that(accepts, f"be a string of 1 to {length:,} characters, or {must}" if single else must)


def token_ids(most: int) -> Check:
    def accepts(v: Any) -> bool:
        return type(v) is list and len(v) <= most and all(type(i) is int and 0 <= i <= LARGEST_INT for i in v)

    return That(accepts, f"list at most {most:,} token ids", integrals)


def token_biases(most: int) -> Check:
    def is_bias(token: str, bias: Any) -> bool:
        return (
            _TOKEN_ID.fullmatch(token) is not None
            and (type(bias) is int or type(bias) is float)
            and -100 <= bias <= 100
        )

    def accepts(v: Any) -> bool:
        return type(v) is dict and len(v) <= most and all(is_bias(*item) for item in v.items())

    return that(accepts, f"map at most {most:,} token ids to numbers from -100 to 100")


def documents(most: int) -> Check:
    def is_document(v: Any) -> bool:
        return type(v) is dict and all(type(value) is str for value in v.values())

    return that(
        lambda v: type(v) is list and len(v) <= most and all(map(is_document, v)),
        f"list at most {most:,} objects whose values are strings",
    )


def at_most_n(value: Any, reading: FieldReading) -> Any:
    most, value = reading.policy.max_n, integral(value)
    if type(value) is not int or not 1 <= value <= most:
        raise WrongError(f"be an integer from 1 to {most}")
    return value


def an_object(table: Table) -> Check:
    """An object; only its fields that have a row are sent."""

    def check(value: Any, reading: FieldReading) -> Any:
        if type(value) is not dict:
            raise WrongError("be an object")
        return read(table, value, reading)

    return check


def a_list(item: Check, most: int, noun: str) -> Check:
    def check(value: Any, reading: FieldReading) -> Any:
        if type(value) is not list or len(value) > most:
            raise WrongError(f"list at most {most:,} {noun}")
        sent = []
        for i, element in enumerate(value):
            try:
                sent.append(item(element, reading))
            except WrongError as error:
                raise error.under(f"[{i}]") from None
        return sent

    return check
