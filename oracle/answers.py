"""Golden contexts and figures of tasks over generated answers by lm-evaluation-harness 0.4.13: tests/golden_eval/answers.

    python oracle/answers.py

`gsm8k`, `hendrycks_math_algebra`, `minerva_math_algebra`, `humaneval` and `mbpp` are the harness's own tasks over small made
files; `gsm8k_maj8` is our task file run by the harness. A scripted model gives the answers. A program passes if it holds
the word GOOD: `evaluate`'s code_eval is replaced, since it is downloaded, and so is SymPy, which our rules do not ask.
Needs `lm_eval==0.4.13`.
"""
import importlib.metadata
import json
import os
import random
import sys
import tempfile
import types
from pathlib import Path

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
import evaluate
import yaml

ROOT = Path(__file__).parent.parent
OUT = ROOT / "tests" / "golden_eval" / "answers"
TASKS = ROOT / "crates" / "eval" / "tasks"
RNG = random.Random(4)


class CodeEval:
    def compute(self, references, predictions, k):
        right = [[("GOOD" in program + "\n" + test) for program in programs] for programs, test in zip(predictions, references)]
        return {f"pass@{n}": sum(sum(r) / len(r) for r in right) / len(right) for n in k}, right


load = evaluate.load
evaluate.load = lambda name, *args, **kwargs: CodeEval() if name == "code_eval" else load(name, *args, **kwargs)
for name in ("antlr4", "math_verify", "sympy", "sympy.parsing", "sympy.parsing.latex"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["math_verify"].parse = lambda text: text
sys.modules["math_verify"].verify = lambda gold, target: False


def unreadable(text):
    raise TypeError(text)


sys.modules["sympy.parsing.latex"].parse_latex = unreadable
sys.modules["sympy"].SympifyError = ValueError
sys.modules["sympy"].parsing = sys.modules["sympy.parsing"]
sys.modules["sympy.parsing"].latex = sys.modules["sympy.parsing.latex"]
sys.modules["sympy.parsing.latex"].errors = types.SimpleNamespace(LaTeXParsingError=ValueError)
version = importlib.metadata.version
importlib.metadata.version = lambda name: "4.11.0" if name.startswith("antlr4") else version(name)

import lm_eval
from lm_eval.api.model import LM
from lm_eval.tasks import TaskManager


def lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def rows():
    sums = lambda n: [{"question": f"Ann has {a} pens and gets {b:,} more. How many?", "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}\n#### {a + b:,}"}
                      for a, b in [(RNG.randint(1, 99), RNG.randint(800, 1900)) for _ in range(n)]]
    lines(OUT / "openai__gsm8k" / "main" / "train.jsonl", sums(8))
    lines(OUT / "openai__gsm8k" / "main" / "test.jsonl", sums(6))
    boxes = [r"\frac{3}{4}", r"2\sqrt{3}", r"\text{east}", "1,250", "(0,1)", r"90^\circ"]
    lines(OUT / "EleutherAI__hendrycks_math" / "algebra" / "test.jsonl", [{"problem": f"What is $x_{i}$?", "solution": f"So $x = \\boxed{{{box}}}$.", "level": "1"}
                                                             for i, box in enumerate(boxes * 2)])
    lines(OUT / "openai__openai_humaneval" / "test.jsonl", [{"task_id": f"H/{i}", "prompt": f"def f{i}(x):\n    \"\"\"Adds {i}.\"\"\"\n", "entry_point": f"f{i}",
                                                    "test": f"def check(f):\n    assert f(1) == {i + 1}\n"} for i in range(4)])
    lines(OUT / "google-research-datasets__mbpp" / "full" / "test.jsonl", [{"task_id": i, "text": f"Write a function to add {i}.", "code": "", "test_setup_code": "",
                                                 "test_list": [f"assert f(1) == {i + k}" for k in range(3)]} for i in range(4)])


def answers(name, doc, count):
    if "gsm8k" in name:
        right = doc["answer"].split("#### ")[1]
        return [RNG.choice([f" It is {right}.\n#### {right}", f" #### {right.replace(',', '')}", " #### 12", f" {right} pens", " none"]) for _ in range(count)]
    if "math" in name:
        box = doc["solution"].split("boxed{")[1][:-3]
        other = RNG.choice([r"\frac34", r"2\sqrt3", "east", "1250", "(0, 1)", "90"])
        forms = ["${}$", " Final Answer: The final answer is ${}$. I hope it is correct.", " so {}", " Final Answer: The final answer is {}."]
        return [RNG.choice(forms).format(RNG.choice([box, box, other]))]
    return [RNG.choice(["    return x  # GOOD", "    return 0", "```python\nGOOD\n```", "    pass\n\ndef g(): GOOD"])]


class Scripted(LM):
    def __init__(self, name):
        super().__init__()
        self.name, self.given, self.count = name, {}, {}

    def generate_until(self, requests, disable_tqdm=False):
        out = []
        for request in requests:
            context, settings = request.args
            if context not in self.given:
                self.given[context] = answers(self.name, request.doc, request.repeats)
            at = self.count.get(context, 0)
            self.count[context] = at + 1
            text = self.given[context][at]
            for stop in settings["until"]:
                text = text.split(stop)[0]
            out.append(text)
        return out

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def main():
    rows()
    gsm8k = {**yaml.safe_load((TASKS / "gsm8k.yaml").read_text()), **yaml.safe_load((TASKS / "gsm8k_maj8.yaml").read_text())}
    gsm8k.pop("include")
    files = lambda folder, splits: {"dataset_path": "json", "dataset_name": None,
                                    "dataset_kwargs": {"data_files": {split: str(OUT / folder / f"{split}.jsonl") for split in splits}}}
    own = Path(lm_eval.__file__).parent / "tasks"
    maj8 = Path(tempfile.mkdtemp()) / "maj8.yaml"
    maj8.write_text(yaml.safe_dump(gsm8k))
    cases = {
        "gsm8k": (own / "gsm8k" / "gsm8k.yaml", files("openai__gsm8k/main", ["train", "test"])),
        "gsm8k_maj8": (maj8, files("openai__gsm8k/main", ["train", "test"])),
        "hendrycks_math_algebra": (own / "hendrycks_math" / "hendrycks_math_algebra.yaml", {**files("EleutherAI__hendrycks_math/algebra", ["test"]), "training_split": None}),
        "minerva_math_algebra": (own / "minerva_math" / "minerva_math_algebra.yaml", {**files("EleutherAI__hendrycks_math/algebra", ["test"]), "training_split": None}),
        "humaneval": (own / "humaneval" / "humaneval.yaml", files("openai__openai_humaneval", ["test"])),
        "mbpp": (own / "mbpp" / "mbpp.yaml", files("google-research-datasets__mbpp/full", ["test"])),
    }
    from lm_eval.tasks.mbpp import utils as mbpp
    lines(OUT / "google-research-datasets__mbpp" / "full" / "prompt.jsonl", [{k: v for k, v in row.items() if k != "is_fewshot"} | {"test_setup_code": ""} for row in mbpp.list_fewshot_samples()])
    expected = {}
    for name, (file, keys) in cases.items():
        model = Scripted(name)
        folder = Path(tempfile.mkdtemp())
        (folder / "task.yaml").write_text(yaml.safe_dump({"include": str(file), "task": f"made_{name}", **keys}))
        found = lm_eval.simple_evaluate(model, tasks=[f"made_{name}"], task_manager=TaskManager(include_path=str(folder)), bootstrap_iters=0, confirm_run_unsafe_code=True)
        figures = {key: value for key, value in found["results"][f"made_{name}"].items() if "," in key and "stderr" not in key and "math_verify" not in key}
        expected[name] = {"given": [[context, texts] for context, texts in model.given.items()], "figures": figures}
        print(name, figures)
    (OUT / "expected.json").write_text(json.dumps(expected, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
