"""Integers that remember how they were computed, so that a model built from them tells its shapes' formulas.

A model's class reads sizes from its config and computes with them: `Linear(hidden, heads * head_dim)`. Built
from symbols, the linear layer keeps the product, and its formula can be read off; nothing has to be guessed
from examples.

Some classes divide as floats and round: `int(hidden / heads)`. Exact divisions stay symbols, and `kept`
stands in for `int` in their modules.

A formula is an integer, the name of a config's field, or `[operator, left, right]` with `+ - * //`.
"""

from __future__ import annotations

from typing import Any, Self

Formula = int | str | list[Any]

_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//"}


class Symbol(int):
    """An integer with its formula. Copies are the same symbol."""

    formula: Formula

    def __new__(cls, value: int, formula: Formula) -> Self:
        self = int.__new__(cls, value)
        self.formula = formula
        return self

    def __copy__(self) -> Symbol:
        return self

    def __deepcopy__(self, _: Any) -> Symbol:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Symbol, (int(self), self.formula)


def formula_of(value: int) -> Formula:
    return value.formula if isinstance(value, Symbol) else int(value)


def fields_of(formula: Formula) -> set[str]:
    """Names of the fields that a formula uses."""
    if isinstance(formula, str):
        return {formula}
    if isinstance(formula, int):
        return set()
    return fields_of(formula[1]) | fields_of(formula[2])


def _define(name: str, sign: str, *, reflected: bool) -> None:
    method = f"__{'r' if reflected else ''}{name}__"
    plain = getattr(int, method)

    def compute(self: Symbol, other: Any) -> Any:
        value = plain(self, other)
        if value is NotImplemented or isinstance(other, bool):
            return value
        left, right = (other, self) if reflected else (self, other)
        return Symbol(value, [sign, formula_of(left), formula_of(right)])

    setattr(Symbol, method, compute)


for _name, _sign in _OPERATORS.items():
    for _reflected in (False, True):
        _define(_name, _sign, reflected=_reflected)


def _divide(self: Symbol, other: Any) -> Any:
    exact = isinstance(other, int) and other and int(self) % int(other) == 0
    return self // other if exact else int(self) / other


setattr(Symbol, "__truediv__", _divide)  # noqa: B010  # of another type than int's


class _Int(type):
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, int)

    def __subclasscheck__(cls, subclass: Any) -> bool:
        return issubclass(subclass, int)


class kept(int, metaclass=_Int):  # noqa: N801  # stands in for `int`
    """`int`, but a symbol stays one."""

    def __new__(cls, value: Any = 0, *more: Any) -> Any:
        return value if isinstance(value, Symbol) else int(value, *more)
