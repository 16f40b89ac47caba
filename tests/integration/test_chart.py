"""The Helm chart by Helm's own code and Kubernetes' schemas, where their packages can be had."""

from __future__ import annotations

import subprocess

import pytest

from deploy.kubernetes.validate import RENDERED, check
from tests.support.missing import missing


@pytest.mark.long  # of one that has changed, `tests/unit/deploy/test_chart.py` says that it must be rendered again
def test_the_chart_is_valid_and_renders_to_what_the_tests_read(tmp_path):
    try:
        done = check(tmp_path / "rendered.yaml")
    except subprocess.CalledProcessError as error:
        missing(error)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "rendered.yaml").read_text() == RENDERED.read_text()
