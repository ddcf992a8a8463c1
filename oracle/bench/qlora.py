"""One training step of QLoRA by PEFT and bitsandbytes over a folder's weights in NF4, double quantised: its peak of anonymous memory, for
each length until the memory does not do. As `fathom train qlora adapter.targets=all-linear`; gradient checkpointing, AdamW of the adapter.

    python oracle/bench/llama_shape.py HF --vocab 128256
    oracle/bench/rival.sh qlora.py --model HF --memory-gib 3

Each length is a step in a process of its own, twice as long as the one before.
"""
import argparse
import json
import subprocess
import sys

import peft
import torch
from timing import PeakAnonymous, row
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


def step(args):
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                             bnb_4bit_compute_dtype=torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=how, dtype=torch.bfloat16)
    base.config.use_cache = False
    base = peft.prepare_model_for_kbit_training(base, gradient_checkpointing_kwargs={"use_reentrant": False})
    config = peft.LoraConfig(r=args.rank, lora_alpha=2 * args.rank, target_modules="all-linear", task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config).train()
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=2e-4)
    for tokens in [32, args.tokens]:
        ids = torch.randint(0, base.config.vocab_size, (1, tokens))
        with PeakAnonymous() as memory:
            model(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    row(bench="qlora", tokens=args.tokens, rank=args.rank, peak_rss_bytes=memory.peak)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--memory-gib", type=float, default=3.0)
    args = parser.parse_args()
    if args.tokens:
        return step(args)
    tokens = 128
    while True:
        again = [sys.executable, __file__, f"--model={args.model}", f"--rank={args.rank}", f"--tokens={tokens}"]
        done = subprocess.run(again, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.strip().splitlines()[-1])
        row(**found)
        if found["peak_rss_bytes"] > args.memory_gib * 2**30:
            return
        tokens *= 2


main()
