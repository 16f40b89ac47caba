"""What is and is not HTTP/1.1: the cases by which requests are smuggled. A request that two parsers could read
differently gets 400, its connection is closed, and nothing after it is served."""

from __future__ import annotations

import pytest

from tests.unit.gateway.transport.serving import App, Response, client, serving

HOST = b"host: a\r\n"
POST = b"POST /v1/x HTTP/1.1\r\n" + HOST
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
LAST = b"GET /v1/last HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


def post(*headers: bytes, body: bytes = b"abc") -> bytes:
    return POST + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def get(target: bytes = b"/v1/x", version: bytes = b"HTTP/1.1", *headers: bytes) -> bytes:
    return b"GET %b %b\r\n" % (target, version) + HOST + b"".join(h + b"\r\n" for h in headers) + b"\r\n"


INVALID: dict[str, bytes] = {
    # lengths
    "two lengths": post(b"content-length: 3", b"content-length: 4"),
    "the same length twice": post(b"content-length: 3", b"content-length: 3"),
    "a list of lengths": post(b"content-length: 3, 3"),
    "a positive length": post(b"content-length: +3"),
    "a negative length": post(b"content-length: -3"),
    "a hexadecimal length": post(b"content-length: 0x3"),
    "a length with an exponent": post(b"content-length: 3e0"),
    "a length with an underscore": post(b"content-length: 0_3"),
    "a length in two words": post(b"content-length: 3 3"),
    "a length with a letter": post(b"content-length: 3a"),
    "a length with a vertical tab": post(b"content-length: \x0b3"),
    "a length without digits": post(b"content-length:"),
    "a length of 2^64": post(b"content-length: 18446744073709551616"),
    "a length of 2^64 + 3": post(b"content-length: 18446744073709551619"),
    "a length in other digits": post(b"content-length: \xd9\xa3"),
    "a folded length": post(b"content-length: 0\r\n 3"),
    # length and coding
    "length, then chunks": post(b"content-length: 3", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
    "chunks, then length": post(b"transfer-encoding: chunked", b"content-length: 3", body=b"0\r\n\r\n"),
    "length and another coding": post(b"content-length: 3", b"transfer-encoding: identity"),
    # codings
    "no coding that is known": post(b"transfer-encoding: identity"),
    "chunked is not the last": post(b"transfer-encoding: chunked, gzip", body=b"0\r\n\r\n"),
    "identity after chunked": post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n"),
    "identity after chunked, in two": post(
        b"transfer-encoding: chunked", b"transfer-encoding: identity", body=b"0\r\n\r\n"
    ),
    "a coding that ends like chunked": post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n"),
    "a coding that begins like chunked": post(b"transfer-encoding: chunkedx", body=b"0\r\n\r\n"),
    "chunked with a space": post(b"transfer-encoding: chun ked", body=b"0\r\n\r\n"),
    "chunked after a vertical tab": post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n"),
    "chunked before NUL": post(b"transfer-encoding: chunked\0", body=b"0\r\n\r\n"),
    "quoted chunked": post(b'transfer-encoding: "chunked"', body=b"0\r\n\r\n"),
    "chunked with a parameter": post(b"transfer-encoding: chunked;x=1", body=b"0\r\n\r\n"),
    "another coding before chunked": post(b"transfer-encoding: gzip, chunked", body=b"0\r\n\r\n"),
    "another coding before chunked, in two": post(
        b"transfer-encoding: gzip", b"transfer-encoding: chunked", body=b"0\r\n\r\n"
    ),
    "another coding before chunked, with an upgrade": post(
        b"connection: upgrade", b"upgrade: h2c", b"transfer-encoding: gzip, chunked", body=b"0\r\n\r\n"
    ),
    "chunked twice": post(b"transfer-encoding: chunked, chunked", body=b"0\r\n\r\n"),
    "an empty coding": post(b"transfer-encoding:", body=b"0\r\n\r\n"),
    # headers
    "a space before the colon": post(b"transfer-encoding : chunked", body=b"0\r\n\r\n"),
    "a tab before the colon": post(b"content-length\t: 3"),
    "a space in a name": post(b"content length: 3"),
    "a space before the first header": b"POST /v1/x HTTP/1.1\r\n host: a\r\n\r\n",
    "a folded value": get(b"/v1/x", b"HTTP/1.1", b"x: a\r\n content-length: 3"),
    "a value folded by a tab": get(b"/v1/x", b"HTTP/1.1", b"x: a\r\n\tb"),
    "a name without a colon": post(b"content-length"),
    "no name": post(b": 3"),
    "NUL in a name": post(b"content\0-length: 3"),
    "NUL in a value": post(b"x: a\0b"),
    "a control character in a value": post(b"x: a\x01b"),
    "a high byte in a name": post(b"x\xff: a"),
    "a bare CR in a value": post(b"x: a\rtransfer-encoding: chunked"),
    "a bare LF in a value": post(b"x: a\ntransfer-encoding: chunked", body=b"0\r\n\r\n"),
    "a bare CR before a name": post(b"x: a\r\n\rtransfer-encoding: chunked"),
    "lines that end with LF": b"GET /v1/x HTTP/1.1\nhost: a\n\n",
    "a request line that ends with LF": b"GET /v1/x HTTP/1.1\nhost: a\r\n\r\n",
    "headers that end with LF": b"GET /v1/x HTTP/1.1\r\nhost: a\r\n\n",
    "headers that end with CR": b"GET /v1/x HTTP/1.1\r\nhost: a\r\n\r\r\n",
    "lines that end with CR": b"GET /v1/x HTTP/1.1\rhost: a\r\r",
    # chunks
    "a chunk of negative size": CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n",
    "a chunk of positive size": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a chunk of hexadecimal size": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk without a size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "a chunk with only an extension": CHUNKED + b";x\r\nabc\r\n0\r\n\r\n",
    "a chunk of no number": CHUNKED + b"g\r\nabc\r\n0\r\n\r\n",
    "a chunk size with an underscore": CHUNKED + b"0_3\r\nabc\r\n0\r\n\r\n",
    "a chunk size after a space": CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "a chunk size before a tab": CHUNKED + b"3\t\r\nabc\r\n0\r\n\r\n",
    "a chunk size in two words": CHUNKED + b"3 3\r\nabc\r\n0\r\n\r\n",
    "a chunk of 2^64 bytes": CHUNKED + b"10000000000000000\r\nabc\r\n0\r\n\r\n",
    "a chunk of 2^64 + 3 bytes": CHUNKED + b"10000000000000003\r\nabc\r\n0\r\n\r\n",
    "a chunk of 2^80 bytes": CHUNKED + b"100000000000000000000\r\nabc\r\n0\r\n\r\n",
    "a chunk size that ends with LF": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "a chunk size that ends with CR": CHUNKED + b"3\rabc\r\n0\r\n\r\n",
    "an extension that ends with LF": CHUNKED + b"3;x\nabc\r\n0\r\n\r\n",
    "an extension with NUL": CHUNKED + b"3;a=\0\r\nabc\r\n0\r\n\r\n",
    "a quoted extension with a line break": CHUNKED + b'3;a="\r\n"\r\nabc\r\n0\r\n\r\n',
    "data longer than its chunk": CHUNKED + b"2\r\nabc\r\n0\r\n\r\n",
    "data that ends with LF": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "data without an end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "a last chunk that ends with LF": CHUNKED + b"3\r\nabc\r\n0\n\r\n",
    "trailers that end with LF": CHUNKED + b"3\r\nabc\r\n0\r\n\n",
    "a folded trailer": CHUNKED + b"3\r\nabc\r\n0\r\nx: a\r\n b\r\n\r\n",
    "a trailer with NUL": CHUNKED + b"3\r\nabc\r\n0\r\nx: \0\r\n\r\n",
    "a trailer without a colon": CHUNKED + b"3\r\nabc\r\n0\r\nGET /v1/x HTTP/1.1\r\n\r\n",
    "a length in a trailer": CHUNKED + b"3\r\nabc\r\n0\r\ncontent-length: 9\r\n\r\n",
    "another coding in a trailer": CHUNKED + b"3\r\nabc\r\n0\r\ntransfer-encoding: gzip\r\n\r\n",
    # request lines
    "a space before the method": b" " + get(),
    "a tab after the method": b"GET\t/v1/x HTTP/1.1\r\nhost: a\r\n\r\n",
    "a tab before the version": b"GET /v1/x\tHTTP/1.1\r\nhost: a\r\n\r\n",
    "a space in the target": get(b"/v1/x y"),
    "a space after the version": get(version=b"HTTP/1.1 "),
    "a method in lower case": b"get /v1/x HTTP/1.1\r\nhost: a\r\n\r\n",
    "an unknown method": b"SMUGGLE /v1/x HTTP/1.1\r\nhost: a\r\n\r\n",
    "a method with NUL": b"GE\0T /v1/x HTTP/1.1\r\nhost: a\r\n\r\n",
    "no version": b"GET /v1/x\r\nhost: a\r\n\r\n",
    "HTTP/0.9": get(version=b"HTTP/0.9"),
    "HTTP/2.0": get(version=b"HTTP/2.0"),
    "HTTP/1.2": get(version=b"HTTP/1.2"),
    "HTTP/1.10": get(version=b"HTTP/1.10"),
    "HTTP/1": get(version=b"HTTP/1"),
    "HTTP/+1.1": get(version=b"HTTP/+1.1"),
    "http/1.1": get(version=b"http/1.1"),
    "HTTP 1.1": get(version=b"HTTP 1.1"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a TLS handshake": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32,
    # targets and hosts
    "no host": b"GET /v1/x HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/x HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    "the same host twice": b"GET /v1/x HTTP/1.1\r\nhost: a\r\nHost: a\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET /v1/x HTTP/1.0\r\nhost: a\r\nhost: b\r\n\r\n",
    "CONNECT": b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
    "OPTIONS *": b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
    "GET *": get(b"*"),
    "a relative target": get(b"v1/x"),
    "a target of a query": get(b"?x"),
    "a backslash": get(b"\\v1\\x"),
    "a high byte in the target": get(b"/v1/\xff"),
    "NUL in the target": get(b"/v1/\0"),
    "DEL in the target": get(b"/v1/\x7f"),
    "a URL without a host": get(b"http:///v1/x"),
    "a URL with a port that is none": get(b"http://a:99999/v1/x"),
}

VALID: dict[str, tuple[bytes, list[tuple[str, str, bytes]]]] = {
    "a length": (post(b"content-length: 3"), [("POST", "/v1/x", b"abc")]),
    "a length with white space": (post(b"content-length: \t 3 \t"), [("POST", "/v1/x", b"abc")]),
    "a length with zeros": (post(b"content-length: 003"), [("POST", "/v1/x", b"abc")]),
    "a length of 0": (post(b"content-length: 0", body=b""), [("POST", "/v1/x", b"")]),
    "no length": (post(body=b""), [("POST", "/v1/x", b"")]),
    "GET with a body": (get(b"/v1/x", b"HTTP/1.1", b"content-length: 3") + b"abc", [("GET", "/v1/x", b"abc")]),
    "a header that only looks like a length": (
        post(b"content_length: 30", b"content-length: 3"), [("POST", "/v1/x", b"abc")]
    ),
    "chunks": (CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", [("POST", "/v1/x", b"abcde")]),
    "chunked in upper case": (
        post(b"Transfer-Encoding:   CHUNKED  ", body=b"3\r\nabc\r\n0\r\n\r\n"), [("POST", "/v1/x", b"abc")]
    ),
    "chunk sizes with zeros and capitals": (
        CHUNKED + b"0003\r\nabc\r\nA\r\n0123456789\r\n000\r\n\r\n", [("POST", "/v1/x", b"abc0123456789")]
    ),
    "extensions": (CHUNKED + b'3;a;b=c;d="e;f"\r\nabc\r\n0;g\r\n\r\n', [("POST", "/v1/x", b"abc")]),
    "trailers": (
        CHUNKED + b"3\r\nabc\r\n0\r\nhost: b\r\nexpect: 100-continue\r\n\r\n", [("POST", "/v1/x", b"abc")]
    ),
    "a body that looks like a request": (
        post(b"content-length: %d" % len(get()), body=get()), [("POST", "/v1/x", get())]
    ),
    "empty lines before a request": (b"\r\n\r\n" + get(), [("GET", "/v1/x", b"")]),
    "two spaces after the method": (b"GET  /v1/x HTTP/1.1\r\nhost: a\r\n\r\n", [("GET", "/v1/x", b"")]),
    "an empty value": (get(b"/v1/x", b"HTTP/1.1", b"x:"), [("GET", "/v1/x", b"")]),
    "high bytes in a value": (get(b"/v1/x", b"HTTP/1.1", b"x: \xff\xe4"), [("GET", "/v1/x", b"")]),
    "a URL": (get(b"http://b:80/v1/x?y#z"), [("GET", "/v1/x", b"")]),
    "a URL without a path": (get(b"http://b"), [("GET", "/", b"")]),
    "two slashes": (get(b"//v1/x"), [("GET", "//v1/x", b"")]),
    "a path in percent encoding": (get(b"/v1/%78%2f"), [("GET", "/v1/x/", b"")]),
}  # fmt: skip


pytestmark = pytest.mark.asyncio(loop_factories=["uvloop"])  # as in production


async def answers(app: App, raw: bytes, *, dripping: bool) -> list[Response]:
    """To these bytes and another request after them, sent at once or byte by byte."""
    async with serving(app) as address, client(address) as wire:
        await (wire.drip if dripping else wire.send)(raw + LAST)
        return await wire.responses()


@pytest.mark.parametrize("raw", INVALID.values(), ids=INVALID.keys())
async def test_what_could_be_read_in_two_ways_is_refused_and_nothing_after_it_is_served(raw: bytes):
    for dripping in (False, True):
        app = App()
        [refusal] = await answers(app, raw, dripping=dripping)
        assert (refusal.status, refusal.code) == (400, "invalid_http")
        assert refusal.headers["connection"] == "close"
        assert app.served == []
        assert app.closed == ["invalid_http"]


@pytest.mark.parametrize(("raw", "served"), VALID.values(), ids=VALID.keys())
async def test_what_is_valid_is_read_in_the_one_right_way(raw: bytes, served: list[tuple[str, str, bytes]]):
    for dripping in (False, True):
        app = App()
        responses = await answers(app, raw, dripping=dripping)
        assert [r.status for r in responses] == [200] * (len(served) + 1)
        assert app.served == [*served, ("GET", "/v1/last", b"")]
        assert app.closed == []
