"""Which regular expressions are given to an engine. The figures are of vLLM 0.32 and a vocabulary of 128,000."""

from __future__ import annotations

import pytest

from gateway.fields.patterns import objection


@pytest.mark.parametrize(
    "pattern",
    [
        "", "a", r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,9})?Z?", r"^[^@\s]+@[^@\s]+\.[^@\s]+$",
        r"\+?\(?\d{3}\)?[- ]?\d{3}[- ]?\d{4}", r"-?\d+(\.\d+)?([eE][+-]?\d+)?", "(yes|no|maybe)",
        r"P(\d+Y)?(\d+M)?(\d+D)?(T(\d+H)?(\d+M)?(\d+S)?)?", r"[A-Z][a-z]{1,20}( [A-Z][a-z]{1,20}){0,5}",
        r".{1,100}", r".{1,20}-.{1,20}-.{1,20}-.{1,20}", r".?a.?b.?c", "((a*)*)*b", "(a|aa)+$", "(x+x+)+y",
        "(([a-z]{1,1000}){1,1000}){1,1000}", r"https?://[^\s]+", r"[\]a?]?", "(a?b){12}", "(?:a|b)?c", r"\(?\d", "a{,3}b",
        "(?P<year>[0-9]{4})", "[a-z]?" * 8, "|".join(["word"] * 400),
    ],
)  # fmt: skip
def test_what_people_write_is_taken(pattern: str):
    assert objection(pattern) == ""


@pytest.mark.parametrize(
    ("pattern", "because"),
    [
        (r".?\w*" * 12, "in a row"),  # 2.6 s at one token
        (r"[^\u4e00-\u9fff]?\w*" * 50, "in a row"),  # more than 40 s
        ("[a-z]?" * 20, "in a row"),  # 0.6 s
        ("a?" * 200, "in a row"),  # more than 30 s to compile
        ("(word)?" * 100, "in a row"),  # 3.4 s to compile
        (r"(.?\w*){12}", "in a row"),
        ("(?:a?){9}", "in a row"),
        ("(foo|bar|)?" * 9, "in a row"),
        ("()" * 9, "in a row"),
        ("(" + "(a|)" * 3 + "){3}", "in a row"),
        ("(a?(b?(c?(d?(e?(f?(g?(h?(i?(j?))))))))))", "in a row"),
        ("(?=x)" * 9, "in a row"),
        ("a?^" * 9, "in a row"),
        (r"a?\b" * 9, "in a row"),
        (r"\p{L}?" * 9, "in a row"),
        (r"\x41?" * 9, "in a row"),
        (r"\u0041?" * 9, "in a row"),
        ("a??" * 9, "in a row"),
        ("a*+" * 9, "in a row"),
        ("a{0,3}" * 9, "in a row"),
        ("a{0}" * 9, "in a row"),
        ("a{,3}" * 9, "in a row"),
        ("(a?b|c)" * 65, "optional parts"),
        ("[a-z]{1,1000}b" * 5, "750 times"),
        ("(ab){1,1000}" * 5, "750 times"),
        ("a{1,100001}", "100,000 times"),
        ("a{99999999999999999999}", "100,000 times"),
        ("a" * 2049, "2,048 characters"),
        ("(" * 60 + ")" * 60, "50 groups"),
        ("[]a?]", "flags"),
        ("[^]a?]", "flags"),
        ("(?i)a", "flags"),
        (r"\\[]", "flags"),
    ],
)
def test_slow_patterns_are_refused(pattern: str, because: str):
    assert because in objection(pattern)


@pytest.mark.parametrize(
    "piece", ["[", "(", ")", "a?", "(?", "[^", "\\", "{", "a{1,", "|", "(|", "[a-", "\\p{", "((a|b)?"]
)
def test_every_beginning_of_a_construct_is_read_to_its_end(piece: str):
    """An expression of our own that went back and forth over it would not return within the test's timeout."""
    assert isinstance(objection((piece * 2048)[:2048]), str)
