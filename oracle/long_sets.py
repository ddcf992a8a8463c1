"""Golden sets of NoLiMa and HELMET by their own code over small made files: tests/golden_eval/{nolima,helmet}.

    python oracle/long_sets.py NOLIMA HELMET

The arguments are checkouts of adobe-research/NoLiMa (7532e4e) and princeton-nlp/HELMET (4526dfb), which are not part of
this repository; the needles, books and rows are made here. Needs `lm_eval[hf]==0.4.13` (for datasets) and the tokenizer of
tests/golden_ruler.
"""
import asyncio
import hashlib
import itertools
import json
import os
import random
import runpy
import sys
import time
import types
from pathlib import Path

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1")
ROOT = Path(__file__).parent.parent / "tests"
OUT = ROOT / "golden_eval"
WORDS = "river stone amber falcon quiet lantern copper meadow winter harbour silver thread orchard hollow engine paper".split()
RNG = random.Random(5)


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def sentence():
    return f"The {RNG.choice(WORDS)} of the {RNG.choice(WORDS)} was {RNG.choice(WORDS)}, naïve and {RNG.choice(WORDS)} {RNG.randrange(1000)}."


def summary(rows):
    """Hashes of all prompts, and the first in full."""
    return {"prompts": [hashlib.sha256(prompt.encode()).hexdigest()[:16] for prompt, _ in rows], "answers": [answer for _, answer in rows],
            "first": rows[0][0]}


def nolima(checkout):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(str(ROOT / "golden_ruler" / "tokenizer.json"))
    sets = OUT / "nolima" / "needlesets"
    books = OUT / "nolima" / "haystack" / "rand_shuffle"
    for path in (sets, books):
        path.mkdir(parents=True, exist_ok=True)
    for book in (1, 2):
        (books / f"rand_book_{book}.txt").write_text("\n".join(" ".join(sentence() for _ in range(RNG.randrange(1, 3))) for _ in range(60)) + "\n")
    needles = [
        {"id": "0401", "system_prompt": "", "task_template": "Text:\n{haystack}\nEnd of {{it}}. {question}", "needle": "Actually, {CHAR} lives next to the {1}.", "character_set": ["Yuki", "Stuart", "Katie"],
         "questions": {"onehop": "Which character has been to {2}?", "twohop": "Who has been in {3}?"},
         "tests": {"T1": {"input_args": ["Semper Opera House", "Dresden", "Saxony"]}, "T2": {"input_args": ["Kiasma museum", "Helsinki", "Uusimaa"]}}},
        {"id": "0402_inv", "system_prompt": "Answer.", "needle": "There was a {1}, seen by Paul.", "task_template": "{haystack}\n\n{question}",
         "questions": {"onehop": "Who saw a {1} or {2}?"}, "distractors": {"onehop": "There was an offer of {2} too."},
         "tests": {"T1": {"input_args": ["stag", "deer meat"], "gold_answers": ["Paul"]}}}]
    (sets / "needle_set.json").write_text(json.dumps(needles, indent=1))
    expected = {}
    for tokens in (300, 600):
        rows = []

        class Connector:
            SYSTEM_PROMPT = ""

            def __init__(self, **_):
                pass

            def encode(self, text):
                return tokenizer.encode(text, add_special_tokens=False).ids

            def decode(self, ids):
                return tokenizer.decode([int(i) for i in ids], skip_special_tokens=False)

            def token_count(self, text):
                return len(self.encode(text))

            async def generate_response(self, system_prompt, user_prompt, **_):
                rows.append([user_prompt, None])
                return {"response": ""}

        class Parser:
            def __init__(self, **_):
                pass

            def add_argument(self, *_, **__):
                pass

            def parse_args(self):
                return types.SimpleNamespace(
                    config=None, model_name="m", model_configs_dir=str(temporary), needle_set_path=str(sets / "needle_set.json"),
                    haystack_dir=str(books), task_template=None, use_default_system_prompt=True, parent_results_dir=str(temporary / str(tokens)),
                    context_length=tokens, document_depth_percent_min=0, document_depth_percent_max=100, document_depth_percent_intervals=26,
                    shift=0, static_depth=-1, metric="contains", log_placements_dir="", base_seed=42, prevent_duplicate_tests=False)

        import tempfile
        temporary = Path(tempfile.mkdtemp())
        (temporary / "m.json").write_text(json.dumps({"max_tokens": 192, "temperature": 0, "top_p": 1}))
        sys.modules["jsonargparse"] = types.SimpleNamespace(ArgumentParser=Parser, ActionConfigFile=None)
        sys.modules["async_api_connector"] = types.SimpleNamespace(APIConnector=Connector)
        sys.modules.pop("async_evaluate", None)
        sys.path[:0] = [str(checkout), str(Path(checkout) / "evaluation")]
        asyncio.set_event_loop(asyncio.new_event_loop())
        # Its results have the second in their names; each test gets one of its own.
        now, listdir, seconds = time.time, os.listdir, itertools.count(1)
        time.time = lambda: next(seconds)
        os.listdir = lambda *path: sorted(listdir(*path))
        runpy.run_path(str(Path(checkout) / "evaluation" / "run_tests.py"), run_name="__main__")
        os.listdir, time.time = listdir, now
        characters = []
        results = sorted((temporary / str(tokens)).rglob("*.json"), key=lambda path: path.stat().st_mtime_ns)
        for path in results:
            found = json.loads(path.read_text())
            characters += [[row["selected_character"]] if "selected_character" in row else found["gold_answers"] for row in found["results"]]
        for row, answer in zip(rows, characters, strict=True):
            row[1] = answer
        expected[tokens] = summary(rows)
    (OUT / "nolima.json").write_text(json.dumps(expected, ensure_ascii=False))
    print("nolima", {tokens: len(rows["prompts"]) for tokens, rows in expected.items()})


