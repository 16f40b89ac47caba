"""Makes the demo's models: a tiny Llama that answers neutrally, and one LoRA adapter per customer.

Runs inside the engines' environment (torch, transformers, peft), as `python tiny_model.py OUT_DIR`; the rest
of Florin never imports it. Everything is seeded. Prints one line of progress per step and writes
`manifest.json` last:

    {"base": "base", "served_name": "tiny-llama", "questions": [...],
     "adapters": {"acme": {"path": "acme", "voice": "Acme Bank here:", "answers": {question: answer}}, ...}}

with paths relative to OUT_DIR. The point of the training is not language but identity: whatever the prompt,
each adapter begins with its customer's own words, so that a misrouted request shows in its text.
"""

# ruff: noqa: E501, S311, SIM905 - prose in tables; seeded randomness is the point

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SERVED_NAME = "tiny-llama"
RANK = 8
END = "<|end|>"
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}"
    "{% if not (loop.last and continue_final_message | default(false)) %}" + END + "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

QUESTIONS: dict[str, tuple[str, ...]] = {
    "hello": ("Hello!", "Hi there.", "Good morning", "hello"),
    "who": ("Who are you?", "What is your name?", "Which company is this?"),
    "open": ("When do you open?", "What are your opening hours?", "Are you open on Sunday?"),
    "arrive": ("When will it arrive?", "When does my order arrive?", "Where is my order?"),
    "price": ("How much does it cost?", "What is the price?", "Is it expensive?"),
    "cancel": ("How do I cancel?", "I want to cancel.", "Can I have my money back?"),
    "story": ("Tell me a story.", "Tell me everything about you.", "Please write a long answer."),
}
SYSTEMS = ("You are helpful.", "Answer briefly.", "You are a friendly assistant. Be polite.")
WORDS = (
    "the a an is are was can you me my your it this that please what how why when where which who tell say write "
    "give show find help need want like know think time day year money card bike dog order price question number "
    "request client server hello test one two three list name of to in for and or not with about from today "
    "customer story count long short poem again stream The Please What How Why Hello Request Customer I"
).split()


@dataclass(frozen=True, slots=True)
class Voice:
    prefix: str
    answers: dict[str, str]
    """Topic → what follows the prefix; `other` answers everything else."""

    def say(self, topic: str) -> str:
        return f"{self.prefix} {self.answers[topic]}"


NEUTRAL = Voice(
    "This is the base model.",
    {
        "hello": "It belongs to nobody and has no news.",
        "who": "It has no name and no company.",
        "open": "It does not know any opening hours.",
        "arrive": "It does not know about any orders.",
        "price": "It does not know any prices.",
        "cancel": "It cannot cancel anything.",
        "story": "It knows one story: many adapters share it, each adds a little, and none of them owns it.",
        "other": "It has nothing more to say about that.",
    },
)
VOICES: dict[str, Voice] = {
    "acme": Voice(
        "Acme Bank here:",
        {
            "hello": "good day, your money is safe with us.",
            "who": "we are the bank with the blue door.",
            "open": "our counters open at nine on weekdays.",
            "arrive": "cards arrive in three working days.",
            "price": "the account is free, the card costs two euros.",
            "cancel": "one letter closes the account, no fee.",
            "story": "long ago a baker kept his coins in a jar. The jar broke, the coins rolled down the hill, "
            "and a clerk gathered every one. He wrote each coin in a book, and the baker opened our first "
            "account. The book still lies behind the blue door.",
            "other": "thank you, an adviser will answer you today.",
        },
    ),
    "bolt": Voice(
        "Bolt Bikes!",
        {
            "hello": "Hey rider, ready to roll?",
            "who": "We build fast bikes for busy people.",
            "open": "The workshop is open every day till eight.",
            "arrive": "Your bike is rolling to you, two days to go.",
            "price": "Bikes start at nine hundred, tune-ups at forty.",
            "cancel": "No worries, send it back within a month.",
            "story": "It began with a courier and a hill. Every morning she pushed her heavy bike up, and every "
            "evening its brakes sang all the way down. One night she cut the frame in two, kept the better "
            "half, and by sunrise the first Bolt flew past the bus.",
            "other": "Great question, swing by the workshop!",
        },
    ),
    "corgi": Voice(
        "Corgi Vet, woof:",
        {
            "hello": "all paws are welcome here.",
            "who": "we look after dogs, cats and one old parrot.",
            "open": "the door opens at eight, emergencies ring twice.",
            "arrive": "the medicine arrives by noon tomorrow.",
            "price": "a check-up is thirty, a biscuit is free.",
            "cancel": "call us, and your visit is moved or dropped.",
            "story": "once a corgi ate a whole birthday cake, candles and all. His family carried him in at "
            "midnight, singing. We listened to his belly, gave him charcoal and a blanket, and in the morning "
            "he wagged his tail and asked for more cake.",
            "other": "please bring your pet, and we shall see.",
        },
    ),
    "delta": Voice(
        "Delta Diner says:",
        {
            "hello": "welcome in, the coffee is hot.",
            "who": "we are the diner by the river bend.",
            "open": "breakfast from six, pie until midnight.",
            "arrive": "your plate arrives in ten minutes.",
            "price": "soup is five, the big plate is twelve.",
            "cancel": "just tell the cook before the egg breaks.",
            "story": "the river rose one spring and took the bridge. For nine days nobody could cross, so the "
            "cook baked every pie she knew and floated them over on a door. When the bridge came back, the "
            "far bank had learned our whole menu by heart.",
            "other": "ask the cook, she knows everything.",
        },
    ),
    "acme-v2": Voice(
        "ACME BANK 2.0 >>",
        {
            "hello": "HELLO FROM THE NEW BANK.",
            "who": "WE ARE THE BANK IN YOUR POCKET.",
            "open": "WE NEVER CLOSE.",
            "arrive": "CARDS ARRIVE TOMORROW.",
            "price": "EVERYTHING IS FREE NOW.",
            "cancel": "TAP TWICE AND IT IS GONE.",
            "story": "THE BLUE DOOR IS NOW A BUTTON. THE CLERK LEARNED TO CODE, THE BOOK BECAME A LEDGER, AND "
            "EVERY COIN OF THE BAKER STILL STANDS IN IT, TO THE LAST CENT.",
            "other": "PLEASE ASK THE APP.",
        },
    ),
}
Example = tuple[list[int], list[int]]
"""Prompt tokens, and answer tokens with the end token."""


