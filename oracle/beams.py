"""Writes tests/golden_beams/beams.json: what Transformers' beam search finds with the models of tests/golden.

    python oracle/beams.py

Of each case: the model's folder, the prompt, the settings, and of each answer its tokens and score. `gap` is the smallest
difference between two scores of one list: far above what f32 rounds.
"""
import json
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent / "tests"
OUT = ROOT / "golden_beams" / "beams.json"
MODELS = ["llama2", "gemma3"]
# Beams, answers, longest answer, fewest tokens, power of the length, when it ends.
WAYS = [
    (4, 4, 12, 0, 1.0, False),
    (4, 2, 12, 0, 1.0, True),
    (3, 3, 16, 0, 2.0, "never"),
    (3, 3, 16, 0, 0.0, "never"),
    (5, 5, 10, 6, 0.6, False),
    (2, 2, 20, 0, -1.0, False),
    (2, 1, 8, 0, 1.0, True),
    (6, 6, 8, 0, 1.0, None),
]


def ends_of(model, prompt):
    """Two tokens that beams write early: the second and the fifth of the greedy answer."""
    out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=6,
                         eos_token_id=None, pad_token_id=0)[0, prompt.shape[1]:].tolist()
    return [out[4], out[1]] if out[4] != out[1] else [out[4]]


def case(name, model, prompt, ends, way):
    beams, answers, longest, fewest, penalty, early = way
    # Without early stopping said, nothing ends an answer but its length.
    eos = None if early is None else ends
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, num_beams=beams, num_return_sequences=answers,
        max_new_tokens=longest, min_new_tokens=fewest or None, length_penalty=penalty, early_stopping=early or False,
        eos_token_id=eos, pad_token_id=0, return_dict_in_generate=True, output_scores=True)
    found = []
    for row, score, indices in zip(out.sequences, out.sequences_scores, out.beam_indices):
        tokens = row[prompt.shape[1]:][: int((indices >= 0).sum())].tolist()
        found.append({"tokens": tokens, "score": round(float(score), 5)})
    scores = [one["score"] for one in found]
    return {
        "model": name, "prompt": prompt[0].tolist(), "ends": eos or [], "beams": beams, "answers": answers,
        "max_tokens": longest, "min_tokens": fewest, "length_penalty": penalty, "early_stopping": early or False,
        "found": found, "gap": round(min([a - b for a, b in zip(scores, scores[1:])], default=1.0), 5),
    }


def main():
    cases = []
    for seed, name in enumerate(MODELS):
        model = AutoModelForCausalLM.from_pretrained(ROOT / "golden" / name, dtype=torch.float32,
                                                     attn_implementation="eager").eval()
        generator = torch.Generator().manual_seed(seed)
        prompt = torch.randint(0, model.config.vocab_size, (1, 10), generator=generator)
        ends = ends_of(model, prompt)
        cases += [case(name, model, prompt, ends, way) for way in WAYS]
    OUT.parent.mkdir(exist_ok=True)
    lines = ",\n".join(json.dumps(one) for one in cases)
    OUT.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n]}}\n')
    print(f"{OUT}: {len(cases)} cases, smallest gap {min(one['gap'] for one in cases)}")


main()
