"""The simulator must count every request once, keep to the slots, repeat itself, and fit what was measured."""

from collections import Counter, OrderedDict
from dataclasses import replace

import numpy as np
import pytest

from adapters.placement.scheduling.figures import ENGINE_MODELS
from gateway.planning.simulator.course_figures import figures
from gateway.planning.simulator.engine_model import EngineModel
from gateway.planning.simulator.event_queue import Events
from gateway.planning.simulator.gateway_model import Simulation, Site
from gateway.planning.simulator.hardware import Hardware
from gateway.planning.simulator.simulated_request import Outcome, Request, Tier
from gateway.planning.simulator.workloads import WORKLOADS, generate
from loadtests.sim.capacity import capacity
from loadtests.sim.contestants import NAMES, contestant
from loadtests.sim.fit import fit
from loadtests.sim.public_trace import main as convert
from loadtests.sim.trace_file import COLUMNS, TraceError, read

SITE = Site(engines=3, slots=2, cpu_slots=6, workers=2)
BUSY = generate("W2", 12, 30, seed=1, adapters=40)
HARDWARE = Hardware.of()
CONTESTANTS = [
    *(name for name in NAMES if name not in {"dynamo-hrw", "dynamo-random"}),  # as mcf
    "cost+wait", "activity+direct", "activity+direct+cancel", "cost+probes",
]  # fmt: skip


def batches(simulation: Simulation) -> list[int]:
    """The most distinct adapters that ran at once, engine by engine."""
    most = []
    for engine in simulation.engines.values():
        running = Counter(r.adapter for _, _, r in engine._decoding)
        running.update(r.adapter for r in engine._prefilling)
        most.append(len(running))
    return most


# -- the whole


@pytest.mark.parametrize("fair_queue", [False, True])
@pytest.mark.parametrize("name", CONTESTANTS)
def test_every_request_ends_once_and_slots_are_never_exceeded(name, fair_queue):
    hardware = replace(HARDWARE, max_sequences=8)
    site = replace(SITE, fair_queue=fair_queue, hardware=hardware)
    simulation = Simulation(site, contestant(name), BUSY)
    ended = Counter()
    finish = simulation._finish
    simulation._finish = lambda request, outcome: (ended.update([id(request)]), finish(request, outcome))
    slots = BUSY.adapter.max() if contestant(name).unlimited else SITE.slots
    for _ in simulation.steps():
        assert max(batches(simulation)) <= slots
        for engine in simulation.engines.values():
            assert len(engine._gpu) <= slots
            assert len(engine._cpu) <= max(SITE.cpu_slots, slots)
    course = simulation.course()
    assert set(ended.values()) == {1}
    assert len(ended) == len(course.requests) == len(BUSY)
    for request in course.requests:
        assert request.outcome is not None
        assert request.end >= request.arrival
        if request.outcome is Outcome.DONE:
            assert request.arrival <= request.first <= request.end
    assert all(engine.in_flight == 0 for engine in simulation.engines.values())
    for worker in simulation.workers:
        for view in worker.views.values():
            assert (view.in_flight, view.pending, view.waiting, view.uses) == (0, 0, 0, {})
        if worker.turns is not None:
            assert (worker.turns.queue.started, len(worker.turns.queue.waiting)) == (0, 0)


@pytest.mark.parametrize("name", ["cost", "random", "power_of_two", "landed"])
def test_the_same_seed_gives_the_same_figures(name):
    def run(seed):
        site = replace(SITE, slots=4)
        workload = generate("W1", 10, 20, seed)
        return figures(Simulation(site, contestant(name), workload).run(), site)

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_claims_keep_adapters_in_flight_within_the_slots_and_direct_ones_do_not():
    """What the engine skips is beyond its slots; with claims of one worker nothing is."""

    def skipped(name):
        simulation = Simulation(replace(SITE, workers=1), contestant(name), BUSY)
        return max(len(engine._skipped) for _ in simulation.steps() for engine in simulation.engines.values())

    assert skipped("cost") == 0
    assert skipped("power_of_two+direct") > 0


