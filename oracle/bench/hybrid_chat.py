"""A conversation with a hybrid that goes on after a long prompt: seconds to the first token, with and without kept states.

    python oracle/bench/hybrid_chat.py FATHOM OUT [--tokens 13500] [--answer 100] [--question 100] [--layers 8]

OUT gets a randomly initialised hybrid of the recipe `hybrid-256k`'s shape (hidden 512, seven layers of Mamba-2 and one of attention) with
a tokenizer. A server reads a prompt of that many tokens and answers; then the next turn (prompt, answer and a question) is asked four
times: by that server, by the server after a restart with its prefix store, by that one again under another salt, which finds nothing, and
by a server without a store. All four must say the same tokens. Prints one JSON line with the times.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import time
import urllib.request

from serving import wait_ready

PORT = 8176
VOCAB = 8000


def model(folder, layers):
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    config = GraniteMoeHybridConfig(
        vocab_size=VOCAB, hidden_size=512, intermediate_size=1408, shared_intermediate_size=1408, num_hidden_layers=layers,
        num_attention_heads=8, num_key_value_heads=4, num_local_experts=0, num_experts_per_tok=0, mamba_n_heads=16, mamba_d_head=64,
        mamba_d_state=128, mamba_n_groups=1, mamba_expand=2, max_position_embeddings=32768, position_embedding_type="rope",
        layer_types=["attention" if layer % 8 == 3 else "mamba" for layer in range(layers)], tie_word_embeddings=True,
        initializer_range=0.05, bos_token_id=0, eos_token_id=0, pad_token_id=0)
    GraniteMoeHybridForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = {"<|endoftext|>": 0, **{f"w{index}": index for index in range(1, VOCAB)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<|endoftext|>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)


class Server:
    def __init__(self, args, *more):
        command = [args.fathom, "serve", args.model, "--port", str(PORT), "serve.context_tokens=16384", "serve.sequences=2",
                   "serve.draft_tokens=0", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(os.path.join(args.out, "log"), "a"))
        self.at = f"http://127.0.0.1:{PORT}"
        wait_ready(self.at)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def ask(self, prompt, tokens, salt=None):
        """Its tokens, and seconds to the first."""
        body = dict(prompt=prompt, max_tokens=tokens, temperature=0, stream=True, ignore_eos=True, return_token_ids=True)
        if salt:
            body["cache_salt"] = salt
        request = urllib.request.Request(self.at + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        began, first, ids = time.monotonic(), None, []
        with urllib.request.urlopen(request, timeout=600) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:]).get("choices", []):
                    own = choice.get("token_ids") or []
                    if own and first is None:
                        first = time.monotonic() - began
                    ids += own
        return ids, first


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("fathom")
    parser.add_argument("out")
    parser.add_argument("--tokens", type=int, default=13500)
    parser.add_argument("--answer", type=int, default=100)
    parser.add_argument("--question", type=int, default=100)
    parser.add_argument("--layers", type=int, default=8)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    args.model, store = os.path.join(args.out, "model"), os.path.join(args.out, "kept")
    if not os.path.exists(args.model):
        model(args.model, args.layers)
    shutil.rmtree(store, ignore_errors=True)
    drawn = random.Random(1)
    prompt, question = ([drawn.randrange(1, VOCAB) for _ in range(count)] for count in (args.tokens, args.question))
    with Server(args, "--prefix-store", store) as server:
        answer, first = server.ask(prompt, args.answer)
        turn = prompt + answer + question
        said, memory = server.ask(turn, 8)
        # What was stored for the turn itself must not be found by the next server.
        shutil.rmtree(store, ignore_errors=True)
    with Server(args, "--prefix-store", store) as server:
        server.ask(prompt, args.answer)
    with Server(args, "--prefix-store", store) as server:
        restarted = server.ask(turn, 8)
        salted = server.ask(turn, 8, "another")
    with Server(args) as server:
        alone = server.ask(turn, 8)
    assert said == restarted[0] == salted[0] == alone[0], (said, restarted[0], salted[0], alone[0])
    seconds = dict(prompt=first, memory=memory, restarted=restarted[1], salted=salted[1], alone=alone[1])
    ratios = {name: round(alone[1] / value, 1) for name, value in seconds.items() if name in ("memory", "restarted")}
    print(json.dumps(dict(tokens=len(turn), seconds={name: round(value, 3) for name, value in seconds.items()}, sooner=ratios)))


if __name__ == "__main__":
    main()
