"""Does Transformers load a folder that Fathom wrote, unchanged, and compute the same?

    fathom inspect logits DIR --ids 5,17,3,99 --precision f32 --out logits.safetensors
    fathom generate DIR ... > continuation.txt            (greedy; optional)
    python oracle/check_hf_folder.py DIR --ids 5,17,3,99 --logits logits.safetensors \
        [--prompt TEXT --continuation continuation.txt --new-tokens 32]

With --fathom PATH the logits are asked for here, for the tokens of --prompt if no --ids are given. Prints one PASS or
FAIL line per check with the error, and exits with 1 if any failed. Nothing here trusts remote code.
"""
import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def verdict(ok, what):
    print(("PASS " if ok else "FAIL ") + what, flush=True)
    return ok


def load(folder):
    """The model in f32, with every weight found and none left over."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    names = ("missing_keys", "unexpected_keys", "mismatched_keys")
    bad = {k: sorted(map(str, info[k])) for k in names if info.get(k)}
    weights = sum(p.numel() for p in model.parameters())
    return model.eval(), verdict(not bad, f"load: {type(model).__name__}, {weights} weights {bad or ''}")


def check_tokenizer(folder, text):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(text)["input_ids"]
    back = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return tokenizer, verdict(back == text, f"tokenizer: {type(tokenizer).__name__}, {len(ids)} tokens, text comes back")


def ask_fathom(binary, folder, ids):
    out = Path(tempfile.mkdtemp()) / "logits.safetensors"
    command = [binary, "inspect", "logits", folder, "--ids", ",".join(map(str, ids)),
               "--precision", "f32", "--out", str(out)]
    subprocess.run(command, check=True)
    return out


def check_logits(model, ids, path, tolerance):
    ours = load_file(path)["logits"].float()
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    if ours.shape != theirs.shape:
        return verdict(False, f"logits: shape {tuple(ours.shape)}, Transformers' {tuple(theirs.shape)}")
    error = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    return verdict(error <= tolerance, f"logits: {len(ids)} tokens, largest error {error:.2e} of the largest logit")


def check_greedy(model, tokenizer, args):
    ids = tokenizer(args.prompt, return_tensors="pt")["input_ids"]
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False,
                         max_new_tokens=args.new_tokens, pad_token_id=0)
    theirs = tokenizer.decode(out[0, ids.shape[1]:], clean_up_tokenization_spaces=False)
    ours = Path(args.continuation).read_text()
    # Fathom may print the prompt first, and ends with a line break of its own.
    same = ours.rstrip("\n") in (theirs.rstrip("\n"), (args.prompt + theirs).rstrip("\n"))
    if not same:
        print(f"  Transformers: {theirs!r}\n  Fathom:       {ours!r}")
    return verdict(same, f"greedy: {args.new_tokens} tokens after the prompt")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--ids")
    parser.add_argument("--logits")
    parser.add_argument("--fathom")
    parser.add_argument("--prompt", default="The quick brown fox\n    jumps over déjà vu, 12345.")
    parser.add_argument("--continuation")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--tolerance", type=float, default=1e-4)
    args = parser.parse_args()
    model, ok = load(args.folder)
    tokenizer = None
    if (Path(args.folder) / "tokenizer.json").exists():
        tokenizer, good = check_tokenizer(args.folder, args.prompt)
        ok &= good
    elif not args.ids:
        raise SystemExit(f"{args.folder} has no tokenizer.json: give --ids")
    ids = [int(x) for x in args.ids.split(",")] if args.ids else tokenizer(args.prompt)["input_ids"]
    logits = args.logits or (args.fathom and ask_fathom(args.fathom, args.folder, ids))
    if logits:
        ok &= check_logits(model, ids, logits, args.tolerance)
    if args.continuation:
        ok &= check_greedy(model, tokenizer, args)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
