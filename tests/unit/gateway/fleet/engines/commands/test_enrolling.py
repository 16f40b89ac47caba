"""`florin engine token create` and `florin engine enrol`, at a gateway that answers as it is told to."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

import pytest

from adapters.security.secret_files import read_key, write_private
from gateway.fleet.engines.schemas.hosts import CreatedToken
from gateway.tenants.keys.schemas import Key
from tests.support.samples import sample

TOKEN = "flt_abc_secret"
ENROL = ("POST", "/admin/v1/enrol")
USED = {"error": {"message": "This token was used.", "type": "", "param": None, "code": "revoked_api_key"}}
KNOWN = {"error": {"message": "Another key has it.", "type": "", "param": None, "code": "conflict"}}
DONE = sample(Key, id="k1", engine="gpu1", role="engine")


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    write_private(path, f"{TOKEN}\n")
    return path


@pytest.fixture
def enrol(fake, tmp_path, token):
    def run(*args: str):
        key = ("--key-file", str(tmp_path / "own" / "key"))
        return fake.florin("engine", "enrol", "--name", "gpu1", "--token-file", str(token), *key, *args)

    return run


def offered(fake) -> list[str]:
    return [body["secret"] for method, path, body in fake.asked if (method, path) == ENROL]


def test_a_token_is_made_and_only_it_is_on_stdout(fake):
    made = sample(CreatedToken, id="t1", engine="gpu1", token=TOKEN, expires=1800000000000000)
    fake.answer("POST", "/admin/v1/enrolment-tokens", made, 201)
    result = fake.florin(
        "engine", "token", "create", "--name", "gpu1", "--gpu-type", "H100", "--expires", "30m"
    )
    assert (result.exit_code, result.stdout) == (0, f"{TOKEN}\n")
    assert "--token-file" in result.stderr
    assert fake.asked[0][2] == {"engine": "gpu1", "expires_in": 1800, "gpu_type": "H100"}


def test_the_list_of_keys_says_whose_engine_and_what_became_of_tokens(fake):
    rows = [
        sample(Key, id="k1", engine="gpu1", role="engine"),
        sample(Key, id="t1", engine="gpu1", role="enrolment", expires=2, revoked=1),
        sample(Key, id="t2", engine="gpu1", role="enrolment", expires=2),
        sample(Key, id="t3", engine="gpu1", role="enrolment", expires=4_000_000_000_000_000),
    ]
    fake.answer("GET", "/admin/v1/keys", {"data": rows})
    lines = fake.florin("key", "list").stdout.splitlines()
    assert ["gpu1" in line for line in lines[1:]] == [True] * 4
    assert [
        w in line for w, line in zip(("valid", "used", "expired", "valid until"), lines[1:], strict=True)
    ] == [True] * 4


def test_a_host_makes_its_key_and_gives_only_its_digest(fake, enrol, tmp_path):
    fake.answer(*ENROL, DONE, 201)
    result = enrol()
    assert result.exit_code == 0, result.stderr
    kept = tmp_path / "own" / "key"
    key = read_key(kept)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert offered(fake) == ["sha256:" + hashlib.sha256(key.encode()).hexdigest()]
    assert fake.keys == [f"Bearer {TOKEN}"]
    assert key.startswith("fl_gpu1_")
    assert TOKEN not in kept.read_text() + result.stdout + result.stderr
    assert key not in result.stdout + result.stderr


def test_same_token_makes_no_call_and_another_brings_a_new_key(fake, enrol, tmp_path, token):
    fake.answer(*ENROL, DONE, 201)
    assert [enrol().exit_code for _ in range(2)] == [0, 0]
    assert len(fake.asked) == 1
    first = read_key(tmp_path / "own" / "key")
    write_private(token, "flt_def_secret")
    assert enrol().exit_code == 0
    assert len(fake.asked) == 2
    assert read_key(tmp_path / "own" / "key") != first


@pytest.mark.parametrize(("refusal", "status"), [(USED, 401), (KNOWN, 409)])
def test_an_answer_that_was_lost_costs_no_token(fake, enrol, tmp_path, refusal, status):
    """The gateway took the key, and the host died, or never heard. A platform's token is never used up."""
    assert enrol().exit_code == 1  # 404
    fake.answer(*ENROL, refusal, status)
    fake.answer(
        "GET", "/admin/v1/engines/gpu1", {"error": {"message": "No engine.", "code": "not_found"}}, 404
    )
    result = enrol()
    assert result.exit_code == 0, result.stderr
    assert len(set(offered(fake))) == 1
    assert fake.keys[-1] == f"Bearer {read_key(tmp_path / 'own' / 'key')}"
    assert [f.name for f in (tmp_path / "own").iterdir()] == ["key"]


def test_a_token_that_somebody_else_has_used_is_refused_and_the_key_before_stays(fake, enrol, tmp_path):
    write_private(tmp_path / "own" / "key", "# by token sha256:00\nfl_before\n")
    fake.answer(*ENROL, USED, 401)
    for _ in range(2):  # the second time, a key is pending that the gateway does not know
        fake.answer(
            "GET", "/admin/v1/engines/gpu1", {"error": {"message": "No.", "code": "invalid_api_key"}}, 401
        )
        result = enrol()
        assert (result.exit_code, result.stderr.strip()) == (1, "florin: This token was used.")
    assert read_key(tmp_path / "own" / "key") == "fl_before"


def test_a_key_that_no_token_brought_is_never_written_over(fake, enrol, tmp_path):
    write_private(tmp_path / "own" / "key", "fl_operators\n")
    result = enrol()
    assert (result.exit_code, fake.asked) == (2, [])
    assert "remove it, or use another --key-file" in result.stderr
    assert read_key(tmp_path / "own" / "key") == "fl_operators"


def test_an_operators_key_file_is_not_the_hosts(fake, tmp_path, token, monkeypatch):
    """As on a machine where an operator has just made the token."""
    operators = tmp_path / "operator.key"
    write_private(operators, "fl_operators\n")
    monkeypatch.setenv("FLORIN_OPERATOR_KEY_FILE", str(operators))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    fake.answer(*ENROL, DONE, 201)
    result = fake.florin("engine", "enrol", "--name", "gpu1", "--token-file", str(token))
    assert result.exit_code == 0, result.stderr
    assert read_key(operators) == "fl_operators"
    assert read_key(tmp_path / "state" / "florin" / "engines" / "gpu1" / "key").startswith("fl_gpu1_")


def test_a_token_file_that_others_can_read_is_refused(fake, enrol, token):
    token.chmod(0o644)
    result = enrol()
    assert (result.exit_code, fake.asked) == (2, [])
    assert f"chmod 600 {token}" in result.stderr


def test_a_key_that_cannot_be_kept_is_not_offered(fake, enrol, tmp_path):
    (tmp_path / "own").write_text("a file, where a directory should be")
    result = enrol()
    assert (result.exit_code, fake.asked) == (2, [])
    assert "Cannot store the key" in result.stderr


def test_without_a_token_it_says_what_to_do(fake, enrol, token):
    token.unlink()
    result = enrol()
    assert (result.exit_code, fake.asked) == (2, [])
    assert "--token-file" in result.stderr
