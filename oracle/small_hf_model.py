"""Writes a small Llama that Transformers made and trained for some seconds, as somebody else's model to extend.

    python oracle/small_hf_model.py OUT TEXT... [--seconds 60]

OUT gets config.json, model.safetensors, generation_config.json, tokenizer.json and tokenizer_config.json. TEXT are
files or folders of text. Hidden 64, 2 layers, 4 heads, 2 kv heads, 256 positions, a byte-level BPE of 1024 tokens.
"""
import argparse
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"
POSITIONS = 256
KINDS = (".md", ".txt", ".rs", ".py", ".html")


def read_texts(paths, limit_bytes):
    texts, total = [], 0
    for path in map(Path, paths):
        files = sorted(p for p in path.rglob("*") if p.suffix in KINDS) if path.is_dir() else [path]
        for file in files:
            if total > limit_bytes:
                return texts
            texts.append(file.read_text(errors="ignore"))
            total += len(texts[-1])
    return texts


def train_tokenizer(texts, vocab):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=[END], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, model_max_length=POSITIONS)


def train(model, ids, seconds, batch=8):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
    begin, step = time.perf_counter(), 0
    while (spent := time.perf_counter() - begin) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50) * max(0.1, 1 - spent / seconds)
        starts = torch.randint(0, len(ids) - POSITIONS, (batch,)).tolist()
        x = torch.stack([ids[s : s + POSITIONS] for s in starts])
        loss = model(input_ids=x, labels=x).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f} {spent:.0f} s", flush=True)
        step += 1
    print(f"step {step} loss {loss.item():.3f}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--limit-bytes", type=int, default=4_000_000)
    args = parser.parse_args()
    torch.manual_seed(0)
    texts = read_texts(args.texts, args.limit_bytes)
    tokenizer = train_tokenizer(texts, args.vocab)
    end = tokenizer.convert_tokens_to_ids(END)
    ids = torch.tensor([t for text in texts for t in [*tokenizer(text, verbose=False)["input_ids"], end]])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=POSITIONS,
        bos_token_id=end, eos_token_id=end, use_cache=True)
    model = LlamaForCausalLM(config)
    print(f"{sum(p.numel() for p in model.parameters())} weights, {len(ids)} tokens")
    train(model, ids, args.seconds)
    model.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)


if __name__ == "__main__":
    main()
