"""What can be seen from the gateway of where engines may fetch from: for `florin doctor`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from adapters.reconcile.diagnosis import Diagnosis

_CHECK = "media_policy"


def media_exposure(hosts: Collection[str], by_agent: Mapping[str, bool]) -> Iterator[Diagnosis]:
    """`hosts`: FLORIN_MEDIA_HOSTS. `by_agent`: engine → whether `florin engine run` has started it."""
    if not hosts:
        yield Diagnosis(_CHECK, "ok", "", "No engine is asked to fetch media: FLORIN_MEDIA_HOSTS is empty.")
        return
    named = ", ".join(sorted(hosts))
    domains = " ".join(sorted({host.partition(":")[0] for host in hosts}))
    unseen = sorted(name for name, agent in by_agent.items() if not agent)
    for name in unseen:
        yield Diagnosis(
            _CHECK, "warning", name,
            f"Clients can have it fetch media from {named}, and it cannot be seen whether it follows "
            "redirects from there into your own network.",
            f"Start it with VLLM_MEDIA_URL_ALLOW_REDIRECTS=0 and --allowed-media-domains {domains}.",
        )  # fmt: skip
    if not unseen:
        yield Diagnosis(_CHECK, "ok", "", f"Engines fetch media from {named} only, without redirects.")