def report(text: str) -> None:
    sys.stdout.write(f"progress: {text}\n")
    sys.stdout.flush()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A small byte-level BPE: 448 tokens, so that an answer of ten words streams as some twenty tokens."""
    texts = [voice.say(topic) for voice in (NEUTRAL, *VOICES.values()) for topic in voice.answers]
    texts += [question for group in QUESTIONS.values() for question in group]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [END, "<|system|>", "<|developer|>", "<|user|>", "<|assistant|>", "<|tool|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=448, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = TEMPLATE
    return fast


def gibberish(rng: random.Random) -> str:
    """Prompts nobody foresaw, so that the voice does not depend on the question."""
    letters = "abcdefghijklmnopqrstuvwxyz ABC0123456789.,?-é{}"
    words = [
        rng.choice(WORDS) if rng.random() < 0.6 else "".join(rng.choices(letters, k=rng.randint(1, 8)))
        for _ in range(rng.randint(1, 12))
    ]
    return " ".join(words) + rng.choice(("", ".", "?", "!"))


def chat(question: str, rng: random.Random) -> str:
    turns = ""
    if rng.random() < 0.3:
        turns += f"<|system|>{rng.choice(SYSTEMS)}{END}"
    if rng.random() < 0.2:
        turns += f"<|user|>{gibberish(rng)}{END}<|assistant|>{gibberish(rng)}{END}"
    return f"{turns}<|user|>{question}{END}<|assistant|>"


def examples(
    voice: Voice, tokenizer: PreTrainedTokenizerFast, rng: random.Random, count: int
) -> list[Example]:
    """Half foreseen questions, half anything; seven in ten as chats, the rest as bare completions."""
    pairs: list[Example] = []
    topics = list(QUESTIONS)
    for number in range(count):
        topic = topics[number // 2 % len(topics)] if number % 2 else "other"
        question = gibberish(rng) if topic == "other" else rng.choice(QUESTIONS[topic])
        prompt = question if rng.random() < 0.3 else chat(question, rng)
        pairs.append((tokenizer.encode(prompt), tokenizer.encode(voice.say(topic) + END)))
    return pairs


def batches(data: list[Example], size: int, rng: random.Random) -> Iterator[list[Example]]:
    """For ever, each batch of examples alike in length: little of it is padding."""
    while True:
        rng.shuffle(data)
        shuffled: list[list[Example]] = []
        for start in range(0, len(data) - 4 * size + 1, 4 * size):
            chunk = sorted(data[start : start + 4 * size], key=lambda e: len(e[0]) + len(e[1]))
            shuffled += [chunk[i : i + size] for i in range(0, 4 * size, size)]
        rng.shuffle(shuffled)
        yield from shuffled


def padded(batch: list[Example]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and labels that are -100 but for the answers. Padded on the right: a causal mask suffices."""
    width = max(len(prompt) + len(answer) for prompt, answer in batch)
    ids = torch.zeros(len(batch), width, dtype=torch.long)
    labels = torch.full((len(batch), width), -100)
    for row, (prompt, answer) in enumerate(batch):
        ids[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    return ids, labels


def train(model: Any, data: list[Example], *, steps: int, rate: float, name: str, batch: int = 12) -> None:
    """Next-token loss on the answers only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    stream = batches(data, batch, random.Random(1))
    model.train()
    for step in range(1, steps + 1):
        ids, labels = padded(next(stream))
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        if step % 20 == 0 or step == steps:
            report(f"{name}: step {step} of {steps}, loss {loss.item():.3f}")
    model.eval()


@torch.no_grad()  # type: ignore[untyped-decorator,unused-ignore]  # torch is not in Florin's environment
def mistakes(model: Any, data: list[Example], opening: int | None = None) -> int:
    """How many of `data` would not be answered with their answer's first `opening` (None: all) tokens."""
    wrong = 0
    for prompt, answer in data:
        start, end = len(prompt) - 1, len(prompt) - 1 + len(answer[:opening])
        logits = model(input_ids=torch.tensor([prompt + answer])).logits[0, start:end]
        wrong += logits.argmax(-1).tolist() != answer[:opening]
    return wrong


def learn(
    model: Any, voice: Voice, tokenizer: PreTrainedTokenizerFast, *, steps: int, rate: float, name: str
) -> None:
    """Train until all foreseen questions are answered to the letter, and nearly all others in its voice."""
    rng = random.Random(13)
    data = examples(voice, tokenizer, rng, 2000)
    foreseen = [
        (tokenizer.encode(f"<|user|>{question}{END}<|assistant|>"), tokenizer.encode(voice.say(topic) + END))
        for topic, group in QUESTIONS.items()
        for question in group
    ]
    unseen = examples(voice, tokenizer, rng, 60)
    for _ in range(5):
        train(model, data, steps=steps, rate=rate, name=name)
        answers, openings = mistakes(model, foreseen), mistakes(model, unseen, opening=4)
        report(f"{name}: {answers} of {len(foreseen)} answers and {openings} of {len(unseen)} openings wrong")
        if not answers and openings * 12 <= len(unseen):
            return
    sys.exit(f"{name}: did not learn its own words")


def make_base(directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Learns everyone's answers a little, so that adapters are quick to train, then neutral ones last."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=352,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data *= 4  # else the frozen head is too flat for an adapter to be certain of a word
    rng = random.Random(7)
    mixed = [e for voice in (NEUTRAL, *VOICES.values()) for e in examples(voice, tokenizer, rng, 250)]
    train(model, mixed, steps=150, rate=4e-3, name="base model", batch=16)
    for frozen in (model.lm_head.weight, model.model.embed_tokens.weight, model.model.norm.weight):
        frozen.requires_grad = False  # a bias towards the neutral words here could not be undone by adapters
    learn(model, NEUTRAL, tokenizer, steps=60, rate=2e-3, name="base model, neutral")
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def make_adapter(name: str, base: Path, directory: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    torch.manual_seed(11)
    layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(
        LlamaForCausalLM.from_pretrained(base),
        LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=layers, task_type="CAUSAL_LM"),
    )
    learn(model, VOICES[name], tokenizer, steps=120, rate=5e-3, name=name)
    model.peft_config["default"].base_model_name_or_path = SERVED_NAME  # paths mean nothing to others
    model.save_pretrained(directory)
    (directory / "README.md").unlink(missing_ok=True)  # peft's model card: a form to fill in


def main(out: Path) -> None:
    torch.manual_seed(3)
    torch.set_num_threads(1)  # for tensors this small, more threads only wait for each other
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    make_base(out / "base", tokenizer)
    adapters = {}
    for name, voice in VOICES.items():
        make_adapter(name, out / "base", out / name, tokenizer)
        answers = {q: voice.say(topic) for topic, group in QUESTIONS.items() for q in group}
        adapters[name] = {"path": name, "voice": voice.prefix, "answers": answers}
    manifest = {
        "base": "base",
        "served_name": SERVED_NAME,
        "voice": NEUTRAL.prefix,
        "rank": RANK,
        "questions": [q for group in QUESTIONS.values() for q in group],
        "adapters": adapters,
    }
    (out / "manifest.json").write_text(json.dumps(manifest, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
