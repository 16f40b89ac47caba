"""The comparison on real engines: what it sends, and what it makes of what it saw."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from deploy.demo.model import DemoModel
from loadtests.placement.callers import ADAPTERS, WORKLOADS, Run, questions
from loadtests.placement.prefixes import KINDS, LONGEST, dialogues
from loadtests.placement.report import figures, summary

MODEL = DemoModel(Path(), "base", "", 8, ("Hello!", "Who are you?"), {})


@pytest.mark.parametrize("workload", WORKLOADS)
def test_every_policy_is_sent_the_same(workload: str):
    asked = questions(MODEL, workload, 400, seed=3)
    assert asked == questions(MODEL, workload, 400, seed=3) != questions(MODEL, workload, 400, seed=4)
    chosen = Counter((q.tenant, q.adapter) for q in asked)
    assert set(chosen) == set(ADAPTERS)
    assert (chosen.most_common(1)[0][1] > 200) == (workload == "hot")


@pytest.mark.parametrize("name", KINDS)
def test_every_gateway_has_the_same_dialogues(name: str):
    had = dialogues(KINDS[name], 60, seed=3)
    assert had == dialogues(KINDS[name], 60, seed=3) != dialogues(KINDS[name], 60, seed=4)
    assert sum(len(dialogue.turns) for dialogue in had) == 60
    assert len({dialogue.beginning for dialogue in had}) < len(had), "some share what they begin with"
    assert max(len(d.beginning) + sum(map(len, d.turns)) for d in had) < 1.6 * LONGEST


def test_ratios_are_those_of_each_round():
    def measured(seconds: float, first_token: float) -> dict[str, float]:
        return figures(Run(seconds, [first_token] * 3, Counter(e0=3, e1=1)), loads=2, evictions=1, undone=1)

    found = summary(
        {"cost": [measured(2, 0.1), measured(4, 0.4)], "random": [measured(4, 0.2), measured(4, 0.2)]}
    )
    assert found["cost"]["busier_engine"] == 0.75
    assert found["cost"]["loads_per_thousand"] == 500
    assert found["cost"]["evictions_per_thousand"] == 250
    assert found["cost"]["undone"] == 0.333
    assert found["cost"]["throughput_ratio"] == {"median": 1, "least": 1, "most": 1}
    assert found["random"]["throughput_ratio"] == {"median": 1.5, "least": 1, "most": 2}
    assert found["random"]["ttft_p99_ratio"] == {"median": 1.25, "least": 0.5, "most": 2}
