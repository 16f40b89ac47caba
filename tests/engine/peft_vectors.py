"""What PEFT itself makes of adapters: `python peft_vectors.py BASE TEXTS DIRECTORY…`, in the engines'
environment. Prints one JSON object: directory (empty: the base model) → a vector for each text, the last
token's hidden state with length 1."""

from __future__ import annotations

import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base, texts, *directories = sys.argv[1:]
warnings.simplefilter("ignore")
torch.set_num_threads(1)
tokenizer = AutoTokenizer.from_pretrained(base)
vectors = {}
for directory in ("", *directories):
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if directory:
        model = PeftModel.from_pretrained(model, directory).eval().get_base_model()
    with torch.no_grad():
        last = [
            model.model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state[0, -1]
            for text in json.loads(texts)
        ]
    vectors[directory] = [torch.nn.functional.normalize(vector, dim=0).tolist() for vector in last]
sys.stdout.write("\n" + json.dumps(vectors))