def helmet(checkout):
    for name in [name for name in sys.modules if name == "data" or name.startswith("data.")]:
        del sys.modules[name]
    sys.modules["pytrec_eval"] = types.ModuleType("pytrec_eval")
    sys.path.insert(0, str(checkout))
    import data as code
    import datasets
    folder = OUT / "helmet"
    passages = lambda count: [{"id": str(i), "title": f"Title {RNG.randrange(99)}", "text": sentence(), "has_answer": i == 0, "label": RNG.randrange(4)}
                              for i in range(count)]
    questions = lambda count, ctxs, name: [{"id": f"{name}{i // 2}", "question": f"What is {RNG.choice(WORDS)} {i}?", "answers": [RNG.choice(WORDS), "other"],
                                            "s_pop": RNG.choice([3, 50, 999, 1001, 90000]), "ctxs": passages(ctxs)} for i in range(count)]
    lines(folder / "kilt" / "test.jsonl", questions(16, 3, "t"))
    lines(folder / "kilt" / "demos.jsonl", questions(14, 2, "d") + questions(4, 1, "t"))
    ranked = lambda count, name, title: [{"qid": f"{name}{i}", "query": f"query {i} {RNG.choice(WORDS)}",
                                          "ctxs": [{k: v for k, v in c.items() if k in ("id", "text", "label") or title and k == "title"} for c in passages(4)]}
                                         for i in range(count)]
    lines(folder / "msmarco" / "test.jsonl", ranked(9, "q", False))
    lines(folder / "msmarco" / "few.jsonl", ranked(7, "q", False))
    lines(folder / "msmarco" / "many.jsonl", ranked(30, "q", False))
    lines(folder / "json_kv" / "test.jsonl", [{"context": "JSON data:\n{" + sentence() + "}", "question": f"k{i}", "answer": f"v{i}", "num_kvs": 2,
                                               "demos": [[f"a{i}", f"b{i}"], [f"c{i}", f"d{i}"], ["e", "f"]]} for i in range(11)])
    lines(folder / "ruler" / "test.jsonl", [{"context": sentence(), "query": f"the {RNG.choice(WORDS)}", "type_needle_v": "numbers",
                                             "outputs": [str(RNG.randrange(9999)), str(i)]} for i in range(7)])
    texts = lambda count: [{"text": f"{sentence()} {i}", "label": (i * 5 + i // 4) % 6} for i in range(count)]
    lines(folder / "icl" / "trec_coarse" / "train.jsonl", texts(40))
    lines(folder / "icl" / "trec_coarse" / "test.jsonl", texts(13))
    load = datasets.load_dataset
    real = {split: load("json", data_files=str(folder / "icl" / "trec_coarse" / f"{split}.jsonl"))["train"] for split in ("train", "test")}

    def local(name, *args, **kwargs):
        if name == "json":
            return load(name, *args, **kwargs)
        features = datasets.Features({"text": datasets.Value("string"), "coarse_label": datasets.ClassLabel(names=list("abcdef"))})
        return {split: rows.rename_column("label", "coarse_label").cast(features) for split, rows in real.items()}

    code.load_dataset = local
    at = lambda name: str(folder / name)
    cases = {
        "kilt_nq": lambda: code.load_qa("kilt_nq", at("kilt/test.jsonl"), at("kilt/demos.jsonl"), max_test_samples=5, shots=2),
        "kilt_popqa_3": lambda: code.load_qa("kilt_popqa_3", at("kilt/test.jsonl"), at("kilt/demos.jsonl"), max_test_samples=5,
                                             popularity_threshold=3.0, shots=2),
        "msmarco_few": lambda: code.load_msmarco_rerank(at("msmarco/test.jsonl"), at("msmarco/few.jsonl"), 6, 2, 42),
        "msmarco_many": lambda: code.load_msmarco_rerank(at("msmarco/test.jsonl"), at("msmarco/many.jsonl"), 6, 2, 42),
        "json_kv": lambda: code.load_json_kv(at("json_kv/test.jsonl"), 2, 8, 42),
        "ruler_niah_mk_2": lambda: code.load_ruler("ruler_niah_mk_2", at("ruler/test.jsonl"), 5, 42),
        "ruler_niah_mv": lambda: code.load_ruler("ruler_niah_mv", at("ruler/test.jsonl"), 5, 42),
        "icl_trec_coarse_20shot_balance": lambda: code.load_icl("icl_trec_coarse_20shot_balance", 10, 42),
        "icl_trec_coarse_50shot_balance": lambda: code.load_icl("icl_trec_coarse_50shot_balance", 500, 42),
    }
    expected = {}
    for name, made in cases.items():
        random.seed(42)
        found = made()
        answer = lambda row: row["answers"] if "kilt" in name else row["answer"] if isinstance(row["answer"], list) else [row["answer"]]
        expected[name] = summary([(found["prompt_template"].format(**row), answer(row)) for row in found["data"]])
    (OUT / "helmet.json").write_text(json.dumps(expected, ensure_ascii=False))
    print("helmet", {name: len(rows["prompts"]) for name, rows in expected.items()})


if __name__ == "__main__":
    nolima(sys.argv[1])
    helmet(sys.argv[2])
