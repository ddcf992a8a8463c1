"""Golden results of lm-evaluation-harness 0.4.13 (`hf` backend, f32, CPU): tests/golden_harness.

    python oracle/harness.py [--models llama,qwen2,gpt2,t5]
    python oracle/harness.py --check TASKS_DIR MODEL TASK,TASK OUT.json    # the harness alone, on any local tasks

Writes `data/` (small local sets), `models/` (four tiny models that Transformers trained for seconds on this repository's
pages, stored in bf16) and `expected/MODEL.json`: metrics, standard errors, log-likelihoods and hashes of all requests.
`tasks/` is written by hand; `@DATA@` stands for the folder of the data. Needs `lm_eval[hf]==0.4.13 sacrebleu rouge-score
scikit-learn`.
"""
import argparse
import csv
import hashlib
import json
import os
import random
import shutil
import tempfile
from pathlib import Path

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", LMEVAL_DISABLE_MULTIPROC="1")
os.environ["DISABLE_MULTIPROC"] = "1"
import lm_eval
import pyarrow
import pyarrow.parquet
import torch
from lm_eval.tasks import TaskManager
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config,
                          Qwen2ForCausalLM, T5Config, T5ForConditionalGeneration)

ROOT = Path(__file__).parent.parent
GOLDEN = ROOT / "tests" / "golden_harness"
TASKS = ["choices", "letters_group", "blanks", "last_word", "whole_texts", "sums", "translate", "answers"]
WORDS = "river stone amber falcon quiet lantern copper meadow winter harbour silver thread orchard hollow engine paper".split()


def sentences(rng, count):
    return " ".join(f"The {rng.choice(WORDS)} of the {rng.choice(WORDS)} is {rng.choice(WORDS)}." for _ in range(count))


def lines(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def table(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


def write_data(to):
    rng = random.Random(7)
    to.mkdir(parents=True, exist_ok=True)
    lines(to / "choices.jsonl", [
        {"question": f"What is the {rng.choice(WORDS)}, {i}?", "label": rng.randrange(4),
         "options": {"text": [f"{rng.choice(WORDS)}{' ' + rng.choice(WORDS) * (k % 2)}é" for k in range(4)], "label": list("ABCD")}}
        for i in range(12)])
    letters = lambda n: [
        {"subject": rng.choice(["high_school_rivers", "abstract_stones"]), "question": f" {sentences(rng, 1)} Which? ",
         "choices": rng.sample(WORDS, 3), "answer": rng.choice("ABC")} for _ in range(n)]
    lines(to / "letters_train.jsonl", letters(30))
    # The last items are longer than the context, which cuts them from the left.
    lines(to / "letters_test.jsonl", letters(10) + [
        {"subject": "long", "question": sentences(rng, 40), "choices": rng.sample(WORDS, 3), "answer": "B"} for _ in range(2)])
    lines(to / "yes_no.jsonl", [
        {"passage": sentences(rng, 2), "question": f"is the {rng.choice(WORDS)} {rng.choice(WORDS)}", "truth": rng.random() < 0.5}
        for _ in range(14)])
    blanks = [f"The {rng.choice(WORDS)} was near the {rng.choice(WORDS)}, so the _ was {rng.choice(WORDS)}." for _ in range(10)]
    table(to / "blanks.csv", [
        {"sentence": text, "option1": rng.choice(WORDS), "option2": rng.choice(WORDS), "answer": rng.randint(1, 2)} for text in blanks])
    lines(to / "texts.jsonl", [{"text": sentences(rng, rng.randint(1, 3))[:-1]} for _ in range(12)])
    lines(to / "long.jsonl", [{"page": sentences(rng, count) + "\n\n" + sentences(rng, 1)} for count in (3, 25, 60)])
    sums = lambda n: [
        {"question": f"What is {a} and {b:,}?", "answer": f"It is {a} + {b} = {a + b}.\n#### {a + b:,}"}
        for a, b in [(rng.randint(1, 99), rng.randint(1000, 1900)) for _ in range(n)]]
    lines(to / "sums_train.jsonl", sums(9))
    lines(to / "sums_test.jsonl", sums(6))
    table(to / "pairs.csv", [{"source": sentences(rng, 1), "target": sentences(rng, 1)} for _ in range(8)])
    rows = [{"context": sentences(rng, 1), "question": f"Which {rng.choice(WORDS)}?",
             "aliases": [rng.choice(WORDS), f"the {rng.choice(WORDS)}"]} for _ in range(8)]
    rows.append(dict(rows[0]))  # a second copy of a document, which examples must not contain either
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), to / "answers.parquet")


