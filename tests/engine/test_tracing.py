"""One trace from the client's span to vLLM's own, of a request whose adapter has to be loaded first."""

from __future__ import annotations

from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.propagate import inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from deploy.demo.engines import Fleet
from deploy.demo.model import DemoModel
from tests.engine.conftest import SETTINGS, add_adapter, add_tenant, register
from tests.support.collector import Collector, attributes
from tests.support.harness import running_gateway
from tests.support.waiting import until


async def test_a_cold_request_is_one_trace_down_to_vllm(
    clean_fleet: Fleet,
    demo_model: DemoModel,
    collector: Collector,
    tmp_path: Path,
    valkey_url: str,
    prefix: str,
):
    provider = TracerProvider(sampler=ALWAYS_ON)
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{collector.url}/v1/traces")))
    traced = {"traces_to": collector.url, "trace_clients": True, **SETTINGS}
    async with running_gateway(tmp_path / "state", valkey_url, prefix, **traced) as gateway:
        await register(gateway, clean_fleet.engines[0].url, demo_model.served_name)
        await add_tenant(gateway, "acme")
        await add_adapter(gateway, "acme/support", demo_model.adapters["acme"].path)
        headers: dict[str, str] = {}
        async with gateway.client("acme", timeout=120) as client:
            with provider.get_tracer("client").start_as_current_span("ask support") as span:
                inject(headers)
                trace = f"{span.get_span_context().trace_id:032x}"
                answer = await client.chat.completions.create(
                    model="support",
                    messages=[{"role": "user", "content": "Hi"}],
                    max_tokens=5,
                    extra_headers=headers,
                )
        await until(lambda: [s for s in collector.named("llm_request") if s.trace_id.hex() == trace])
    provider.shutdown()
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == trace}
    request, load = spans["POST /v1/chat/completions"], spans["load acme/support@v1"]
    attempt, engine = spans["chat support"], spans["llm_request"]
    assert request.parent_span_id == spans["ask support"].span_id
    assert load.parent_span_id == attempt.parent_span_id == request.span_id
    assert engine.parent_span_id == attempt.span_id
    said = attributes(engine)
    assert answer.usage is not None
    assert said["gen_ai.usage.prompt_tokens"] == answer.usage.prompt_tokens
    assert said["gen_ai.usage.completion_tokens"] == answer.usage.completion_tokens
