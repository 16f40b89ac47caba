"""What is added to and refused of a vLLM command line."""

from __future__ import annotations

from dataclasses import replace

import pytest

from adapters.engine_agent import engine_flags
from adapters.engine_agent.engine_command import CommandRefusedError

SERVE = ("vllm", "serve", "/models/base")
MODULE = ("python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/base")


def plan(*command: str, environ: dict[str, str] | None = None, config: str = "") -> engine_flags.Launch:
    return engine_flags.plan(command, environ or {}, host="10.0.0.7", read=lambda path: config)


def refusal(*command: str, **options) -> str:
    with pytest.raises(CommandRefusedError) as refused:
        plan(*command, **options)
    return str(refused.value)


@pytest.mark.parametrize("command", [SERVE, MODULE, ("env", "A=b", "numactl", "-N0", *SERVE)], ids=" ".join)
def test_what_florin_needs_is_added_behind_what_is_given(command):
    launch = plan(*command)
    assert launch.command[: len(command)] == command
    assert " ".join(launch.command[len(command) :]) == (
        "--enable-lora --api-server-count 1 --max-loras 1 --max-cpu-loras 1 --max-lora-rank 16 "
        "--enable-prompt-tokens-details --allowed-media-domains media.invalid --host 10.0.0.7 --port 8000"
    )
    assert all(addition.why for addition in launch.additions)
    assert launch.environment == {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "75",
        "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0", "VLLM_MAX_STOP_STRINGS": "16",
        "VLLM_USE_RUST_FRONTEND": "0", "VLLM_REQUEST_BODY_LOG_LEVEL": "NOTSET",
    }  # fmt: skip
    assert (launch.model, launch.names) == ("/models/base", ("/models/base",))
    assert (launch.slots, launch.cpu_slots, launch.max_rank, launch.gpus) == (1, 1, 16, 1)


GIVEN = [
    "--enable_lora",
    "--api-server-count=1",
    "--max_loras=4",
    "--max-cpu-loras",
    "9",
    "--max-lora-rank=64",
    "--enable-prompt-tokens-details",
    "--host",
    "0.0.0.0",
    "--port=8100",
    "--served-model-name",
    "base",
    "other",
    "-tp",
    "2",
    "-pp=3",
    "--allowed-media-domains",
    "cdn.example.com",
    "media.internal",
]


def test_what_is_given_is_left_as_it_is_and_understood():
    environ = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "30", "VLLM_MAX_STOP_STRINGS": "64"}
    launch = plan(*SERVE, *GIVEN, environ=environ)
    assert launch.command == (*SERVE, *GIVEN)
    assert launch.environment == {
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_MEDIA_URL_ALLOW_REDIRECTS": "0",
        "VLLM_USE_RUST_FRONTEND": "0", "VLLM_REQUEST_BODY_LOG_LEVEL": "NOTSET",
    }  # fmt: skip
    assert launch.names == ("base", "other")
    assert (launch.slots, launch.cpu_slots, launch.max_rank) == (4, 9, 64)
    assert (launch.host, launch.port, launch.gpus) == ("0.0.0.0", 8100, 6)


def test_cpu_slots_are_as_many_as_slots_unless_given():
    assert plan(*SERVE, "--max-loras", "5").cpu_slots == 5


@pytest.mark.parametrize("name", engine_flags.REFUSED)
def test_refused_flags(name):
    for words in ((f"--{name}",), (f"--{name}=x",), (f"--{name.replace('-', '_')}", "x")):
        assert f"--{name} is refused: {engine_flags.REFUSED[name]}." in refusal(*SERVE, *words)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--api-server-count 2", "api-server-count 2"),
        ("-asc 4", "api-server-count 4"),
        ("--api_server_count=0", "api-server-count 0"),
        ("--data-parallel-size 2", "data-parallel-size 2"),
        ("-dp=2", "data-parallel-size 2"),
        ("-dpn 1", "data-parallel-rank is"),
        ("--nnodes 2", "nnodes 2"),
        ("-n2", "nnodes 2"),
        ("--node-rank 1", "node-rank 1"),
        ("--distributed-executor-backend ray", "distributed-executor-backend ray"),
        ("--max-logprobs 4", "max-logprobs 4 is refused: a loaded version is verified by its 5 likeliest"),
        ("--max_logprobs=0", "max-logprobs 0 is refused"),
        ("--max-logprobs -2", "max-logprobs -2 is refused"),
        ("--max-logprobs many", "max-logprobs many is refused"),
        ("--max-logprobs", "max-logprobs (nothing) is refused"),
        ("--logprobs-mode raw_logits", "logprobs-mode raw_logits is refused"),
        ("--lora-modules a=/x b=/y", "lora-modules is"),
        ("--default-mm-loras.image /x", "default-mm-loras is"),
    ],
)
def test_values_that_would_break_it(words, name):
    assert f"--{name}" in refusal(*SERVE, *words.split())