def test_a_request_is_refused_or_cancelled_at_its_deadline():
    course = Simulation(SITE, contestant("cost"), generate("W2", 60, 10, 1, adapters=40)).run()
    given_up = [r for r in course.requests if r.outcome is not Outcome.DONE]
    assert {r.outcome for r in given_up} == {Outcome.REFUSED, Outcome.CANCELLED}
    assert all(r.end == pytest.approx(r.arrival + SITE.slo_ttft) for r in given_up)
    assert all(r.ttft <= SITE.slo_ttft for r in course.requests if r.outcome is Outcome.DONE)


def test_a_hot_adapter_gets_replicas_under_cost_and_none_under_the_landed_policy():
    site = Site(engines=4, slots=4, cpu_slots=16)
    workload = generate("hot", 16, 60, seed=1, adapters=20)

    def engines_of_the_hot_one(name):
        course = Simulation(site, contestant(name), workload).run()
        late = [r for r in course.requests if r.adapter == "a0" and r.arrival > 30]
        return len({r.engine for r in late})

    assert engines_of_the_hot_one("landed") == 1
    assert engines_of_the_hot_one("cost") > 1


def test_capacity_is_the_rate_at_which_19_of_20_meet_their_objectives():
    site = Site(engines=2, slots=4)
    workload = generate("W1", 4, 60, seed=1)
    found = capacity(site, contestant("cost"), workload)

    def attainment(rate):
        scaled = workload.scaled(rate / (len(workload) / workload.arrival[-1]))
        return figures(Simulation(site, contestant("cost"), scaled).run(), site).attainment

    assert attainment(found) >= 0.95 > attainment(1.2 * found)


def test_the_bound_has_the_most_capacity():
    site = Site(engines=2, slots=2)
    workload = generate("W2", 4, 60, seed=1)
    found = {name: capacity(site, contestant(name), workload) for name in ("bound", "cost", "random+direct")}
    assert found["bound"] > found["cost"] > found["random+direct"]


# -- the engine


def engine(slots: int = 2, cpu_slots: int = 2, hardware: Hardware = HARDWARE) -> tuple[EngineModel, Events]:
    events = Events()
    return EngineModel("e", slots, cpu_slots, hardware, events, rank=16), events


def ask(adapter: str = "", prompt: int = 100, output: int = 11) -> Request:
    return Request(0.0, "t", adapter, 16, prompt, output)


def test_a_request_alone_takes_its_prompt_and_a_step_for_each_further_token():
    model, events = engine()
    request = ask()
    model.submit(request)
    events.until(60)
    assert request.first == pytest.approx(HARDWARE.step_seconds(1, 0, 100))
    assert request.end - request.first == pytest.approx(10 * HARDWARE.step_seconds(1, 0, 0))


def test_a_load_from_disk_stops_those_that_run():
    def took(load):
        model, events = engine()
        request = ask(output=1000)
        model.submit(request)
        events.until(1)
        if load:
            model.load("x", 16, lambda: None)
        events.until(600)
        return request.end

    seconds = HARDWARE.load_seconds(16) + HARDWARE.activate / 1000
    assert took(load=True) - took(load=False) == pytest.approx(seconds)


def test_an_adapter_beyond_the_slots_waits_until_another_has_left():
    model, events = engine(slots=1)
    first, second, third = ask("a", output=500), ask("b"), ask("a")
    for request in (first, second, third):
        model.submit(request)
    events.until(600)
    assert third.first < second.first, "a request for an adapter in the batch is not held up"
    assert second.first > first.end


def test_the_least_recently_used_adapter_leaves_the_gpu_and_then_cpu_memory():
    model, events = engine(slots=2, cpu_slots=3)
    for n, adapter in enumerate("abcd"):
        events.until(n * 10)
        model.submit(ask(adapter))
    events.until(60)
    assert [model.tier(a) for a in "abcd"] == [Tier.DISK, Tier.CPU, Tier.GPU, Tier.GPU]
    assert (model.loads, model.activations) == (4, 4)


