"""Does llama.cpp load a GGUF file that Fathom wrote, with the same logits?

    fathom inspect logits MODEL.gguf --ids 5,17,3,9 --out logits.safetensors
    python oracle/check_gguf.py MODEL.gguf logits.safetensors 5,17,3,9

Needs llama-cpp-python and numpy. Its cache of keys and values is f16, so logits differ in the fourth digit.
"""

import json
import struct
import sys

import numpy as np
from llama_cpp import Llama


def tensor(path: str, name: str) -> np.ndarray:
    """A tensor of f32 in a safetensors file."""
    data = open(path, "rb").read()
    (length,) = struct.unpack("<Q", data[:8])
    entry = json.loads(data[8 : 8 + length])[name]
    start, end = entry["data_offsets"]
    return np.frombuffer(data[8 + length + start : 8 + length + end], np.float32).reshape(entry["shape"])


def main(model: str, logits: str, ids: str) -> None:
    tokens = [int(id) for id in ids.split(",")]
    llama = Llama(model, n_ctx=max(64, len(tokens)), logits_all=True, verbose=False)
    llama.eval(tokens)
    theirs, ours = np.array(llama.scores[: len(tokens)]), tensor(logits, "logits")
    print("largest difference", np.abs(ours - theirs).max(), "of", np.abs(theirs).max())
    print("same choices", (ours.argmax(1) == theirs.argmax(1)).mean())


if __name__ == "__main__":
    main(*sys.argv[1:4])