@pytest.mark.parametrize(
    "words",
    ["--api-server-count 1", "-dp 1", "--nnodes=1", "--distributed-executor-backend mp", "-r0",
     "--max-logprobs 5", "--max-logprobs=20", "--max-logprobs -1", "--logprobs-mode processed_logprobs"],
)  # fmt: skip
def test_values_that_do_not(words):
    assert plan(*SERVE, *words.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--max-loras 2 --max-loras 4", "--max-loras is given more than once, as 2, 4"),
        ("--max-loras 2 --max_loras=4", "--max-loras is given more than once, as 2, 4"),
        ("-tp 2 --tensor-parallel-size=4", "--tensor-parallel-size is given more than once"),
        ("--enable-lora --no-enable-lora", "--no-enable-lora is refused"),
        ("--max-loras 8 --max-cpu-loras 4", "--max-cpu-loras 4 is less than --max-loras 8"),
        ("--max-loras many", "--max-loras many is not a number above 0"),
        ("--max-loras 0", "--max-loras 0 is not"),
        ("--max-loras", "--max-loras (nothing) is not"),
        ("--port 0", "--port 0 is not"),
        ("--api-k x", "--api-k abbreviates --api-key"),
        ("--lora-mod a=b", "--lora-mod abbreviates --lora-modules"),
        ("--enable-lor", "--enable-lor abbreviates --enable-lora"),
        ("-as 2", "-as abbreviates -asc"),
        ("-- --api-key x", "a second `--`"),
        ("--config=x.yaml", "vLLM ignores --config=FILE"),
        ("--model /models/other", "the model is given twice"),
    ],
)
def test_what_is_not_clear_is_asked_back(words, said):
    assert said in refusal(*SERVE, *words.split())


def test_the_same_twice_is_clear():
    assert plan(*SERVE, "--max-loras", "2", "--max_loras=2").slots == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, (values, _) in engine_flags.EXCEPT.items() for value in values],
)
def test_refused_values(name, value):
    for written in (value, value.replace("_", "-")):
        assert f"--{name} {value} is refused: " in refusal(*SERVE, f"--{name}={written}")
    assert plan(*SERVE, f"--{name}", "auto")


@pytest.mark.parametrize("name", engine_flags.PASSED)
def test_what_is_passed_is_passed_as_it_is(name):
    command = (*SERVE, f"--{name}", "x")
    assert plan(*command).command[: len(command)] == command


def test_prompts_do_not_get_into_the_engines_log():
    command = (*SERVE, "--enable-log-requests")
    assert "would contain prompts" in refusal(*command, environ={"VLLM_LOGGING_LEVEL": "debug"})
    assert plan(*command, environ={"VLLM_LOGGING_LEVEL": "INFO"})


@pytest.mark.parametrize(
    "command",
    [(), ("vllm",), ("vllm", "bench", "x"), ("bash", "-c", "vllm serve /m"), ("serve",),
     ("python", "vllm.entrypoints.openai.api_server", "--model", "/m")],
    ids=" ".join,
)  # fmt: skip
def test_a_command_that_is_no_engine_is_refused(command):
    assert "vllm serve MODEL" in refusal(*command)


@pytest.mark.parametrize("command", [("vllm", "serve"), ("vllm", "serve", "--max-loras", "2"), MODULE[:3]])
def test_without_a_model_it_is_asked_for(command):
    assert "the model is missing" in refusal(*command)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_SERVER_DEV_MODE", "1"),
        ("VLLM_LORA_RESOLVER_CACHE_DIR", "/adapters"),
        ("VLLM_LORA_RESOLVER_HF_REPO_LIST", "org/x"),
        ("VLLM_PLUGINS", "a,lora_hf_hub_resolver"),
        ("VLLM_SKIP_MODEL_NAME_VALIDATION", "true"),
        ("VLLM_USE_RUST_FRONTEND", "1"),
        ("VLLM_REQUEST_BODY_LOG_LEVEL", "info"),
        ("VLLM_REQUEST_BODY_LOG_LEVEL", "DEBUG"),
        ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "0"),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "2"),
        ("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "soon"),
        ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "1"),
        ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", ""),
    ],
)
def test_variables_that_would_break_it(name, value):
    said = refusal(*SERVE, environ={name: value})
    assert f"{name} in the environment is refused" in said
    assert "secret" not in said
    assert name in refusal("env", f"{name}={value}", *SERVE)