def test_prompts_share_the_token_budget_of_a_step():
    model, events = engine()
    requests = [ask(prompt=HARDWARE.budget, output=1) for _ in range(3)]
    for request in requests:
        model.submit(request)
    events.until(60)
    assert requests[0].first < requests[1].first < requests[2].first


def test_no_more_is_admitted_than_fits_the_kv_cache():
    model, events = engine(hardware=replace(HARDWARE, kv_tokens=3000, slot_tokens=0, slot_tokens_per_rank=0))
    first, second = ask(prompt=1500, output=600), ask(prompt=1500, output=600)
    model.submit(first)
    model.submit(second)
    events.until(600)
    assert second.first > first.end


def test_a_stretch_of_steps_ends_early_for_a_newcomer():
    model, events = engine()
    model.submit(ask(output=1000))
    newcomer = ask()
    events.until(1.0)
    newcomer.arrival = events.now
    model.submit(newcomer)
    events.until(60)
    most = HARDWARE.step_seconds(1, 0, 0) + HARDWARE.step_seconds(2, 0, 100)
    assert newcomer.ttft <= most


def test_cancelled_requests_leave_nothing_behind():
    model, events = engine(slots=1)
    running, skipped = ask("a", prompt=9000), ask("b")
    model.submit(running)
    model.submit(skipped)
    events.until(0.01)
    model.cancel(skipped)
    model.cancel(running)
    last = ask("c")
    model.submit(last)
    events.until(60)
    assert running.first < 0
    assert skipped.first < 0
    assert last.end > 0
    assert (model.in_flight, model.distinct) == (0, 0)
    assert model._kv_free == HARDWARE.kv_left(1, 16)


@pytest.mark.parametrize("model", ENGINE_MODELS)
def test_the_models_err_by_no_more_than_stated(model):
    fitted = fit(model)
    assert len(fitted) == 56
    assert {f.point.what: f.error for f in fitted if abs(f.error) > f.point.stated} == {}


# -- workloads


def lru_hits(adapters: list[int], size: int) -> float:
    recent: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for adapter in adapters:
        hits += adapter in recent
        recent[adapter] = None
        recent.move_to_end(adapter)
        if len(recent) > size:
            recent.popitem(last=False)
    return hits / len(adapters)


def test_locality_has_the_reuse_that_was_measured():
    parts = [generate("W1", 40, 100, seed).adapter for seed in range(40)]
    reuse = np.mean([np.mean(part[1:] == part[:-1]) for part in parts])
    hits = np.mean([lru_hits(part.tolist(), 8) for part in parts])
    shuffled = [np.random.default_rng(1).permutation(part).tolist() for part in parts]
    shuffled_hits = np.mean([lru_hits(part, 8) for part in shuffled])
    counts = [np.sort(np.unique(part, return_counts=True)[1])[::-1] for part in parts]
    favourites = np.mean([count[:8].sum() / count.sum() for count in counts])
    assert reuse == pytest.approx(0.42, abs=0.02)
    assert hits == pytest.approx(0.83, abs=0.02)
    assert shuffled_hits == pytest.approx(0.29, abs=0.03)
    assert favourites == pytest.approx(0.46, abs=0.03)


@pytest.mark.parametrize("name", [name for name, generator in WORKLOADS.items() if not generator.flood])
def test_workloads_have_the_rate_and_lengths_that_were_asked_for(name):
    workload = generate(name, 20, 500, seed=5)
    mean = {"diurnal": 20 / 1.9, "flash": 20 * 0.46, "mixed": 20 * 0.49}.get(name, 20)
    assert len(workload) / 500 == pytest.approx(mean, rel=0.12)
    assert np.all(np.diff(workload.arrival) >= 0)
    assert workload.prompt.mean() == pytest.approx(1155, rel=0.05)
    assert np.median(workload.output) == pytest.approx(129, rel=0.05)
    assert workload.output.mean() == pytest.approx(211, rel=0.08)


