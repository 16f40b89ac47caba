from loadtests.run_locust import read_env
from loadtests.tally import Tally, Tokens, disagreements, percentile

USAGE = {"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 8}}


def seen() -> Tally:
    tally = Tally()
    tally.tokens["acme a1"].add(USAGE)
    tally.tokens["acme b1"].add(USAGE | {"prompt_tokens_details": None})
    return tally


def test_a_tenants_tokens_add_up_over_engines():
    assert seen().of_tenant("acme") == Tokens(2, 20, 8, 6)
    assert seen().of_tenant("bolt") == Tokens()


def test_a_ledger_that_agrees_says_nothing():
    assert disagreements(seen(), {"acme": Tokens(2, 20, 8, 6)}) == []


def test_every_figure_that_differs_is_named():
    ledger = {"acme": Tokens(2, 20, 8, 7), "bolt": Tokens(1, 0, 0, 0)}
    assert disagreements(seen(), ledger) == [
        "acme: clients saw 6 completion_tokens, but the ledger has 7",
        "bolt: clients saw 0 requests, but the ledger has 1",
    ]


def test_a_tally_survives_the_way_between_processes():
    tally = seen()
    tally.failures["chat: status 500"] += 1
    tally.latency["chat"].append(1.5)
    assert Tally.load(tally.dump()) == tally


def test_percentiles():
    assert percentile([], 0.5) == 0.0
    assert percentile([5.0], 0.99) == 5.0
    assert percentile([float(i) for i in range(100)], 0.99) == 99.0


def test_env_files_are_shell_lines(tmp_path):
    (tmp_path / "env").write_text(
        "export FLORIN_BASE_URL='http://h:1/v1'\n# no=comment\nFLORIN_KEY_ACME=fl_x=\n\n"
    )
    assert read_env(tmp_path / "env") == {"FLORIN_BASE_URL": "http://h:1/v1", "FLORIN_KEY_ACME": "fl_x="}
