from loadtests.tally import Tally, Tokens, disagreements

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def seen() -> Tally:
    tally = Tally()
    tally.tokens["acme a1"].add(USAGE)
    tally.tokens["acme b1"].add(USAGE | {"prompt_tokens_details": None})
    return tally


def test_a_ledger_that_agrees_says_nothing():
    assert disagreements(seen(), {"acme": Tokens(2, 20, 8, 6)}) == []


def test_every_figure_that_differs_is_named():
    ledger = {"acme": Tokens(2, 20, 8, 7), "bolt": Tokens(1, 0, 0, 0)}
    assert disagreements(seen(), ledger) == [
        "acme: clients saw 6 completion_tokens, but the ledger has 7",
        "bolt: clients saw 0 requests, but the ledger has 1",
    ]
