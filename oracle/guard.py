"""Perplexities by the formula of NeMo Guardrails 0.24.1 (`library/jailbreak_detection/heuristics/checks.py`) under a
generated GPT-2 whose tokens are bytes, with the log-probabilities of every window: `tests/golden_guard/perplexity.json`.
"""

import json
import random
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel

OUT = Path(__file__).parent.parent / "tests" / "golden_guard"
WORDS = "the of river a stone carries light under old bridge and while nobody zxqv counts every 7 blue day".split()


def model():
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=256, n_positions=1024, n_embd=32, n_layer=2, n_head=4, initializer_range=0.4)
    return GPT2LMHeadModel(config).eval()


def perplexity(net, text):
    """0.24.1's own loop, with bytes in place of GPT-2's tokens; also the rows of log-probabilities of its windows."""
    ids = torch.tensor([list(text.encode())])
    max_length, stride, seq_len = net.config.n_positions, 512, ids.size(1)
    nlls, rows, prev_end_loc = [], [], 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        trg_len = end_loc - prev_end_loc
        input_ids = ids[:, begin_loc:end_loc]
        target_ids = input_ids.clone()
        target_ids[:, :-trg_len] = -100
        with torch.no_grad():
            outputs = net(input_ids, labels=target_ids)
        nlls.append(outputs.loss)
        logprobs = torch.log_softmax(outputs.logits[0, :-1].double(), dim=-1)
        own = logprobs.gather(1, input_ids[0, 1:, None])[:, 0]
        rows.append([float(f"{value:.7g}") for value in own.tolist()])
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return torch.exp(torch.stack(nlls).mean()).item(), rows


def main():
    net, rng, cases = model(), random.Random(3), []
    for length in (12, 150, 700, 1100, 1600):
        text = " ".join(rng.choice(WORDS) for _ in range(length // 3))[:length]
        value, rows = perplexity(net, text)
        case = {"text": text, "perplexity": value, "rows": rows, "affixes": []}
        words = text.strip().split()
        if len(words) >= 20:
            for affix in (" ".join(words[0:19]), " ".join(words[-20:-1])):
                value, rows = perplexity(net, affix)
                case["affixes"].append({"text": affix, "perplexity": value, "rows": rows})
        cases.append(case)
    OUT.mkdir(exist_ok=True)
    (OUT / "perplexity.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
