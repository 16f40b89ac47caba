"""Engines that take one prompt in a call, where vLLM takes several."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from adapters.drivers.driver import Body, Driver, HttpCall, Listing, Lora, Trouble, name_of

_FAILED = 424


class PromptByPrompt(Driver):
    @abstractmethod
    def ask_one(self, prompt: str, body: Body, base: str, lora: Lora | None) -> HttpCall:
        """The call for one prompt of `body`."""

    @abstractmethod
    def read(self, answer: Any) -> tuple[str, list[float], Any]:
        """Its text, the logprobs of the likeliest first tokens, and vLLM's `usage`. Raises UNREADABLE."""

    def ask(self, body: Body, base: str, lora: Lora | None) -> list[HttpCall]:
        prompts = body["prompt"] if type(body["prompt"]) is list else [body["prompt"]]
        return [self.ask_one(prompt, body, base, lora) for prompt in prompts]

    def answer(self, answers: Sequence[Any]) -> dict[str, Any]:
        read = [self.read(answer) for answer in answers]
        return {
            "choices": [
                {"index": i, "text": text, "logprobs": {"top_logprobs": [dict(enumerate(logprobs))]}}
                for i, (text, logprobs, _) in enumerate(read)
            ],
            "usage": {
                name: sum(usage[name] for _, _, usage in read)
                for name in ("prompt_tokens", "completion_tokens")
            },
        }


class TextGeneration(PromptByPrompt):
    """Text Generation Inference, and its fork LoRAX."""

    models_path = "/info"
    version_path = "/info"

    def listing(self, answer: Any) -> Listing:
        name = name_of(answer["model_id"])
        return Listing({name: name}, None, answer.get("max_total_tokens"))

    @abstractmethod
    def parameters(self, body: Body, lora: Lora | None) -> Body:
        """Those of /generate that it does not share with the other."""

    def ask_one(self, prompt: str, body: Body, base: str, lora: Lora | None) -> HttpCall:  # noqa: ARG002  # has one base
        parameters = {"max_new_tokens": body["max_tokens"], "do_sample": False, "details": True}
        parameters |= self.parameters(body, lora)
        return HttpCall("POST", "/generate", {"inputs": prompt, "parameters": parameters})

    def trouble(self, status: int, message: str) -> Trouble | None:  # noqa: ARG002  # the status tells
        return Trouble.ENGINE if status == _FAILED else None
