"""The demo's transcript: a sequence of scenes, each showing one property of Florin and checking it.

Customers use the official `openai` client, as their applications would.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import openai
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from deploy.demo.stack import ADAPTER, Customer, Installation
from deploy.demo.tables import (
    charge_table,
    charged_lines,
    cost_table,
    crowd_table,
    customer_table,
    placement_table,
)

MIXED_REQUESTS = 24
REQUEST_TIMEOUT_S = 120.0
CARD = {"name": "standard", "input_per_million": "2", "output_per_million": "6"}
CARD_LINE = {"name": "banking", "input_per_million": "5", "output_per_million": "15"}
"""For one adapter, which costs more than the base model and the others."""
COLORS = {"acme": "cyan", "bolt": "yellow", "corgi": "magenta"}


@dataclass(frozen=True, slots=True)
class Answer:
    customer: str
    kind: str
    text: str
    adapter: str
    """`x-florin-adapter`: the version that answered."""
    engine: str
    """`x-florin-engine`."""
    right: bool
    """Answered by the customer's own adapter, in its own words."""


@dataclass(slots=True)
class Transcript:
    installation: Installation
    console: Console
    failures: list[str] = field(default_factory=list)
    month: str = ""
    """In which the first questions were answered."""

    def play(self) -> bool:
        """Whether every check passed."""
        self.customers()
        self.listing()
        self.same_question()
        self.streaming()
        self.crowd()
        self.isolation()
        self.engine_death()
        self.placement()
        self.bill()
        self.statements()
        return not self.failures

    # -- scenes

    def customers(self) -> None:
        self.title("Three customers share one base model")
        self.say(
            "Each has fine-tuned its own LoRA adapter. Instead of one GPU fleet per customer, they share "
            "two vLLM engines with two adapter slots each; Florin decides which adapter is loaded where."
        )
        self.console.print(customer_table(self.installation.customers))

    def listing(self) -> None:
        self.title("A customer's application uses the openai client with a different base_url")
        for customer in self.installation.customers:
            with self.client(customer) as client:
                names = [model.id for model in client.models.list()]
            self.say(f"{customer.name} lists models: {', '.join(names)}")
            others = [n for n in names if "/" in n and not n.startswith(f"{customer.name}/")]
            self.expect(not others, f"{customer.name} sees other customers' adapters: {others}")
            self.expect(bool(names), f"{customer.name} sees no models")

    def same_question(self) -> None:
        question = "When will it arrive?"
        self.title(f"One question, one model name “{ADAPTER}”, three answers: “{question}”")
        for customer in self.installation.customers:
            began = time.monotonic()
            answer = self.chat(customer, question)
            milliseconds = (time.monotonic() - began) * 1000
            self.line(
                customer.name, answer.text, f"{answer.adapter} on {answer.engine}, {milliseconds:.0f} ms"
            )
            exact = answer.text == customer.adapter.answers[question]
            self.expect(answer.right and exact, f"{customer.name} got the answer “{answer.text}”")
        with self.client(self.installation.customers[0]) as client:
            plain = client.chat.completions.create(
                model=self.installation.model.served_name,
                messages=[{"role": "user", "content": question}],
                temperature=0,
            )
        text = plain.choices[0].message.content or ""
        self.line("base", text, "the base model, without an adapter")
        self.expect(text.startswith(self.installation.model.voice), f"The base model said “{text}”")
        self.month = f"{datetime.now(UTC):%Y-%m}"

    def streaming(self) -> None:
        customer = self.installation.customers[1]
        self.title(f"Streaming, for {customer.name}")
        began = time.monotonic()
        pieces: list[str] = []
        first = 0.0
        usage = None
        self.console.print(Text(f"  {customer.name:>6}  ", style=COLORS[customer.name]), end="")
        with self.client(customer) as client:
            stream = client.chat.completions.create(
                model=ADAPTER,
                messages=[{"role": "user", "content": "Tell me a story."}],
                temperature=0,
                stream=True,
                stream_options={"include_usage": True},
            )
            for chunk in stream:
                first = first or (time.monotonic() - began) * 1000
                usage = chunk.usage or usage
                if chunk.choices and (piece := chunk.choices[0].delta.content):
                    pieces.append(piece)
                    self.console.print(Text(piece), end="", soft_wrap=True)
        self.console.print()
        text = "".join(pieces)
        self.expect(text.startswith(customer.adapter.voice), f"the stream said “{text}”")
        self.expect(usage is not None, "the stream carried no usage")
        if usage:
            self.say(
                f"First event after {first:.0f} ms; {usage.completion_tokens} tokens in "
                f"{time.monotonic() - began:.1f} s. The counts are the engine's own."
            )

    def crowd(self) -> None:
        self.title(
            f"{MIXED_REQUESTS} requests at once: all customers, chats and completions, streamed and not"
        )
        answers, seconds = self.at_once(MIXED_REQUESTS)
        self.console.print(crowd_table(Counter((a.customer, a.kind, a.engine) for a in answers)))
        right = sum(a.right for a in answers)
        self.say(f"{right} of {MIXED_REQUESTS} answered by the right adapter, in {seconds:.1f} s.")
        self.expect(right == MIXED_REQUESTS, f"wrong answers: {[a for a in answers if not a.right]}")

    def isolation(self) -> None:
        thief, owner = self.installation.customers[1], self.installation.customers[0]
        self.title("Customers can neither use nor detect each other's adapters")
        refusals = [self.refusal(thief, model) for model in (owner.model, f"{owner.name}/nonsense")]
        for model, refusal in zip((owner.model, f"{owner.name}/nonsense"), refusals, strict=True):
            self.line(thief.name, f"calls {model}: {refusal}", "")
        self.expect(all(r.startswith("404") for r in refusals), f"not refused: {refusals}")
        same = refusals[0].replace(owner.model, "…") == refusals[1].replace(f"{owner.name}/nonsense", "…")
        self.expect(same, f"the two refusals differ: {refusals}")
        self.say("“Not yours” and “does not exist” get the same answer.")

    def engine_death(self) -> None:
        index = self._busiest()
        name = self.installation.engine_name(index)
        self.title(f"A GPU host dies: kill -9 of engine {name} during 12 requests")
        engine = self.installation.fleet.engines[index]
        answers, seconds = self.at_once(12, streams=False, disturb=engine.kill)
        right = sum(a.right for a in answers)
        self.say(f"{right} of 12 requests in flight were still answered, in {seconds:.1f} s.")
        self.expect(right == 12, f"lost: {[a for a in answers if not a.right]}")
        for customer in self.installation.customers:
            answer = self.chat(customer, "Who are you?")
            self.line(customer.name, answer.text, f"{answer.adapter} on {answer.engine}")
            self.expect(answer.right and answer.engine != name, f"{customer.name} after the death: {answer}")

    def placement(self) -> None:
        self.title("Where each adapter lives now")
        self.console.print(
            placement_table(self.installation.gateway.call("GET", "/admin/v1/placement")["data"])
        )

    def bill(self) -> None:
        self.title("Usage and cost of each customer, by GPU type (types and prices are made up)")
        for _ in range(120):  # seconds: engines' time is recorded every ten
            report = self.installation.gateway.call("GET", "/finance/v1/costs", by="tenant,adapter,gpu_type")
            idle = report["idle"]["totals"]["gpu_seconds"]
            if idle:
                break
            time.sleep(1)
        self.console.print(cost_table(report))
        self.expect(bool(idle), "no unused time of engines was recorded")
        billed = {row["tenant"] for row in report["rows"] if row["completion_tokens"]}
        missing = {c.name for c in self.installation.customers} - billed
        self.expect(not missing, f"no usage recorded for {missing}")

    def statements(self) -> None:
        self.title("What customers pay: two models at two prices, by a rate card (made up as well)")
        call, acme = self.installation.gateway.call, self.installation.customers[0]
        lines = [{**CARD_LINE, "adapter": acme.model}]
        call("POST", "/finance/v1/rate-cards", {**CARD, "lines": lines, "valid_from": self.month})
        standard = {"tenant": None, "card": CARD["name"], "valid_from": self.month}
        call("POST", "/finance/v1/rate-cards/assignments", standard)
        statements = [
            call("GET", f"/finance/v1/statements/{customer.name}", month=self.month, format="json")
            for customer in self.installation.customers
        ]
        self.console.print(charge_table(statements))
        prices = {(line["sku"], line["per_million"]) for line in charged_lines(statements[0])}
        both = {("tokens/output", "6.00"), ("tokens/output/banking", "15.00")}
        self.expect(both <= prices, f"{acme.name} pays {prices}")

    # -- customers' requests

    @contextmanager
    def client(self, customer: Customer) -> Iterator[openai.OpenAI]:
        base_url = f"{self.installation.gateway.url}/v1"
        with openai.OpenAI(
            base_url=base_url, api_key=customer.key, max_retries=0, timeout=REQUEST_TIMEOUT_S
        ) as client:
            yield client

    def chat(self, customer: Customer, question: str, kind: str = "chat") -> Answer:
        """Send one request; an error becomes a wrong answer."""
        try:
            with self.client(customer) as client:
                if kind == "chat":
                    return self._plain(client, customer, question)
                return self._completion(client, customer, question, stream=kind == "stream")
        except openai.OpenAIError as error:
            return Answer(customer.name, kind, f"{error}", "", "", right=False)

    def _plain(self, client: openai.OpenAI, customer: Customer, question: str) -> Answer:
        raw = client.chat.completions.with_raw_response.create(
            model=ADAPTER, messages=[{"role": "user", "content": question}], temperature=0
        )
        text = raw.parse().choices[0].message.content or ""
        return self._answer(customer, "chat", text, dict(raw.headers))

    def _completion(
        self, client: openai.OpenAI, customer: Customer, question: str, *, stream: bool
    ) -> Answer:
        if not stream:
            raw = client.completions.with_raw_response.create(
                model=ADAPTER, prompt=question, temperature=0, max_tokens=40
            )
            return self._answer(customer, "completion", raw.parse().choices[0].text, dict(raw.headers))
        with client.chat.completions.with_streaming_response.create(
            model=customer.model,
            messages=[{"role": "user", "content": question}],
            temperature=0,
            stream=True,
        ) as response:
            chunks = response.parse()
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            return self._answer(customer, "stream", text, dict(response.headers))

    def _answer(self, customer: Customer, kind: str, text: str, headers: dict[str, str]) -> Answer:
        adapter = headers.get("x-florin-adapter", "")
        right = text.startswith(customer.adapter.voice) and adapter.startswith(f"{customer.model}@")
        return Answer(customer.name, kind, text, adapter, headers.get("x-florin-engine", ""), right=right)

    def at_once(
        self, count: int, *, streams: bool = True, disturb: Callable[[], None] | None = None
    ) -> tuple[list[Answer], float]:
        """Send `count` mixed requests, each from its own client; call `disturb()` while they are in
        flight."""
        kinds = ("chat", "completion", "stream") if streams else ("chat", "completion")
        questions = self.installation.model.questions
        customers = self.installation.customers
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            futures = [
                pool.submit(
                    self.chat, customers[i % 3], questions[i % len(questions)], kinds[i // 3 % len(kinds)]
                )
                for i in range(count)
            ]
            if disturb:
                wait(futures, return_when=FIRST_COMPLETED)
                disturb()
            answers = [future.result() for future in futures]
        return answers, time.monotonic() - began

    def refusal(self, customer: Customer, model: str) -> str:
        try:
            with self.client(customer) as client:
                client.chat.completions.create(model=model, messages=[{"role": "user", "content": "Hello!"}])
        except openai.APIStatusError as error:
            body = error.body if isinstance(error.body, dict) else {}
            return f"{error.status_code} {type(error).__name__}: {body.get('message', '')}"
        return "not refused!"

    def _busiest(self) -> int:
        """The engine with the most adapters, whose death hurts most."""
        placement = self.installation.gateway.call("GET", "/admin/v1/placement")["data"]
        counts = {row["engine"]: len(row["placements"]) for row in placement}
        names = [self.installation.engine_name(e.index) for e in self.installation.fleet.engines]
        return max(range(len(names)), key=lambda i: counts.get(names[i], 0))

    # -- output

    def title(self, text: str) -> None:
        self.console.print()
        self.console.print(Panel(Text(text, style="bold"), expand=False, border_style="blue"))

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def line(self, who: str, text: str, note: str) -> None:
        shown = Text(f"  {who:>6}  ", style=COLORS.get(who, "dim")) + Text(text, style="default")
        self.console.print(shown + Text(f"   ({note})" if note else "", style="dim"))

    def expect(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion
        if not holds:
            self.failures.append(otherwise)
            self.console.print(Text(f"  ✗ {otherwise}", style="bold red"))
