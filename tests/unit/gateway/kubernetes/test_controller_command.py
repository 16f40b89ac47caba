"""Where `florin controller` finds its cluster."""

from __future__ import annotations

import pytest

from gateway.commands.client import UsageError
from gateway.kubernetes.api_server import Cluster
from gateway.kubernetes.commands.controller import cluster_of


def test_a_pod_is_told_everything(tmp_path):
    (tmp_path / "namespace").write_text("serving")
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    assert cluster_of(environ, "", "", None, None, tmp_path) == Cluster(
        "https://[fd00::1]:6443", "serving", tmp_path / "token", tmp_path / "ca.crt"
    )


def test_elsewhere_it_has_to_be_said(tmp_path):
    url = "http://127.0.0.1:8001"
    assert cluster_of({}, url, "serving", None, None, tmp_path) == Cluster(url, "serving")
    with pytest.raises(UsageError, match="--api-server"):
        cluster_of({}, "", "serving", None, None, tmp_path)
    with pytest.raises(UsageError, match="--namespace"):
        cluster_of({}, url, "", None, None, tmp_path)