def corpus(data):
    rng = random.Random(11)
    own = [path.read_text() for path in sorted(data.glob("*.jsonl"))]
    pages = [path.read_text()[:20_000] for path in sorted((ROOT / "docs").glob("*.md"))[:12]]
    return own + [sentences(rng, 200) for _ in range(6)] + pages


# Transformers 5 gives every `qwen2` folder this split, whatever its tokenizer.json says.
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
               r"\s+(?!\S)|\s+")


def write_t5(to, texts):
    """A model of two streams that answers the beginning of a sentence with its end."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(texts, trainers.UnigramTrainer(
        vocab_size=420, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
    tokenizer.save_pretrained(to)
    model = T5ForConditionalGeneration(T5Config(
        vocab_size=len(tokenizer), d_model=64, d_kv=16, d_ff=128, num_layers=2, num_decoder_layers=2, num_heads=4, dropout_rate=0.0,
        feed_forward_proj="gated-gelu", n_positions=192, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0))
    rng = random.Random(3)
    rows = [text for text in sentences(rng, 4000).split(". ") if text]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(400):
        parts = [row.rsplit(" is ", 1) for row in rng.sample(rows, 16)]
        source, target = ([part[at] + end for part in parts] for at, end in [(0, " is"), (1, ".")])
        source, target = (tokenizer(texts, padding=True, return_tensors="pt") for texts in (source, target))
        labels = target.input_ids.masked_fill(target.attention_mask == 0, -100)
        loss = model(input_ids=source.input_ids, attention_mask=source.attention_mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print("t5", f"loss {loss.item():.3f}")
    model.to(torch.bfloat16).save_pretrained(to)


def write_tokenizer(to, texts, kind):
    bos = kind == "llama"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>"] if bos else ["<|endoftext|>"]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 0)])
    names = {"bos_token": "<s>", "eos_token": "</s>"} if bos else {"eos_token": "<|endoftext|>"}
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    fast.save_pretrained(to)
    return fast


def write_model(to, kind, texts):
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    to.mkdir(parents=True, exist_ok=True)
    if kind == "t5":
        return write_t5(to, texts)
    tokenizer = write_tokenizer(to, texts, kind)
    sizes = dict(vocab_size=len(tokenizer), bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id)
    block = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                 tie_word_embeddings=True)
    model = {
        "llama": lambda: LlamaForCausalLM(LlamaConfig(max_position_embeddings=320, **block, **sizes)),
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(max_position_embeddings=256, **block, **sizes)),
        "gpt2": lambda: GPT2LMHeadModel(GPT2Config(n_positions=288, n_embd=64, n_layer=2, n_head=4, resid_pdrop=0,
                                                   embd_pdrop=0, attn_pdrop=0, **sizes)),
    }[kind]()
    ids = torch.tensor([id for text in texts for id in [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(200):
        starts = torch.randint(0, len(ids) - 128, (8,)).tolist()
        batch = torch.stack([ids[start:start + 128] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(kind, f"loss {loss.item():.3f}")
    model.to(torch.bfloat16).save_pretrained(to)


def with_data(tasks, data, to):
    for file in Path(tasks).glob("*.yaml"):
        (Path(to) / file.name).write_text(file.read_text().replace("@DATA@", str(data)))
    return to


def run(model, tasks_dir, tasks, **options):
    manager = TaskManager(include_path=str(tasks_dir), include_defaults=False)
    return lm_eval.simple_evaluate(
        model="hf", model_args=f"pretrained={model},dtype=float32", tasks=tasks, device="cpu", batch_size=1,
        task_manager=manager, bootstrap_iters=1000, **options)


def numbers(response):
    return [[float(ll), bool(greedy)] for ll, greedy in [response]][0] if isinstance(response, tuple) else response


def digest(sample):
    """Of all that is asked about an item."""
    asked = json.dumps([list(args) for args in sample["arguments"]], ensure_ascii=False)
    return hashlib.sha256(asked.encode()).hexdigest()[:16]


def kept(found, data):
    samples = {
        task: [{"doc_id": one["doc_id"], "filter": one["filter"], "asked": digest(one), "target": str(one["target"]),
                "doc_hash": one["doc_hash"][:16], "resps": [[numbers(r) for r in resps][:1] for resps in one["resps"]],
                "filtered": [numbers(resp) for resp in one["filtered_resps"]], "values": {m: plain(one[m]) for m in one["metrics"]}}
               for one in rows] for task, rows in found["samples"].items()}
    keys = ["results", "groups", "group_subtasks", "versions", "n-shot", "higher_is_better", "n-samples", "configs"]
    result = {key: found[key] for key in keys if key in found}
    return json.loads(json.dumps({**result, "samples": samples}, default=float).replace(str(data), "@DATA@"))


def plain(value):
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


def texts_of(rng, count):
    """Sentences with punctuation, numbers, entities, other scripts, and references that share words with them."""
    signs = ["-", "...", "3.5", "1,000", "&amp;", "don't", "(see", "it)", "Été", "日本語", "e-mail", "5-4", "\n", '"so"', "U.S."]
    for _ in range(count):
        words = [rng.choice(WORDS + signs) for _ in range(rng.randint(0, 14))]
        other = [word if rng.random() < 0.7 else rng.choice(WORDS) for word in words]
        if len(other) > 4 and rng.random() < 0.6:
            at = rng.randrange(len(other) - 3)
            other = other[:at] + other[at + 2:] + other[at:at + 2]
        yield " ".join(words), [" ".join(other), sentences(rng, 1)][: rng.randint(1, 2)]


def write_metrics(to):
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer
    from sklearn.metrics import f1_score, matthews_corrcoef
    rng = random.Random(5)
    kinds = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    rouge = RougeScorer(kinds)
    corpora = []
    for size in [1, 1, 2, 5, 40]:
        pairs = list(texts_of(rng, size))
        pairs = [(answer, references[:1] if size > 2 else references) for answer, references in pairs]
        most = min(len(references) for _, references in pairs)
        pairs = [(answer, references[:most]) for answer, references in pairs]
        answers, streams = [answer for answer, _ in pairs], list(zip(*[references for _, references in pairs]))
        scores = [[rouge.score(reference, answer)[kind].fmeasure for kind in kinds] for answer, (reference, *_) in pairs]
        corpora.append({
            "pairs": pairs, "bleu": sacrebleu.corpus_bleu(answers, streams).score, "chrf": sacrebleu.corpus_chrf(answers, streams).score,
            "chrf++": sacrebleu.corpus_chrf(answers, streams, word_order=2).score, "ter": sacrebleu.corpus_ter(answers, streams).score,
            "rouge": scores})
    classes = []
    for size, labels in [(1, 2), (9, 2), (40, 2), (60, 4)]:
        pairs = [(rng.randrange(labels), rng.randrange(labels)) for _ in range(size)]
        golds, found = zip(*pairs)
        f1 = float(f1_score(golds, found)) if labels == 2 else None
        classes.append({"pairs": pairs, "f1": f1, "mcc": float(matthews_corrcoef(golds, found))})
    to.write_text(json.dumps({"corpora": corpora, "classes": classes}, ensure_ascii=False) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="llama,qwen2,gpt2,t5")
    parser.add_argument("--check", nargs=4, metavar=("TASKS_DIR", "MODEL", "TASKS", "OUT"))
    args = parser.parse_args()
    if args.check:
        tasks_dir, model, tasks, out = args.check
        found = run(model, tasks_dir, tasks.split(","))
        Path(out).write_text(json.dumps(found["results"], indent=1, default=float))
        return
    data = (GOLDEN / "data").resolve()
    write_data(data)
    write_metrics(GOLDEN / "metrics.json")
    texts = corpus(data)
    (GOLDEN / "expected").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with_data(GOLDEN / "tasks", data, folder)
        for kind in args.models.split(","):
            model = GOLDEN / "models" / kind
            shutil.rmtree(model, ignore_errors=True)
            write_model(model, kind, texts)
            # An encoder-decoder has no likelihood of a whole text.
            tasks = [task for task in TASKS if kind != "t5" or task != "whole_texts"]
            expected = kept(run(model, folder, tasks), data)
            if kind != "llama":
                del expected["configs"]
            text = json.dumps(expected, ensure_ascii=False).replace(str(Path(folder).resolve()), "@TASKS@")
            (GOLDEN / "expected" / f"{kind}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
