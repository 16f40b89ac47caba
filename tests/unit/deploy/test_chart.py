"""The Helm chart: what it renders to fits Florin's settings, commands, routes and times.

Helm itself runs in tests/integration/test_chart.py; its output is committed and read here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from adapters.engine_agent.engine_flags import plan
from adapters.security.secret_files import read_key
from deploy.images import healthcheck
from deploy.kubernetes.validate import CHART, RENDERED, RESOURCES, stamp
from gateway.api import health
from gateway.commands.tree import loaded_tree
from gateway.config import Settings
from gateway.kubernetes.operations.definitions import manifest
from gateway.kubernetes.resource import GROUP, PLURALS
from gateway.metering.ledger import migrations
from gateway.observability.metric_names import AT_SCRAPE
from gateway.runtime.unknown_variables import unknown
from gateway.tenants.host_tokens import pins_by_subject
from tests.unit.deploy.test_autoscaling import check_query

OBJECTS: list[dict[str, Any]] = list(yaml.safe_load_all(RENDERED.read_text()))
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def of(kind: str) -> list[dict[str, Any]]:
    found = [one for one in OBJECTS if one["kind"] == kind]
    assert found
    return found


def pod(workload: dict[str, Any]) -> dict[str, Any]:
    return workload["spec"]["template"]["spec"]


GATEWAY, CONTROLLER = sorted(of("Deployment"), key=lambda one: one["metadata"]["name"])
ENGINES = of("StatefulSet")
WORKLOADS = [GATEWAY, *ENGINES]


def container(workload: dict[str, Any]) -> dict[str, Any]:
    [only] = pod(workload)["containers"]
    return only


def environment(workload: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in container(workload)["env"]}


def test_the_rendered_file_is_that_of_this_chart():
    """`python -m deploy.kubernetes.validate` after each change."""
    assert RENDERED.read_text().startswith(
        f"# Rendered by `python -m deploy.kubernetes.validate` from {stamp()}:"
    )


def test_the_variables_are_read():
    for workload in (*WORKLOADS, CONTROLLER):
        assert not list(unknown(environment(workload)))


def test_florin_accepts_the_gateway_s_settings(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    key = tmp_path / "operator-key"
    key.write_text("fl_operator\n")
    key.chmod(0o600)
    given = {name: value for name, value in environment(GATEWAY).items() if value}
    given |= {"FLORIN_OPERATOR_KEY_FILE": str(key), "FLORIN_HOST_ISSUER_CA": str(key)}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    assert settings.bootstrap_key == read_key(key)
    assert (settings.host, settings.port, settings.admin_port) == ("0.0.0.0", 8080, 8081)


def test_the_settings_that_the_chart_sets_cannot_be_given_besides():
    gateway = SCHEMA["properties"]["gateway"]["properties"]
    managed = set(gateway["settings"]["propertyNames"]["not"]["enum"])
    fields = {f"FLORIN_{name.upper()}" for name in Settings.model_fields}
    assert managed <= fields
    own = set(environment(GATEWAY)) & fields
    given = {  # by full-values.yaml
        "FLORIN_ACCESS_LOG", "FLORIN_SLO_TTFT", "FLORIN_ENGINE_START_TIMEOUT", "FLORIN_COST_WEBHOOK_SECRET",
    }  # fmt: skip
    assert own - given <= managed


def test_the_gateway_is_stopped_no_sooner_than_it_needs():
    settings = environment(GATEWAY)
    pre_stop = container(GATEWAY)["lifecycle"]["preStop"]["sleep"]["seconds"]
    needed = pre_stop + sum(
        int(settings[f"FLORIN_{name}"]) for name in ("LAME_DUCK", "SHUTDOWN_GRACE", "USAGE_GRACE")
    )
    assert pod(GATEWAY)["terminationGracePeriodSeconds"] >= needed + 10


def test_a_pod_whose_usage_log_goes_with_it_migrates_the_ledger_first():
    [state] = [volume for volume in pod(GATEWAY)["volumes"] if volume["name"] == "state"]
    assert "emptyDir" in state
    [first] = pod(GATEWAY)["initContainers"]
    python, flag, module = first["command"]
    assert (python, flag, module) == ("/opt/florin/bin/python", "-m", migrations.__name__)
    assert find_spec(f"{module}.__main__")
    [ledger] = [one for one in container(GATEWAY)["env"] if one["name"] == "FLORIN_LEDGER_URL"]
    assert first["env"] == [ledger]
    same = ("image", "imagePullPolicy", "securityContext")
    assert [first[name] for name in same] == [container(GATEWAY)[name] for name in same]


def test_a_load_balancer_notices_within_the_lame_duck():
    probe = container(GATEWAY)["readinessProbe"]
    notices = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert int(environment(GATEWAY)["FLORIN_LAME_DUCK"]) >= notices
    gateway = VALUES["gateway"]
    assert gateway["preStop"] + gateway["lameDuck"] >= VALUES["probePeriod"] * 2 + probe["timeoutSeconds"]


def options(workload: dict[str, Any]) -> dict[str, str]:
    args = container(workload)["args"]
    return dict(word.split("=", 1) for word in args[: args.index("--")])


@pytest.mark.parametrize("engine", ENGINES, ids=lambda one: one["metadata"]["name"])
def test_the_engine_s_command_is_understood(engine):
    run = loaded_tree().commands["engine"].commands["run"]
    args = container(engine)["args"]
    words = [re.sub(r"\$\((\w+)\)", "florin-a-0", word) for word in args]
    made = run.make_context("run", words)  # raises for unknown options and values out of range
    assert made.params["name"] == "florin-a-0"
    drain = float(options(engine)["--drain-timeout"])
    assert pod(engine)["terminationGracePeriodSeconds"] >= drain + 30


def test_an_engine_is_called_as_its_pod_and_enrols_with_its_pod_s_token_as_what_it_is():
    subjects = pins_by_subject(environment(GATEWAY)["FLORIN_HOST_SUBJECTS"])
    assert len(subjects) == len(ENGINES)
    for engine in ENGINES:
        account = pod(engine)["serviceAccountName"]
        assert account in {one["metadata"]["name"] for one in of("ServiceAccount")}
        pins = subjects[f"system:serviceaccount:serving:{account}"]
        given = options(engine)
        assert (pins.gpu_type, str(pins.gpu_count)) == (given["--gpu-type"], given["--gpu-count"])
        assert (pins.purchase, pins.region) == (given["--purchase"], given.get("--region"))
        assert given["--advertise"].startswith(
            f"https://{str(pins.address).replace('{engine}', '$(POD_NAME)')}:"
        )
        [source] = next(v for v in pod(engine)["volumes"] if v["name"] == "identity")["projected"]["sources"]
        assert source["serviceAccountToken"]["audience"] == Settings().host_audience
        assert options(engine)["--name"] == "$(POD_NAME)"
        assert options(engine)["--host"] == "$(NODE_NAME)"
        assert "POD_NAME" in environment(engine)  # else it is not expanded


def probes(workload: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Paths and the names of ports."""
    ports = {str(port["containerPort"]): port["name"] for port in container(workload)["ports"]}
    for name, probe in container(workload).items():
        if name.endswith("Probe") and "exec" in probe:
            python, flag, module, port, path = probe["exec"]["command"]
            assert (python, flag, module) == ("/opt/florin/bin/python", "-m", healthcheck.__name__)
            assert probe["timeoutSeconds"] > healthcheck.TIMEOUT_S
            yield path, ports[port]
        elif name.endswith("Probe"):
            yield probe["httpGet"]["path"], probe["httpGet"]["port"]


