"""florin controller"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.commands.client import UsageError
from gateway.commands.session import Session, command

if TYPE_CHECKING:
    from gateway.kubernetes.api_server import Cluster

app = typer.Typer()

_MOUNTED = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""What Kubernetes gives a pod."""


@command(app, "controller")
def controller(
    session: Session,
    *,
    api_server: Annotated[
        str, typer.Option(metavar="URL", help="Kubernetes' API server. Default: that of this pod's cluster.")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="Where the resources are. Default: this pod's namespace.")
    ] = "",
    api_token_file: Annotated[
        Path | None,
        typer.Option(help="Token for the API server. Default: this pod's; none with --api-server."),
    ] = None,
    api_ca_file: Annotated[
        Path | None,
        typer.Option(help="CA of the API server. Default: the cluster's; the system's with --api-server."),
    ] = None,
    resync: Annotated[
        float, typer.Option(min=1, help="Seconds after which everything is compared again.")
    ] = 60.0,
) -> None:
    """Bring the registry to what Tenant and LoraAdapter resources in Kubernetes say, until SIGTERM.

    Its key: role controller, or an operator's. With `kubectl proxy`, it runs outside of a cluster, too.

    Example: florin controller --api-server http://127.0.0.1:8001 --namespace serving
    """
    import asyncio

    from gateway.commands import log

    session.api  # noqa: B018  # complains of a URL or a key that cannot be used
    cluster = cluster_of(os.environ, api_server, namespace, api_token_file, api_ca_file)
    log.begin()
    try:
        asyncio.run(_run(session, cluster, resync))
    except OSError as error:
        raise UsageError(f"--api-ca-file: {error}.") from error


def cluster_of(
    environ: Mapping[str, str],
    url: str,
    namespace: str,
    token_file: Path | None,
    ca_file: Path | None,
    mounted: Path = _MOUNTED,
) -> Cluster:
    """What is not given is this pod's. Raises UsageError."""
    from gateway.kubernetes.api_server import Cluster

    if not url:
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise UsageError("This is no pod of a cluster: name its API server with --api-server.")
        url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        token_file, ca_file = token_file or mounted / "token", ca_file or mounted / "ca.crt"
    if not namespace:
        try:
            namespace = (mounted / "namespace").read_text().strip()
        except OSError as error:
            raise UsageError("--namespace is required outside of a pod.") from error
    return Cluster(url.rstrip("/"), namespace, token_file, ca_file)


async def _run(session: Session, cluster: Cluster, resync: float) -> None:
    """Raises OSError."""
    import asyncio
    import signal

    from gateway.kubernetes.api_server import ApiServer
    from gateway.kubernetes.commands.admin_api import AdminApi
    from gateway.kubernetes.operations.controller import Controller

    async with ApiServer.to(cluster) as server:
        task = asyncio.ensure_future(Controller(server, AdminApi(session), resync=resync).run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
