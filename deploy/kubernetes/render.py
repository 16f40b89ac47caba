"""Lints the chart, renders it, and validates each object strictly. Runs in the environment of `validate`.

Values: the chart's own, and those in its `ci` folder. Writes what the latter render to, for the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import yaml

ERROR = 3
VERSIONS = ("1.30", "1.37")
"""Kubernetes' releases: the chart's oldest, and the newest with a schema."""


ENGINE = {
    "name": "a", "baseModel": "m/a", "gpuType": "L4", "gpus": 1, "replicas": 1, "resources": {},
}  # fmt: skip
REFUSED: dict[str, dict[str, Any]] = {
    "an unknown value": {"gateway": {"replica": 3}},
    "a setting that the chart sets": {"gateway": {"settings": {"FLORIN_LAME_DUCK": "1"}}},
    "an engine without a GPU type": {"engines": [{**ENGINE, "gpuType": ""}]},
    "a setting of Florin's for vLLM": {"engines": [{**ENGINE, "env": {"FLORIN_OPERATOR_KEY": "x"}}]},
    "a secret in place of a reference": {"secretName": "redis://user:password@host"},
    "a bucket with credentials": {"artifacts": {"bucket": "s3://key:secret@florin"}},
    "a certificate in place of a reference": {"engine": {"tls": {"secretName": "-----BEGIN CERTIFICATE"}}},
    "KEDA without a Prometheus": {
        "engines": [
            {**ENGINE, "autoscaling": {"enabled": True, "with": "keda", "minReplicas": 1, "maxReplicas": 2}}
        ]
    },
    "a label with a slash": {
        "engines": [
            {**ENGINE, "autoscaling": {"enabled": True, "with": "hpa", "minReplicas": 1, "maxReplicas": 2}}
        ]
    },
    "scaling to zero without KEDA": {
        "gateway": {"settings": {"FLORIN_ENGINE_START_TIMEOUT": 300}},
        "engines": [
            {
                **ENGINE,
                "baseModel": "a",
                "autoscaling": {"enabled": True, "with": "hpa", "minReplicas": 0, "maxReplicas": 2},
            }
        ],
    },
    "scaling to zero while no request waits for an engine": {
        "engines": [
            {
                **ENGINE,
                "autoscaling": {
                    "enabled": True,
                    "with": "keda",
                    "minReplicas": 0,
                    "maxReplicas": 2,
                    "prometheus": "http://prometheus",
                },
            }
        ]
    },
}


def objects(chart: Path, values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    with helm_python.Chart.load(chart) as loaded:
        rendered = loaded.render(values, name="florin", namespace="serving")
    for path in sorted(rendered):
        if path.endswith(".yaml"):
            yield from (document for document in yaml.safe_load_all(rendered[path]) if document)


def check(chart: Path, name: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the objects. Raises SystemExit, HelmError, or a validation error of kubernetes_validate."""
    report = helm_python.lint(chart, values, strict=True, namespace="serving", kube_version="v1.37.0")
    complaints = [m for m in report["messages"] if m["severity"] > 1]
    if report["errors"] or complaints:
        raise SystemExit(f"{name}: lint: {report['errors']} {complaints}")
    print(f"{name}: lint: no errors, no warnings")  # noqa: T201  # its output
    rendered = list(objects(chart, values))
    for document in rendered:
        title = f"{document['kind']}/{document['metadata']['name']}"
        try:
            used = dict.fromkeys(kubernetes_validate.validate(document, v, strict=True) for v in VERSIONS)
            print(f"{name}: {title}: valid ({', '.join(used)})")  # noqa: T201  # its output
        except kubernetes_validate.SchemaNotFoundError:
            print(f"{name}: {title}: rendered; no schema of {document['apiVersion']}")  # noqa: T201  # its output
    return rendered


def refuse(chart: Path) -> None:
    """Raises SystemExit if Helm accepts what it must not."""
    check(chart, "kept state", {"gateway": {"keepState": {"enabled": True, "storageClassName": "fast"}}})
    check(chart, "one engine", {"engines": [ENGINE]})  # it is what is added that is wrong
    check(chart, "controller", {"controller": {"enabled": True}})
    for name, values in REFUSED.items():
        try:
            list(objects(chart, values))
        except helm_python.HelmError:
            print(f"refused: {name}")  # noqa: T201  # its output
        else:
            raise SystemExit(f"accepted: {name}")


def main() -> None:
    chart, out, stamp = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    check(chart, "values.yaml", {})
    refuse(chart)
    full = chart / "ci" / "full-values.yaml"
    documents = check(chart, full.name, yaml.safe_load(full.read_text()))
    documents = [
        d for d in documents if d["kind"] != "CustomResourceDefinition"
    ]  # a file of the chart already
    text = yaml.safe_dump_all(documents, sort_keys=False, width=110)
    out.write_text(f"# Rendered by `python -m deploy.kubernetes.validate` from {stamp}: do not edit.\n{text}")


if __name__ == "__main__":
    main()
