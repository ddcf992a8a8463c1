"""Writes tests/golden_spans.json with numpy: inputs and targets of T5's span corruption, for given random choices.

    python oracle/spans.py

The functions follow `random_spans_noise_mask` and `noise_span_to_unique_sentinel` of T5's `t5/data/preprocessors.py`, with f32
arithmetic as TensorFlow's; the two shuffles are drawn here and written as `stay` and `drop`.
"""
import json
from pathlib import Path

import numpy as np

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_spans.json"
# The first of T5's sentinels, in a vocabulary of 32,100 pieces.
LAST = 32_099


def noise_mask(length, share, mean, draw):
    original, length = length, max(length, 2)
    noise = int(np.round(np.float32(length) * np.float32(share)))
    noise = min(max(noise, 1), length - 1)
    spans = max(int(np.round(np.float32(noise) / np.float32(mean))), 1)

    def segmentation(items):
        begins = (np.arange(items - 1) < spans - 1).astype(np.int32)
        draw.shuffle(begins)
        segment = np.cumsum(np.concatenate([[0], begins]))
        return begins.tolist(), np.bincount(segment)

    drop, noise_lengths = segmentation(noise)
    stay, other_lengths = segmentation(length - noise)
    lengths = np.stack([other_lengths, noise_lengths], axis=1).reshape(-1)
    starts = np.cumsum(lengths)[:-1]
    indicator = np.bincount(starts, minlength=length)
    return (np.cumsum(indicator) % 2 == 1)[:original], stay, drop


def to_unique_sentinel(tokens, mask):
    before = np.concatenate([[False], mask[:-1]])
    first, later = mask & ~before, mask & before
    sentinel = LAST + 1 - np.cumsum(first.astype(np.int64))
    return np.where(first, sentinel, tokens)[~later]


def main():
    draw, cases = np.random.default_rng(7), []
    for share, mean in [(0.15, 3.0), (0.15, 8.0), (0.5, 3.0), (0.5, 8.0), (0.15, 64.0), (0.3, 1.5)]:
        for length in [2, 3, 10, 30, 50, 70, 110]:
            text = draw.integers(3, 900, length)
            mask, stay, drop = noise_mask(length, share, mean, draw)
            inputs, targets = to_unique_sentinel(text, mask), to_unique_sentinel(text, ~mask)
            cases.append(dict(share=share, mean=mean, text=text.tolist(), stay=stay, drop=drop,
                              inputs=inputs.tolist(), targets=targets.tolist()))
    OUT.write_text(json.dumps(cases, separators=(",", ":")).replace("},{", "},\n{") + "\n")


if __name__ == "__main__":
    main()