def test_probes_ask_routes_that_exist_at_ports_that_are_open():
    routes = {route.path for route in health.router.routes}
    assert {path for path, _ in probes(GATEWAY)} == {"/healthz", "/readyz"} <= routes
    for workload in WORKLOADS:
        assert {port for _, port in probes(workload)} <= {p["name"] for p in container(workload)["ports"]}
    # vLLM's own, and the agent's (adapters/engine_agent/server.py)
    assert {one for engine in ENGINES for one in probes(engine)} == {
        ("/health", "engine"),
        ("/health", "agent"),
    }


@pytest.mark.parametrize("workload", [*WORKLOADS, CONTROLLER], ids=lambda one: one["metadata"]["name"])
def test_containers_are_confined(workload):
    security = container(workload)["securityContext"]
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert pod(workload)["securityContext"]["runAsNonRoot"] is True
    assert pod(workload)["automountServiceAccountToken"] is False
    image = "engine" if workload in ENGINES else "gateway"
    user = pod(workload)["securityContext"]["runAsUser"]
    assert f"USER {user}:" in Path(f"deploy/images/{image}.Containerfile").read_text()


@pytest.mark.parametrize("workload", [*WORKLOADS, CONTROLLER], ids=lambda one: one["metadata"]["name"])
def test_secrets_are_references_that_root_owns_and_florin_reads(workload):
    for variable in container(workload)["env"]:
        if re.search(r"TOKEN$|SECRET$|_KEY$|_URL$", variable["name"]) and "value" in variable:
            paths = {"FLORIN_URL", "FLORIN_TLS_KEY", "FLORIN_ENGINE_KEY"}
            assert variable["name"] in paths, variable
    for volume in pod(workload)["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["defaultMode"] == 0o440
    names = {mount["name"] for mount in container(workload)["volumeMounts"]}
    assert names == {volume["name"] for volume in pod(workload)["volumes"]}


def mounted(workload: dict[str, Any]) -> dict[str, str]:
    """Directories, and the Secrets that are mounted there."""
    secrets = {v["name"]: v["secret"]["secretName"] for v in pod(workload)["volumes"] if "secret" in v}
    mounts = container(workload)["volumeMounts"]
    return {m["mountPath"]: secrets[m["name"]] for m in mounts if m["name"] in secrets}


def certificate(workload: dict[str, Any]) -> dict[str, Any]:
    """The one in the Secret that is mounted there."""
    secrets = mounted(workload).values()
    [only] = [c for c in of("Certificate") if c["spec"]["secretName"] in secrets]
    return only


def test_gateways_and_engines_speak_mutual_tls_with_certificates_of_one_issuer():
    assert len({json.dumps(one["spec"]["issuerRef"]) for one in of("Certificate")}) == 1
    assert certificate(GATEWAY)["spec"]["usages"] == ["client auth"]
    ways = [(workload, "FLORIN_ENGINE_") for workload in WORKLOADS]
    ways += [(engine, "FLORIN_TLS_") for engine in ENGINES]
    for workload, variables in ways:
        files = {Path(environment(workload)[f"{variables}{part}"]) for part in ("CERT", "KEY")}
        ca = environment(workload)[f"{variables}{'CLIENT_' * (variables == 'FLORIN_TLS_')}CA"]
        assert {path.name for path in files} | {Path(ca).name} == {"tls.crt", "tls.key", "ca.crt"}
        [directory] = {path.parent for path in files} | {Path(ca).parent}
        assert mounted(workload)[str(directory)] == certificate(workload)["spec"]["secretName"]


def test_an_engine_is_called_at_a_name_that_its_certificate_alone_covers():
    services = {one["metadata"]["name"]: one["spec"] for one in of("Service")}
    for engine in ENGINES:
        service = engine["spec"]["serviceName"]
        assert services[service]["publishNotReadyAddresses"] is True  # it registers before it is ready
        url = urlsplit(options(engine)["--advertise"].replace("$(POD_NAME)", f"{service}-0"))
        assert url.hostname == f"{service}-0.{service}.serving.svc"
        assert (url.scheme, url.port) == ("https", services[service]["ports"][0]["port"])
        own = certificate(engine)["spec"]
        assert own["dnsNames"] == [f"*.{url.hostname.partition('.')[2]}"]
        assert set(own["usages"]) == {"server auth", "client auth"}  # an agent calls its engine


def test_an_engine_asks_its_clients_for_certificates():
    for engine in ENGINES:
        args = container(engine)["args"]
        launch = plan(args[args.index("--") + 1 :], {}, host="10.0.0.5", port=8000)
        assert launch.mutual


def matches(selector: dict[str, Any], workload: dict[str, Any]) -> bool:
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return selector.get("matchLabels", selector).items() <= labels.items()


def test_only_gateways_reach_engines():
    policy = next(one for one in of("NetworkPolicy") if one["metadata"]["name"].endswith("-engines"))
    assert all(matches(policy["spec"]["podSelector"], engine) for engine in ENGINES)
    assert not matches(policy["spec"]["podSelector"], GATEWAY)
    [rule] = policy["spec"]["ingress"]
    let_in = rule["from"][0]["podSelector"]
    assert matches(let_in, GATEWAY)
    assert not any(matches(let_in, engine) for engine in ENGINES)
    assert rule["from"][1:] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]  # what full-values.yaml adds
    open_ports = {port["name"] for engine in ENGINES for port in container(engine)["ports"]}
    assert {port["port"] for port in rule["ports"]} == open_ports


