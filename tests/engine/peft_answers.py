"""What PEFT itself makes of adapters: `python peft_answers.py BASE PROMPT DIRECTORY…`, in the engines'
environment. Prints one JSON object: directory → logprobs of the prompt's tokens but the first."""

from __future__ import annotations

import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def answer(base: str, prompt: str, directory: str) -> list[float]:
    tokens = AutoTokenizer.from_pretrained(base)(prompt, return_tensors="pt").input_ids
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        logits = PeftModel.from_pretrained(model, directory).eval()(tokens).logits[0]
    return torch.log_softmax(logits[:-1], -1).gather(-1, tokens[0, 1:, None]).flatten().tolist()


if __name__ == "__main__":
    base, prompt, *directories = sys.argv[1:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stdout.write("\n" + json.dumps({path: answer(base, prompt, path) for path in directories}))
