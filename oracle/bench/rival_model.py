"""The model of the step and decode figures: Transformers' Llama with random weights."""
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

FLAGS = dict(hidden=512, layers=8, heads=8, kv_heads=4, ffn=1408, vocab=32000, dtype="bf16", scores="flat")
# Makes scores of deviation one span 200, as those of trained models do.
SPREAD = 200 / 6


def build(args, max_tokens):
    config = LlamaConfig(
        hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads, intermediate_size=args.ffn, vocab_size=args.vocab,
        max_position_embeddings=max(16384, max_tokens), tie_word_embeddings=False, attn_implementation="sdpa",
        bos_token_id=None, eos_token_id=None)
    model = LlamaForCausalLM(config)
    if args.scores == "peaked":
        for layer in model.model.layers:
            layer.self_attn.scaling *= SPREAD / (args.hidden * config.initializer_range**2)
    return model.bfloat16() if args.dtype == "bf16" else model


def step_of(model, optimizer, ids, labels):
    """A training step: forward, backward, update."""
    def step():
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def tokenizer():
    """A hundred words that are ids, for trainers that insist on a tokenizer."""
    made = Tokenizer(models.WordLevel({f"w{i}": i for i in range(100)} | {"end": 100, "pad": 101}, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="end", pad_token="pad")
