"""Golden scores of answers by the projects' own code: tests/golden_eval/scores.json.

    python oracle/long.py LONGBENCH/metrics.py HELMET/utils.py

The arguments are the files of those names in checkouts of THUDM/LongBench (2e00731) and princeton-nlp/HELMET (4526dfb),
which are not part of this repository. The rules of MATH are those of the installed lm_eval 0.4.13. NDCG is that of
trec_eval, written out here. Needs `lm_eval==0.4.13 jieba rouge fuzzywuzzy rouge-score`, without python-Levenshtein: then
fuzzywuzzy compares by difflib, as LongBench's requirements have it.
"""
import importlib.util
import json
import math
import random
import sys
import types
from pathlib import Path

OUT = Path(__file__).parent.parent / "tests" / "golden_eval" / "scores.json"
WORDS = "The river an apple, a stone's IS yes no Paris 1914 42 Köln naïve (sic) the theme e.g. U.S. noanswer".split()
HAN = ["小明", "硕士", "毕业于", "中国科学院", "计算所", "，", "后在", "日本京都大学", "深造", "。", "北京", "大学生", "3个", "《红楼梦》", "OpenAI", "研究", "生命", "起源", "！", " ", "的"]
CODE = ["return self.value + other", "    for i in range(10):", "# a comment", "```python", "// note", "", "int x = 0;", "x = {'a': 1}",
        "self.assertEqual(first, second)" * 8]
MATH = [r"\frac{1}{2}", r"\frac12", "1/2", "0.5", r"\dfrac{1}{2}", "x=3", "3", r"3\text{ cm}", r"\sqrt3", r"\sqrt{3}", "a/b", r"50\%", "50",
        r"\left(1,2\right)", "(1, 2)", ".5", r"\$5", "5", r"90^\circ", r"\frac", r"\sqrt", "-3/4", r"-\frac{3}{4}", "07/2", "k = 7", "7",
        r"2\text{ a}\text{ b}", "x+y=4", "1,000", "1000", "", r"\text{east}", r"\frac1{72}", r"\frac{1}{72}", "1_0/2"]
FINAL = [r"$2\pi$ cm", r"2\pi", "100,000 dollars", "100000", r"\text{east}", "east", "x = 5", "5", "(0,1)", r"$\frac12$.", r"\frac{1}{2}",
         r"\sqrt[3]8", r"\sqrt[3]{8}", r"\sqrt2 square units", r"\sqrt{2}", r"\boxed{7}", "7", "an apple", "12 students", "12", r"90^{\circ}",
         "90 degrees", "90", r"\left[0, 3\right) feet", r"1{,}234", "1,234", r"\textbf{A}", "A", "5 ways", r"\mbox{odd}", "odd"]


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def ndcg(ranking, labels, k=10):
    gain = lambda labels: sum(label / math.log2(at + 2) for at, label in enumerate(labels[:k]))
    best = gain(sorted(labels.values(), reverse=True))
    order = sorted(ranking, key=lambda name: -ranking[name])
    return gain([labels.get(name, 0) for name in order]) / best if best else 0.0