@pytest.mark.parametrize(
    ("name", "value"),
    [("VLLM_SERVER_DEV_MODE", "0"), ("VLLM_PLUGINS", "mine"), ("VLLM_SKIP_MODEL_NAME_VALIDATION", "0"),
     ("VLLM_USE_RUST_FRONTEND", "0"), ("VLLM_REQUEST_BODY_LOG_LEVEL", "notset"),
     ("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "True"), ("VLLM_API_KEY", ""),
     ("VLLM_MEDIA_URL_ALLOW_REDIRECTS", "0")],
)  # fmt: skip
def test_variables_that_do_not(name, value):
    assert plan(*SERVE, environ={name: value})


def test_a_key_that_is_refused_is_not_repeated():
    said = refusal(*SERVE, "--api-key", "secret1", "--api-key", "secret2")
    assert "--api-key is given more than once" in said
    assert "secret" not in said


TLS = ("--ssl-certfile", "c.pem", "--ssl-keyfile", "k.pem")
MUTUAL = (*TLS, "--ssl-ca-certs", "ca.pem", "--ssl-cert-reqs", "2")


@pytest.mark.parametrize(
    ("words", "environ", "tls", "mutual", "key"),
    [
        ((), {}, False, False, ""),
        (TLS, {}, True, False, ""),
        (
            (*TLS, "--ssl-cert-reqs", "0", "--enable-ssl-refresh", "--ssl-ciphers", "HIGH"),
            {},
            True,
            False,
            "",
        ),
        (MUTUAL, {}, True, True, ""),
        (("--api-key", "k1", "k2"), {}, False, False, "k1"),
        (TLS, {"VLLM_API_KEY": "k3"}, True, False, "k3"),
        (("--api-key", "k1"), {"VLLM_API_KEY": "k3"}, False, False, "k1"),  # as vLLM does
    ],
)
def test_tls_and_keys_go_through(words, environ, tls, mutual, key):
    launch = plan(*SERVE, *words, environ=environ)
    assert (launch.tls, launch.mutual, launch.api_key) == (tls, mutual, key)
    assert launch.command[: len(SERVE) + len(words)] == (*SERVE, *words)
    assert not key or key not in repr(replace(launch, command=()))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (TLS[:2], "belong together"),
        (TLS[2:], "belong together"),
        (("--ssl-ca-certs", "ca.pem"), "--ssl-ca-certs has no effect without"),
        (("--ssl-cert-reqs", "2"), "--ssl-cert-reqs has no effect without"),
        (("--enable-ssl-refresh",), "--enable-ssl-refresh has no effect without"),
        ((*TLS, "--ssl-ca-certs", "ca.pem"), "accepts clients without a certificate"),
        ((*TLS, "--ssl-ca-certs", "ca.pem", "--ssl-cert-reqs", "1"), "accepts clients without a certificate"),
        ((*TLS, "--ssl-cert-reqs", "2"), "needs --ssl-ca-certs"),
        ((*TLS, "--ssl-cert-reqs", "1"), "--ssl-cert-reqs 1 is refused"),
        ((*TLS, "--ssl-cert-reqs", "yes"), "--ssl-cert-reqs yes is refused"),
        (("--api-key",), "--api-key needs a key"),
    ],
)
def test_half_of_tls_is_refused(words, said):
    assert said in refusal(*SERVE, *words)


def test_all_reasons_come_at_once():
    said = refusal(
        *SERVE, "--headless", "--uds", "/s", "--max-loras", "0", environ={"VLLM_SERVER_DEV_MODE": "1"}
    )
    assert len(said.splitlines()) == 4


CONFIG = """
served_model_name: [base, other]
max-loras: 4
enable-lora: true
port: 9000
compilation-config: {level: 3}
"""


def test_a_config_file_is_read_and_the_command_line_wins():
    launch = plan(*SERVE, "--config", "c.yaml", "--port", "9001", config=CONFIG)
    assert (launch.slots, launch.port, launch.names) == (4, 9001, ("base", "other"))
    added = " ".join(launch.command)
    assert "--enable-lora" not in added
    assert "--max-loras" not in added


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("enable-lora: false", "--no-enable-lora is refused"),
        ("ssl-certfile: c.pem", "belong together"),
        ("lora-modules: ['a=/b']", "--lora-modules is refused"),
        ("data-parallel-size: 2", "--data-parallel-size 2 is refused"),
        ("a list", "is not a mapping"),
        ("a: [", "cannot be read"),
    ],
)
def test_what_a_config_file_says_is_refused_likewise(config, said):
    assert said in refusal(*SERVE, "--config", "c.yaml", config=config)


def test_the_model_may_stand_in_the_config_file():
    assert plan("vllm", "serve", "--config", "c.yaml", config="model: /models/base").model == "/models/base"


@pytest.mark.parametrize(
    ("flags", "tasks"),
    [
        ((), ("generate",)),
        (("--runner", "generate"), ("generate",)),
        (("--runner", "pooling"), ("embed", "score")),
        (("--runner=pooling", "--convert=embed"), ("embed", "score")),
        (("--runner", "pooling", "--convert", "classify"), ("score",)),
    ],
)
def test_the_flags_say_what_an_engine_is_for(flags, tasks):
    assert plan(*SERVE, *flags).tasks == tasks
