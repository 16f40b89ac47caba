"""What an engine is given of its agent's environment."""

from __future__ import annotations

import pytest

from adapters.engine_agent.engine_environment import split


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LC_ALL", "HF_TOKEN", "HF_HOME", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "VLLM_LOGGING_LEVEL",
     "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TORCHDYNAMO_DISABLE", "https_proxy"],
)  # fmt: skip
def test_vllm_is_given_what_it_and_its_libraries_know(name):
    assert split({name: "x"}) == ({name: "x"}, ())


@pytest.mark.parametrize(
    "name",
    ["AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AZURE_CLIENT_SECRET",
     "FLORIN_OPERATOR_KEY", "FLORIN_ENGINE_TOKEN", "FLORIN_ENGINE_KEY_FILE", "FLORIN_URL", "DATABASE_URL",
     "GITHUB_TOKEN", "SSH_AUTH_SOCK", "OPENAI_API_KEY", "KUBERNETES_SERVICE_HOST", "XPATH"],
)  # fmt: skip
def test_other_secrets_and_all_else_are_withheld_by_name(name):
    assert split({name: "x"}) == ({}, (name,))


def test_what_an_operator_passes_is_given_but_never_florins_own():
    environ = {"AWS_REGION": "eu", "AWS_PROFILE": "p", "MINE": "m", "FLORIN_OPERATOR_KEY": "k", "OTHER": "o"}
    given, withheld = split(environ, ("AWS_*", "MINE", "FLORIN_*", "FLORIN_OPERATOR_KEY", "*KEY"))
    assert given == {"AWS_REGION": "eu", "AWS_PROFILE": "p", "MINE": "m"}
    assert withheld == ("FLORIN_OPERATOR_KEY", "OTHER")
