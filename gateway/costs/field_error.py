"""What is wrong with one field of a request about costs."""

from __future__ import annotations


class FieldError(ValueError):
    """`param` names the field; the message says what is wrong and what to do. The API answers with both.

    Both are arguments of the exception, so that it can be unpickled: it may leave the ledger process, and an
    exception that cannot would end that process for whoever asked."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(param, message)
        self.param = param
        self.message = message

    def __str__(self) -> str:
        return self.message
