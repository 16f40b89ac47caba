"""Which labels of a request are kept, and in which form."""

import hashlib
import json

import pytest

from gateway.dataplane.labels import LONGEST, label_of, storable
from gateway.dataplane.request import CHAT, parse
from gateway.fields.rule import FieldPolicy


def call(**more):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **more}
    return parse(CHAT, json.dumps(body).encode(), FieldPolicy())


@pytest.mark.parametrize("text", ["ann", "user-17@example.com", "Ünï €", "x" * LONGEST, "a b"])
def test_a_label_is_stored_as_it_was_sent(text):
    assert label_of(text) == text


@pytest.mark.parametrize("text", ["x" * (LONGEST + 1), "a\0b", "a\nb", "\x1b[31m", "\u202e", "__other__"])
def test_one_that_cannot_be_is_hashed_and_stays_distinct(text):
    made = label_of(text)
    assert made == "sha256:" + hashlib.sha256(text.encode()).hexdigest()[:40]
    assert storable(made)
    assert label_of(text + "x") != made


@pytest.mark.parametrize("value", [None, "", 5, True, ["a"], {"a": 1}])
def test_what_is_no_text_is_no_label(value):
    assert label_of(value) is None


@pytest.mark.parametrize(
    ("sent", "end_user"),
    [
        ({}, None),
        ({"user": "ann"}, "ann"),
        ({"safety_identifier": "s-1"}, "s-1"),
        ({"user": "ann", "safety_identifier": "s-1"}, "s-1"),
        ({"user": "ann", "safety_identifier": ""}, "ann"),
        ({"user": None, "safety_identifier": None}, None),
    ],
)
def test_the_end_user_is_the_safety_identifier_or_else_the_user(sent, end_user):
    assert call(**sent).end_user == end_user


@pytest.mark.parametrize(
    ("metadata", "tag"),
    [
        ({"tag": "batch"}, "batch"),
        ({"tag": "batch", "other": [1]}, "batch"),
        ({"tag": 5}, None),
        ({"tag": None}, None),
        ({}, None),
        ("tag", None),
        ([{"tag": "batch"}], None),
        (None, None),
    ],
)
def test_the_tag_is_that_of_the_metadata_and_nothing_of_it_is_refused_or_sent(metadata, tag):
    made = call(metadata=metadata)
    assert made.tag == tag
    assert "metadata" not in made.body