def main(longbench, helmet):
    sys.modules["pytrec_eval"] = types.ModuleType("pytrec_eval")
    longbench, helmet = load("longbench_metrics", longbench), load("helmet_utils", helmet)
    for name in ("antlr4", "math_verify", "sympy", "sympy.parsing", "sympy.parsing.latex"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["math_verify"].parse = sys.modules["math_verify"].verify = sys.modules["sympy.parsing.latex"].parse_latex = None
    import importlib.metadata
    version = importlib.metadata.version
    import lm_eval.tasks
    folder = Path(lm_eval.tasks.__file__).parent
    hendrycks = load("hendrycks", folder / "hendrycks_math" / "utils.py")
    importlib.metadata.version = lambda name: "4.11.0" if name.startswith("antlr4") else version(name)
    minerva = load("minerva", folder / "minerva_math" / "utils.py")
    rng = random.Random(11)
    items = []

    def add(rule, answer, gold, score, row=None, **options):
        items.append({"rule": rule, "options": options, "answer": answer, "gold": gold, "row": row or {}, "score": float(score)})

    some = lambda words, most, by=" ": by.join(rng.choice(words) for _ in range(rng.randrange(most + 1)))
    for _ in range(40):
        answer, gold = some(WORDS, 8), some(WORDS, 5)
        add("qa_f1", answer, gold, longbench.qa_f1_score(answer, gold))
        add("f1", answer, gold, helmet.f1_score(answer, gold)[0])
        short = rng.choice(WORDS)
        for rule in ("exact_match", "substring_exact_match"):
            text = rng.choice([f"Answer: {short}\nand", f"{short}.", f"I say: answer: Answer: {short}", some(WORDS, 3)])
            raw, parsed = helmet.calculate_metrics(text, short), helmet.calculate_metrics(helmet.parse_output(text), short)
            add(rule, text, short, max(raw[rule], parsed[rule]), prefix="Answer:")
        answer, gold = (". ".join(some(WORDS, 9) for _ in range(rng.randrange(1, 5))) for _ in range(2))
        add("rouge", answer, gold, longbench.rouge_score(answer, gold))
        answer, gold = some(HAN, 9, ""), some(HAN, 9, "")
        add("qa_f1_zh", answer, gold, longbench.qa_f1_zh_score(answer, gold))
        add("rouge_zh", answer, gold, longbench.rouge_zh_score(answer, gold))
        answer, gold = some(CODE, 4, "\n"), rng.choice(CODE)
        add("code_sim", answer, gold, longbench.code_sim_score(answer, gold))
        classes = ["Human", "Human body", "Body", "Body part", "Human body part", "City"]
        answer, gold = some(classes, 3), rng.choice(classes)
        add("classification", answer, gold, longbench.classification_score(answer, gold, all_classes=classes), {"all_classes": classes})
        answer, number = some(["Paragraph 3", "13", "段落7", "3", "no", "7."], 3), rng.choice("37")
        add("count", answer, number, longbench.count_score(answer, number))
        add("retrieval", answer, f"Paragraph {number}", longbench.retrieval_score(answer, f"Paragraph {number}"))
        add("retrieval_zh", answer, f"段落{number}", longbench.retrieval_zh_score(answer, f"段落{number}"))
        ids = [str(i) for i in range(rng.randrange(2, 14))]
        labels = {name: rng.randrange(4) for name in ids}
        order = rng.sample(ids, rng.randrange(len(ids) + 1))
        answer = rng.choice(["Ranking: {}", "{}\n1 > 2", "[{}]", "none"]).format(rng.choice([" > ", ">", " > ID"]).join(order + order[:1]))
        ctxs = [{"id": name, "label": label} for name, label in labels.items()]
        add("ndcg", answer, "", ndcg(helmet.parse_rankings(answer), labels), {"ctxs": ctxs})
        answer = rng.choice(["", "\n\n", "Human\nBody"]) + some(classes, 2, "\n")
        first = answer.lstrip("\n").split("\n")[0]
        add("classification", answer, "Human", longbench.classification_score(first, "Human", all_classes=classes), {"all_classes": classes}, first_line=True)
    for a in MATH:
        for b in rng.sample(MATH, 12) + [a]:
            answer = rng.choice([a, f"${a}$", f"It is ${a}$.", f"$x$ or ${a}$"])
            solution = rng.choice([f"so $\\boxed{{{b}}}$.", f"\\boxed{{1}} and then $\\boxed{{{b}}}$"])
            add("math", answer, solution, hendrycks.process_results({"solution": solution}, [answer])["exact_match"])
    for a in FINAL:
        for b in rng.sample(FINAL, 12) + [a]:
            answer = rng.choice([f"Final Answer: The final answer is {a}. I hope it is correct.", f"Final Answer: The final answer is ${a}$. I hope it is",
                                 f"So.\nFinal Answer: The final answer is {a}.", a])
            solution = f"$\\boxed{{{b}}}$"
            found = minerva.normalize_final_answer(minerva.get_unnormalized_answer(answer))
            gold = minerva.normalize_final_answer(minerva.remove_boxed(minerva.last_boxed_only_string(solution)))
            add("minerva", answer, solution, bool(found) and found == gold)
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text("[\n" + ",\n".join(json.dumps(item, ensure_ascii=False) for item in items) + "\n]\n")
    print(len(items), {rule: round(sum(i["score"] > 0 for i in items if i["rule"] == rule)) for rule in sorted({i["rule"] for i in items})})


if __name__ == "__main__":
    main(*sys.argv[1:])