def test_engines_and_prometheus_reach_the_admin_port():
    policy = next(one for one in of("NetworkPolicy") if one["metadata"]["name"].endswith("-gateway"))
    assert matches(policy["spec"]["podSelector"], GATEWAY)
    [admin] = [rule for rule in policy["spec"]["ingress"] if rule["ports"][0]["port"] == "admin"]
    assert all(matches(admin["from"][0]["podSelector"], engine) for engine in ENGINES)
    [monitor] = of("ServiceMonitor")
    selector = monitor["spec"]["selector"]["matchLabels"].items()
    [service] = [one for one in of("Service") if selector <= one["metadata"]["labels"].items()]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"] == "admin"
    assert {environment(engine)["FLORIN_URL"] for engine in ENGINES} == {
        f"https://{service['metadata']['name']}.serving.svc:{service['spec']['ports'][0]['port']}"
    }


def test_selectors_find_their_own_workload_alone():
    for kind in ("PodDisruptionBudget", "Service"):
        for one in of(kind):
            selected = one["spec"]["selector"]
            found = [w["metadata"]["name"] for w in WORKLOADS if matches(selected, w)]
            assert found == [one["metadata"]["name"].removesuffix("-admin")]


def test_the_resources_are_those_of_the_models():
    """`python -m deploy.kubernetes.validate` writes them."""
    assert RESOURCES.read_text() == manifest()


