"""Checks the lines of an input file before any of them runs. Pure, but for the model's name."""

from __future__ import annotations

from collections.abc import Callable

from gateway.admission.complexity import Complexity, check
from gateway.batches.lines import BadLineError, LineError, read_line
from gateway.errors import FlorinError

MOST_ERRORS = 20
"""Errors that are reported; after that many, the rest of the file is not read."""


class Validation:
    """Validates one batch. Mutable: the errors so far."""

    def __init__(
        self,
        endpoint: str,
        *,
        most_lines: int,
        complexity: Complexity,
        check_model: Callable[[str], LineError | None],
    ) -> None:
        """`complexity`: the limit of a line. `check_model`: why a model cannot be called; None: it can."""
        self._endpoint = endpoint
        self._complexity = complexity
        self._most_lines = most_lines
        self._check_model = check_model
        self._first: dict[str, int] = {}
        """`custom_id` → its line."""
        self._models: dict[str, LineError | None] = {}
        self.errors: list[LineError] = []

    @property
    def total(self) -> int:
        return len(self._first)

    @property
    def model(self) -> str:
        """The model of the first line."""
        return next(iter(self._models), "")

    @property
    def full(self) -> bool:
        """Whether no more errors are reported."""
        return len(self.errors) >= MOST_ERRORS

    def add(self, number: int, raw: bytes) -> None:
        """Check the next line."""
        try:
            self._add(number, raw)
        except BadLineError as bad:
            self.errors.append(bad.error)

    def _add(self, number: int, raw: bytes) -> None:
        try:
            check(raw, self._complexity)
        except FlorinError as refusal:
            raise BadLineError(LineError(refusal.code, refusal.message, number)) from None
        line = read_line(number, raw, self._endpoint)
        first = self._first.setdefault(line.custom_id, number)
        if first != number:
            message = f"`custom_id` is that of line {first:,}, too."
            raise BadLineError(LineError("duplicate_custom_id", message, number, "custom_id"))
        if self.total > self._most_lines:
            message = f"A batch has at most {self._most_lines:,} lines."
            self.errors = [LineError("too_many_lines", message)] * MOST_ERRORS
            return
        model = line.body["model"]
        if model not in self._models:
            self._models[model] = self._check_model(model)
        error = self._models[model]
        if error is not None:
            raise BadLineError(LineError(error.code, error.message, number, "body.model"))

    def end(self) -> list[LineError]:
        """Every error, after the last line."""
        if not self.errors and not self.total:
            return [LineError("empty_file", "The file has no lines.")]
        return list(dict.fromkeys(self.errors))
