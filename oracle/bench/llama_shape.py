"""Writes a Llama of 1B parameters with random weights in bf16, to be quantised and timed beside llama.cpp.

    python oracle/bench/llama_shape.py OUT [--vocab 32000] [--layers 16]

Hidden 2048, 32 heads, 8 of keys and values, ffn 8192, tied embeddings. Its tokenizer knows bytes and numbered words.
"""
import argparse
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END = "<|endoftext|>"


def tokenizer(vocab):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [END, *letters]
    merges = []
    for first in letters:
        for second in letters:
            if len(words) < vocab:
                merges.append((first, second))
                words.append(first + second)
    made = Tokenizer(models.BPE({word: at for at, word in enumerate(words)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--layers", type=int, default=16)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(hidden_size=2048, num_hidden_layers=args.layers, num_attention_heads=32, num_key_value_heads=8,
                         intermediate_size=8192, vocab_size=args.vocab, tie_word_embeddings=True,
                         max_position_embeddings=32768, rope_theta=500000.0, eos_token_id=0, bos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(args.out)
    tokenizer(args.vocab).save_pretrained(args.out)


main()