# -- traces


def trace(tmp_path, *rows: str, header: str = ",".join(COLUMNS)):
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def test_a_trace_is_sorted_and_begins_at_zero(tmp_path):
    rows = "12.5,bolt,chat,8,100,20", "10.0,acme,chat,16,50,10", "11,acme,,0,5,5"
    requests = read(trace(tmp_path, *rows)).requests()
    assert [(r.arrival, r.tenant, r.adapter, r.rank) for r in requests] == [
        (0.0, "acme", "acme/chat", 16),
        (1.0, "acme", "", 0),
        (2.5, "bolt", "bolt/chat", 8),
    ]
    assert [(r.prompt, r.output) for r in requests] == [(50, 10), (5, 5), (100, 20)]


def test_a_trace_with_requests_to_the_base_model_runs(tmp_path):
    workload = read(trace(tmp_path, *(f"{n / 10},acme,{'chat' * (n % 2)},8,100,20" for n in range(40))))
    course = Simulation(Site(engines=2), contestant("cost"), workload).run()
    assert {r.outcome for r in course.requests} == {Outcome.DONE}


@pytest.mark.parametrize(
    "lines",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens|2023-11-16 18:15:46.6805900,374,44|2023-11-16 18:15:48.1805900,9,5",
        "TIMESTAMP,ContextTokens,GeneratedTokens|2024-05-10 00:00:00.5+00:00,374,44|2024-05-10 00:00:02+00:00,9,5",
        "Timestamp,Model,Request tokens,Response tokens|5,ChatGPT,374,44|6.5,GPT-4,9,5|7,GPT-4,300,0",
    ],
    ids=["Azure 2023", "Azure 2024", "BurstGPT"],
)
def test_a_public_trace_gets_adapters(tmp_path, lines):
    public, out = tmp_path / "public.csv", tmp_path / "out.csv"
    public.write_text(lines.replace("|", "\n"))
    convert(public, out, seconds=2)
    workload = read(out)
    assert workload.arrival.tolist() == pytest.approx([0.0, 1.5])
    assert (workload.prompt.tolist(), workload.output.tolist()) == ([374, 9], [44, 5])
    assert all(request.adapter for request in workload.requests())


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ("x,acme,chat,8,100,20", "line 3, column arrival_s: 'x'"),
        ("nan,acme,chat,8,100,20", "line 3, column arrival_s: 'nan'"),
        ("-1,acme,chat,8,100,20", "line 3, column arrival_s: '-1'"),
        ("1,,chat,8,100,20", "line 3, column tenant"),
        ("1,acme,chat,,100,20", "line 3, column rank: ''"),
        ("1,acme,chat,0,100,20", "line 3, column rank: '0'"),
        ("1,acme,chat,8,1.5,20", "line 3, column prompt_tokens: '1.5'"),
        ("1,acme,chat,8,100,0", "line 3, column output_tokens: '0'"),
        ("1,acme,chat,8,100", "line 3, column output_tokens: None"),
    ],
)
def test_errors_in_a_trace_name_line_and_column(tmp_path, row, where):
    with pytest.raises(TraceError, match=where):
        read(trace(tmp_path, "0,acme,chat,8,100,20", row))


def test_traces_without_a_column_requests_or_file_are_refused(tmp_path):
    with pytest.raises(TraceError, match="line 1: column rank is missing"):
        read(trace(tmp_path, header="arrival_s,tenant,adapter,prompt_tokens,output_tokens"))
    with pytest.raises(TraceError, match="no requests"):
        read(trace(tmp_path))
    with pytest.raises(TraceError, match="No such file"):
        read(tmp_path / "absent.csv")


# -- metrics


def test_unknown_policies_and_modifiers_are_named():
    with pytest.raises(ValueError, match="no policy 'best'; there are cost"):
        contestant("best")
    with pytest.raises(ValueError, match="no modifier 'fast'; there are direct"):
        contestant("cost+fast")
