"""florin engine run: runs one engine under systemd or in a pod."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gateway.commands.client import Json, UsageError
from gateway.commands.options import with_options
from gateway.commands.output import clean, note
from gateway.commands.session import HostKeyFile, Session, command
from gateway.fleet.engines.commands.enrolling import TokenFile, check_name, host_key
from gateway.fleet.engines.schemas.registration import NewEngine

app = typer.Typer()


@command(app, "run", key_file=HostKeyFile)
@with_options(NewEngine, only=("region", "purchase", "labels", "tenant", "host", "prompt_scores", "trial"))
def run(
    session: Session,
    engine_command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND…", help="vllm serve MODEL, with vLLM's own flags.")
    ],
    *,
    name: Annotated[str, typer.Option(help="1 to 63 of a-z, 0-9, - and _; unique among engines.")],
    gpu_type: Annotated[
        str | None,
        typer.Option(help="GPU type, as named in the price book. Default: detected through NVML."),
    ] = None,
    gpu_count: Annotated[
        int | None, typer.Option(min=1, help="Number of GPUs. Default: from the engine's parallel sizes.")
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(
            help="URL at which the gateway reaches the engine. Default: this host's address towards it."
        ),
    ] = None,
    cache_dir: Annotated[
        Path | None, typer.Option(help="Directory of cached versions. Default: ~/.cache/florin/engines/NAME.")
    ] = None,
    cache_size: Annotated[
        str,
        typer.Option("--cache-size", "--cache-bytes", help="Maximum size of the cache: 500MB, 20GB."),
    ] = "20GB",
    drain_timeout: Annotated[
        float, typer.Option(min=0, help="Seconds for running requests to finish after SIGTERM.")
    ] = 120.0,
    start_timeout: Annotated[
        float, typer.Option(min=1, help="Seconds for the engine to become healthy before it is restarted.")
    ] = 1800.0,
    agent_host: Annotated[
        str | None, typer.Option(help="Address on which the agent listens for the gateway.")
    ] = None,
    agent_port: Annotated[
        int, typer.Option(min=0, max=65535, help="The agent's port; 0 picks a free one.")
    ] = 0,
    token_file: TokenFile = None,
    merge: Annotated[
        str | None,
        typer.Option(
            metavar="TENANT/NAME@VERSION",
            help="Merge this version into the base model, a directory, and serve it and nothing else.",
        ),
    ] = None,
    pass_env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Pass this variable to the engine, besides those that vLLM and its libraries know. A prefix "
            "like `AWS_*` is allowed. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the engine's command and environment without starting it."),
    ] = False,
    changes: Json,
) -> None:
    """Run an engine and register it with the gateway, until SIGTERM or Ctrl-C. SIGHUP restarts the agent
    itself, for example after an upgrade, while its engine keeps serving.

    Adds the flags that Florin needs and refuses those that would break it. Restarts the engine if it dies,
    caches adapter files on this host, and drains before it stops; a second signal stops it at once. The first
    start exchanges an enrolment token (--token-file) for the host's own key. Exit codes: 0 stopped as
    requested, 1 could not start, 2 usage, 3 no gateway accepted the token.

    Example: florin engine run --name a1 -- vllm serve /models/llama-8b --served-model-name llama-8b
    --max-loras 8
    """
    from adapters.engine_agent import addresses, engine_environment, engine_flags, gpus
    from adapters.engine_agent.engine_command import CommandRefusedError
    from adapters.engine_agent.handover import AgentHandover
    from adapters.engine_agent.state import HostConfig
    from gateway.fleet.engines.commands import host as engine_host
    from gateway.fleet.engines.commands import host_security
    from gateway.observability import logs

    check_name(name)
    registered = NewEngine.model_construct(**changes)  # the gateway validates it
    try:
        route = engine_host.route(session.gateway)
        host, port = engine_host.advertised(advertise)
        launch = engine_flags.plan(
            engine_command,
            os.environ,
            host=addresses.to_bind(host) if host else route,
            port=port or engine_flags.DEFAULTS["port"],
            loads=merge is None,
        )
        on = gpus.find(
            gpus.read_products(),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            engine=launch.gpus,
            gpu_type=gpu_type,
            gpu_count=gpu_count,
        )
        cache_bytes = engine_host.size(cache_size)
    except gpus.GpuError as error:
        raise UsageError(str(error)) from error
    except CommandRefusedError as error:
        raise UsageError("Invalid engine command:\n" + "\n".join(error.reasons)) from error
    given, withheld = engine_environment.split(os.environ, pass_env or ())
    if dry_run:
        if on.note:
            note(on.note)
        session.result(
            engine_host.shown(launch, on) | {"withheld": list(withheld)},
            lambda _: engine_host.show_dry(launch, on),
        )
        return
    if session.key_on_command_line:
        raise UsageError(
            "--operator-key exposes the key to every process on this host: put it in a file (--key-file)."
        )
    handed = engine_host.concealed(given, withheld)
    engine_host.begin_log()
    key = host_key(session, name, token_file, handed)
    if on.note:
        note(on.note)
    if withheld:
        names = clean(" ".join(withheld))
        note(f"withheld from the engine: {names} (pass what it needs with --pass-env NAME)")
    engine_host.note_additions(launch)
    security = host_security.of(launch, advertise, api_url=session.gateway)
    cache = cache_dir or engine_host.cache_home() / name
    engine_argv = engine_host.with_merged(
        launch, session.gateway, key, security, name=name, version=merge, cache=cache
    )
    scheme = "https" if launch.tls else "http"
    reached = host or (route if launch.host in addresses.ANYWHERE else launch.host)
    own = "127.0.0.1" if launch.host in addresses.ANYWHERE else launch.host
    hosted = HostConfig(
        name=name,
        command=engine_argv,
        serves=merge or "",
        environ=given | launch.environment,
        model=launch.model,
        names=launch.names,
        slots=launch.slots,
        cpu_slots=launch.cpu_slots,
        max_rank=launch.max_rank,
        seats=launch.seats,
        prompt_scores=registered.prompt_scores or "",
        trial=registered.trial or 0,
        tasks=launch.tasks,
        chat_template=launch.chat_template,
        gpu_type=on.type,
        gpu_count=on.count,
        region=registered.region,
        purchase=registered.purchase,
        labels=registered.labels,
        tenant=registered.tenant,
        domain=registered.host,
        url=(advertise or f"{scheme}://{addresses.bracketed(reached)}:{launch.port}").rstrip("/"),
        own_url=f"{scheme}://{addresses.bracketed(own)}:{launch.port}",
        agent_host=agent_host or route,
        agent_port=agent_port,
        agent_address=host or (route if (agent_host or "") in addresses.ANYWHERE else agent_host or route),
        cache_dir=cache,
        cache_bytes=cache_bytes,
        drain_timeout=drain_timeout,
        start_timeout=start_timeout,
        on_line=partial(engine_host.engine_said, name) if logs.is_json() else None,
    )
    running = handed.pop(engine_host.RUNNING, "")
    agent = engine_host.Handed(handed, AgentHandover.of(running) if running else None)
    raise typer.Exit(engine_host.run(hosted, session.gateway, key, security, agent))
