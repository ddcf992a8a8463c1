"""Golden sets of RULER's thirteen tasks, drawn by NVIDIA's own scripts: tests/golden_ruler.

    git clone https://github.com/NVIDIA/RULER
    python oracle/ruler.py --ruler RULER

Writes `tokenizer.json` (BPE, trained here), the files that its scripts read (made-up essays, questions in SQuAD's and HotpotQA's
form, English words) and `sets.json`: for every task, length and seed the SHA-256 of the rows as the scripts write them, and the
rows themselves of the shortest. Essays are divided into sentences by the rule of `sentences` below, as NLTK's trained model
needs a download. Needs `wonderwords==3.0.1 nltk scipy tenacity tqdm transformers`.
"""
import argparse
import hashlib
import json
import random
import re
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

import nltk.tokenize
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden_ruler"
WORDS = "river stone amber falcon quiet lantern copper meadow winter harbour silver thread orchard hollow engine paper".split()
SHORT = 1024
# Length, seed and rows.
DRAWS = [(SHORT, 42, 2), (4096, 42, 3), (4100, 7, 2), (9000, 42, 1)]
LARGE = 1_000_000
pairs = []


def sentences(text):
    return re.split(r"(?<=[.!?])\s(?![a-z\s])", text)


def ordered(items, **options):
    """`sorted`, which keeps the six million pairs of words that every script over needles sorts at its start."""
    if len(items) < LARGE:
        return sorted(items, **options)
    if not pairs:
        pairs.extend(sorted(set(items)))
    return pairs


def distinct(items=()):
    return items if len(items) >= LARGE else set(items)


def sentence(rng):
    return f"The {rng.choice(WORDS)} of the {rng.choice(WORDS)} is {rng.choice(WORDS)}{rng.choice('.!?')}"


def write_files(to):
    rng = random.Random(5)
    prose = lambda count: " ".join(sentence(rng) for _ in range(count))
    essays = "\n\n".join(f"{prose(9)} It costs 3.5 in e.g. winter.\n {prose(4)}" for _ in range(30)) + "\n"
    (to / "PaulGrahamEssays.json").write_text(json.dumps({"text": essays}))
    articles = []
    for article in range(40):
        paragraphs = []
        for place in range(rng.randint(1, 4)):
            text = prose(rng.randint(2, 5)) + f" Number {article}.{place}, caf\u00e9."
            qas = [{"question": f"What is {rng.choice(WORDS)}, {article}.{place}?", "is_impossible": rng.random() < 0.3,
                    "answers": [{"text": rng.choice(WORDS)}, {"text": rng.choice(WORDS)}]} for _ in range(2)]
            paragraphs.append({"context": text, "qas": qas})
        articles.append({"paragraphs": paragraphs})
    (to / "squad.json").write_text(json.dumps({"data": articles}))
    titled = lambda at: [f"{rng.choice(WORDS).title()} {at}", [sentence(rng) + " " for _ in range(rng.randint(1, 3))]]
    rows = [{"question": f"Which {rng.choice(WORDS)}?", "answer": rng.choice(WORDS), "context": [titled(10 * row + at) for at in range(10)]}
            for row in range(12)]
    (to / "hotpotqa.json").write_text(json.dumps(rows))
    (to / "english_words.json").write_text(json.dumps({str(at): f"{WORDS[at % 16]}{at}" for at in range(20000)}))


def write_tokenizer(to, scripts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = [(scripts / "data/synthetic" / name).read_text() for name in ("constants.py", "variable_tracking.py")]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=800, special_tokens=["</s>"], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(to)


def draw(scripts, task, tokens, seed, rows):
    """The bytes that RULER's script of a task writes."""
    sys.path.insert(0, str(scripts / "data/synthetic"))
    from constants import TASKS
    config = yaml.safe_load((scripts / "synthetic.yaml").read_text())[task]
    base = TASKS[config["task"]]
    with tempfile.TemporaryDirectory() as out:
        script = scripts / "data/synthetic" / (config["task"] + ".py")
        args = [script, "--save_dir", out, "--save_name", task, "--tokenizer_type", "hf",
                "--tokenizer_path", GOLDEN, "--max_seq_length", tokens, "--tokens_to_generate", base["tokens_to_generate"],
                "--num_samples", rows, "--random_seed", seed, "--template", base["template"] + base["answer_prefix"]]
        for key, value in config["args"].items():
            args += [f"--{key}", value]
        sys.argv = [str(arg) for arg in args]
        runpy.run_path(str(script), {"sorted": ordered, "set": distinct}, "__main__")
        return Path(out, task, "validation.jsonl").read_bytes()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ruler", type=Path, required=True)
    parser.add_argument("--check", nargs=3, metavar=("TASK", "TOKENS", "SEED"), help="print one row as the scripts write it")
    args = parser.parse_args()
    nltk.tokenize.sent_tokenize = sentences
    with tempfile.TemporaryDirectory() as copy:
        scripts = Path(shutil.copytree(args.ruler / "scripts", Path(copy) / "scripts"))
        GOLDEN.mkdir(exist_ok=True)
        write_files(scripts / "data/synthetic/json")
        if args.check:
            task, tokens, seed = args.check
            print(draw(scripts, task, tokens, seed, 1).decode())
            return
        write_tokenizer(GOLDEN, scripts)
        (GOLDEN / "ruler").mkdir(exist_ok=True)
        for name in ("PaulGrahamEssays.json", "squad.json", "hotpotqa.json"):
            shutil.copy(scripts / "data/synthetic/json" / name, GOLDEN / "ruler" / name)
        found = []
        for task in yaml.safe_load((scripts / "synthetic.yaml").read_text()):
            for tokens, seed, rows in DRAWS:
                # Ten documents, 500 words of an essay or thirty listed words are longer than the shortest length.
                tokens = 2048 if tokens == SHORT and task.startswith(("qa", "niah", "cwe")) else tokens
                # So are the common words at a length of 4096, where each is listed thirty times.
                tokens = tokens + 2500 if task == "cwe" and 4000 < tokens < 5000 else tokens
                text = draw(scripts, task, tokens, seed, rows)
                one = {"task": task, "tokens": tokens, "seed": seed, "rows": rows, "sha256": hashlib.sha256(text).hexdigest()}
                if tokens <= 2048:
                    one["first"] = json.loads(text.splitlines()[0])
                found.append(one)
                print(task, tokens, seed, len(text), flush=True)
        (GOLDEN / "sets.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in found) + "\n]\n")


if __name__ == "__main__":
    main()
