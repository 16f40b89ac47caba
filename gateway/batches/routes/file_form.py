"""The form with which a file is uploaded, `multipart/form-data`, parsed as it arrives. Pure.

OpenAI's clients send `purpose`, `expires_after[anchor]` and `expires_after[seconds]` as fields and `file` as
the file, in any order.
"""

from __future__ import annotations

from typing import Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import FlorinError

FILE: Final = "file"
FIELDS: Final = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
_LONGEST: Final = 256
"""Bytes of a field."""
_MOST_PARTS: Final = len(FIELDS) + 1


class FileForm:
    """Feed it the body. The file's content so far is in `content`, from which the caller takes it.

    Every method raises FlorinError for a form that is not one file with those fields."""

    def __init__(self, content_type: bytes) -> None:
        type_, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if type_ != b"multipart/form-data" or not 0 < len(boundary) <= _LONGEST:
            raise FlorinError(
                "invalid_value",
                "Send the file as multipart/form-data.",
                param="content-type",
                status=415,
            )
        # Mutable:
        self.content = bytearray()
        self.filename: str | None = None
        """None: there was no file yet."""
        self.fields: dict[str, str] = {}
        self.ended = False
        self._parts = 0
        self._header = self._value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._field = b""
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._part_begin,
                "on_header_field": self._on_header,
                "on_header_value": self._on_value,
                "on_header_end": self._header_end,
                "on_headers_finished": self._headers_finished,
                "on_part_data": self._part_data,
                "on_part_end": self._part_end,
                "on_end": self._end,
            },
        )

    def feed(self, data: bytes) -> None:
        if self.ended:
            return  # what follows the end of the form is ignored
        try:
            self._parser.write(data)
        except FormParserError as error:
            raise malformed(str(error)) from error

    def close(self) -> None:
        """The body has ended."""
        if not self.ended:
            raise malformed("it is truncated")
        if self.filename is None:
            raise _missing(FILE)
        if "purpose" not in self.fields:
            raise _missing("purpose")

    def _part_begin(self) -> None:
        self._parts += 1
        self._headers, self._field = {}, b""
        if self._parts > _MOST_PARTS:
            raise malformed("it has too many parts")

    def _on_header(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_end(self) -> None:
        self._headers[self._header.lower()] = self._value
        self._header = self._value = b""

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        self._name = options.get(b"name", b"").decode("utf-8", "replace")
        if self._headers.get(b"content-transfer-encoding", b"binary").lower() not in (b"binary", b"8bit"):
            raise malformed("a part is encoded; send it unencoded")
        if self._name == FILE:
            if self.filename is not None:
                raise malformed("it has more than one file")
            self.filename = options.get(b"filename", b"").decode("utf-8", "replace")
        elif self._name not in FIELDS:
            raise FlorinError(
                "unsupported_parameter", f"`{self._name[:80]}` is not supported.", param=self._name[:80]
            )
        elif self._name in self.fields:
            raise malformed(f"it has {self._name} twice")

    def _part_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.content += data[start:end]
            return
        self._field += data[start:end]
        if len(self._field) > _LONGEST:
            raise malformed(f"{self._name} is too long")

    def _part_end(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._field.decode("utf-8", "replace")

    def _end(self) -> None:
        self.ended = True


def malformed(reason: str) -> FlorinError:
    return FlorinError("upload_incomplete", f"The form cannot be read: {reason[:200]}.")


def _missing(name: str) -> FlorinError:
    return FlorinError("invalid_value", f"`{name}` is missing.", param=name)
