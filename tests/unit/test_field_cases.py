"""Each case from the field says where it is from, and the table lists it."""

from __future__ import annotations

from tests.field.table import PARTS, TABLE, cases, parts, table


def test_each_case_says_where_it_is_from_what_was_sent_and_what_is_right():
    incomplete = {case.name: list(parts(case)) for case in cases() if tuple(parts(case)) != PARTS}
    assert incomplete == {}


def test_the_table_lists_them_all():
    assert TABLE.read_text() == table(), "run python -m tests.field"