def test_the_controller_is_itself_at_gateways_and_at_the_api_server():
    context = (
        loaded_tree().commands["controller"].make_context("controller", container(CONTROLLER)["args"][1:])
    )
    account = pod(CONTROLLER)["serviceAccountName"]
    assert environment(GATEWAY)["FLORIN_CONTROLLER_SUBJECT"] == f"system:serviceaccount:serving:{account}"
    assert environment(CONTROLLER)["FLORIN_URL"] == environment(ENGINES[0])["FLORIN_URL"]
    volumes = {volume["name"]: volume for volume in pod(CONTROLLER)["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container(CONTROLLER)["volumeMounts"]}
    [identity] = mounts[str(context.params["key_file"].parent)]["projected"]["sources"]
    assert identity["serviceAccountToken"]["audience"] == Settings().host_audience
    own = mounts["/var/run/secrets/kubernetes.io/serviceaccount"]["projected"]["sources"]
    assert "audience" not in own[0]["serviceAccountToken"]


def test_the_controller_may_do_no_more_than_it_does():
    [role], [binding] = of("Role"), of("RoleBinding")
    assert binding["subjects"][0]["name"] == pod(CONTROLLER)["serviceAccountName"]
    allowed = {
        (verb, resource) for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    }
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {GROUP}
    read = {(verb, plural) for verb in ("get", "list", "watch") for plural in PLURALS.values()}
    finalizers = {("patch", PLURALS[kind]) for kind in ("Tenant", "LoraAdapter")}
    assert allowed == read | finalizers | {("patch", f"{plural}/status") for plural in PLURALS.values()}


def test_engines_scale_to_what_is_wanted_and_name_no_replicas_themselves():
    assert all("replicas" not in engine["spec"] for engine in ENGINES)
    [scaled] = of("ScaledObject")
    check_query(scaled["spec"]["triggers"][0]["metadata"]["query"])
    metric = "florin_engines_wanted"
    names = {engine["metadata"]["name"] for engine in ENGINES}
    external = [one for one in of("HorizontalPodAutoscaler") if one["metadata"]["name"] in names]
    [asked] = external[0]["spec"]["metrics"]
    assert asked["external"]["metric"]["name"] == metric
    assert tuple(asked["external"]["metric"]["selector"]["matchLabels"]) == AT_SCRAPE[metric]
    assert {one["spec"]["scaleTargetRef"]["name"] for one in [scaled, *external]} == names


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if schema.get("type") == "object":
            yield schema
        for value in schema.values():
            yield from schemas(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from schemas(value)


def test_the_schema_lets_nothing_unknown_through():
    loose = [one for one in schemas(SCHEMA) if "additionalProperties" not in one]
    assert loose == [{"type": "object"}]  # `global`, which Helm adds
    assert SCHEMA["properties"].keys() - {"global"} == VALUES.keys()
    for section in ("gateway", "artifacts", "engine", "controller", "networkPolicy", "serviceMonitor"):
        assert SCHEMA["properties"][section]["properties"].keys() == VALUES[section].keys()
