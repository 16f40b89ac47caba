from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.batches.routes.file_form import FileForm
from gateway.errors import FlorinError

TYPE = b"multipart/form-data; boundary=cut"


def part(name: str, content: bytes, more: str = "") -> bytes:
    return (
        f'--cut\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + content + b"\r\n"
    )


FILE = part("file", b"one\r\n--cu\ntwo", '; filename="in.jsonl"')
PURPOSE = part("purpose", b"batch")
END = b"--cut--\r\n"


def read(body: bytes, sizes: list[int] = []) -> FileForm:  # noqa: B006  # never changed
    form = FileForm(TYPE)
    for size in [*sizes, len(body)]:
        form.feed(body[:size])
        body = body[size:]
    form.close()
    return form


@given(st.lists(st.integers(0, 40), max_size=20), st.booleans())
def test_a_form_is_the_same_however_it_arrives(sizes: list[int], file_first: bool):
    parts = [FILE, PURPOSE] if file_first else [PURPOSE, FILE]
    form = read(b"".join(parts) + END + b"what follows", sizes)
    assert (form.filename, bytes(form.content)) == ("in.jsonl", b"one\r\n--cu\ntwo")
    assert form.fields == {"purpose": "batch"}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "truncated"),
        (FILE + PURPOSE, "truncated"),
        (b"rubbish", "cannot be read"),
        (FILE + END, "purpose"),
        (PURPOSE + END, "file"),
        (FILE + FILE + PURPOSE + END, "more than one file"),
        (PURPOSE + PURPOSE + FILE + END, "twice"),
        (part("purpose", b"b" * 300) + FILE + END, "too long"),
        (part("model", b"x") + FILE + PURPOSE + END, "model"),
        (b"--cut\r\nX: " + b"x" * 5000 + b"\r\n\r\n", "header size"),
        (b"--cut\r\n\r\nnameless\r\n" + END, "not supported"),
        (PURPOSE.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + END, "encoded"),
    ],
)
def test_other_forms_are_refused(body: bytes, says: str):
    with pytest.raises(FlorinError, match=says):
        read(body)


@pytest.mark.parametrize(
    "type_",
    [b"", b"application/json", b"multipart/form-data", b"multipart/form-data; boundary=" + b"x" * 300],
)
def test_other_bodies_are_refused(type_: bytes):
    with pytest.raises(FlorinError) as caught:
        FileForm(type_)
    assert caught.value.status == 415
