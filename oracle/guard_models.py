"""Times of rails that ask models, on generated models.

    PYTHON oracle/guard_models.py FATHOM perplexity
    PYTHON oracle/guard_models.py FATHOM stream
    PYTHON oracle/guard_models.py FATHOM early

`perplexity`: the rail `jailbreak` by perplexity on a text of 512 tokens under a generated GPT-2, next to NeMo Guardrails
0.24.1's own loop over Transformers: both figures, both times. `stream`: an answer of 512 tokens with and without the
rail `content_safety` on the stream, and the share of the judge's prompts that was cached. `early`: the first token with
`speculative = true`, next to the first token without rails and the judge's own time.

Needs PyTorch and Transformers.
"""

import http.client
import json
import math
import pathlib
import statistics
import sys
import tempfile
import time

from guard_rivals import WORDS, Server, started

CHAT = "{% for m in messages %}{{ m.role + ': ' + m.content + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"


def say(*words):
    print(*words, flush=True)


VOCABULARY = 4096


def tokenizer(folder, chat):
    """Byte-level BPE: without merges, or, for a model that chats, with those of the handbook."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    visible = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE({letter: at for at, letter in enumerate(visible)}, []))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=chat)
    bare.decoder = decoders.ByteLevel()
    config = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if chat:
        pages = sorted(str(page) for page in (pathlib.Path(__file__).parent.parent / "docs").glob("*.md"))
        bare.train(pages, trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=visible, show_progress=False))
        config["chat_template"] = CHAT
    bare.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def gpt2(folder, **shape):
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(7)
    config = GPT2Config(n_positions=1024, bos_token_id=0, eos_token_id=0, **shape)
    net = GPT2LMHeadModel(config).eval()
    net.save_pretrained(folder)
    tokenizer(folder, False)
    return net


def llama(folder, seed, hidden, layers):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 128, max_position_embeddings=8192,
        bos_token_id=0, eos_token_id=0, tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer(folder, True)


def theirs(net, ids):
    """0.24.1's own loop (`library/jailbreak_detection/heuristics/checks.py`), on given tokens."""
    import torch
    ids = torch.tensor([ids])
    max_length, stride, seq_len = net.config.n_positions, 512, ids.size(1)
    nlls, prev_end_loc = [], 0
    for begin_loc in range(0, seq_len, stride):
        end_loc = min(begin_loc + max_length, seq_len)
        input_ids = ids[:, begin_loc:end_loc]
        target_ids = input_ids.clone()
        target_ids[:, :-(end_loc - prev_end_loc)] = -100
        with torch.no_grad():
            nlls.append(net(input_ids, labels=target_ids).loss)
        prev_end_loc = end_loc
        if end_loc == seq_len:
            break
    return torch.exp(torch.stack(nlls).mean()).item()


def perplexity(fathom):
    import random
    import torch
    torch.set_num_threads(2)
    rng = random.Random(1)
    # One word, so that no affix is read: the time is that of one perplexity.
    text = "".join(rng.choice("abcdefghijklmnop") for _ in range(512))
    for name, shape in (("GPT-2 small", {}), ("a tenth of it", {"n_layer": 4, "n_embd": 384, "n_head": 6, "vocab_size": 8192})):
        with tempfile.TemporaryDirectory() as scratch:
            model = pathlib.Path(scratch) / "gpt2"
            net = gpt2(model, **shape)
            from tokenizers import Tokenizer
            ids = Tokenizer.from_file(str(model / "tokenizer.json")).encode(text).ids
            rail = f'[[rail]]\nuse = "jailbreak"\non = ["input"]\naction = "flag"\nmethod = "perplexity"\nformula = "windows"\nmodel = "{model}"\n'
            server = Server(fathom, rail + "timeout_ms = 60000\n")
            connection = server.connect()
            own, other, verdict, value = [], [], None, None
            for _ in range(5):
                verdict = server.check(connection, text)["verdicts"][0]
                own.append(verdict["took_us"] / 1e3)
                began = time.perf_counter()
                value = theirs(net, ids)
                other.append(1e3 * (time.perf_counter() - began))
            server.stop()
            # The score is characters per perplexity over twice its threshold.
            found = len(text) / (2 * 89.79 * verdict["score"]) if verdict.get("score", 1) < 1 else math.nan
            millions = sum(it.numel() for it in net.parameters()) / 1e6
            say(f"{name}, {millions:.0f}M parameters, 512 tokens: fathom {min(own):.0f} ms, 0.24.1's loop {min(other):.0f} ms;"
                f" perplexity {found:.4f} and {value:.4f}")


class Model:
    """`fathom serve` with models and a guard."""

    def __init__(self, fathom, models, guard=None):
        args = [fathom, "serve", *map(str, models), "--port", "0"] + (["--guard", str(guard)] if guard else [])
        self.process, self.host = started(args)
        self.railed = guard is not None

    def answer(self, model, question, tokens):
        """Seconds to the first text and to the end, and the calls of models by rails."""
        line = http.client.HTTPConnection(self.host)
        body = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": tokens,
                "min_tokens": tokens, "temperature": 1.0, "seed": 7, "stream": True, "ignore_eos": True}
        if self.railed:
            body["guardrails"] = {"options": {"log": {"llm_calls": True}}}
        began, first, calls = time.perf_counter(), None, []
        line.request("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
        for row in line.getresponse():
            if row.startswith(b"data: {"):
                part = json.loads(row[6:])
                calls += part.get("guardrails", {}).get("log", {}).get("llm_calls", [])
                if part["choices"] and part["choices"][0]["delta"].get("content"):
                    first = first or time.perf_counter() - began
        return first, time.perf_counter() - began, calls

    def stop(self):
        self.process.terminate()
        self.process.wait()


def folders(scratch, hidden, layers, part=1):
    """A model, a judge of the same shape or of a part of its width and depth, and a folder of guardrails."""
    main, judge, guard = (pathlib.Path(scratch) / name for name in ("main", "judge", "guard"))
    llama(main, 1, hidden, layers)
    llama(judge, 2, hidden // part, layers // part)
    guard.mkdir()
    return main, judge, guard


def stream(fathom):
    for window, part in ((64, 1), (64, 2)):
        with tempfile.TemporaryDirectory() as scratch:
            main, judge, guard = folders(scratch, 768, 12, part)
            (guard / "guard.toml").write_text(
                '[[rail]]\nuse = "content_safety"\non = ["output"]\naction = "flag"\nformat = "llama_guard"\n'
                f'model = "../judge"\nwindow = {window}\ntimeout_ms = 60000\n'
            )
            bare, railed = Model(fathom, [main]), Model(fathom, [main], guard)
            times = {bare: [], railed: []}
            for turn in range(3):
                for server in (bare, railed):
                    times[server].append(server.answer("main", f"Question {turn}: " + " ".join(WORDS), 512))
            [server.stop() for server in times]
            own, other = (statistics.median(took[1] for took in times[server][1:]) for server in (railed, bare))
            calls = [call for took in times[railed][1:] for call in took[2]]
            tokens, cached = (sum(call.get(name, 0) for call in calls) for name in ("prompt_tokens", "cached_tokens"))
            say(f"512 tokens, window {window}, judge 1/{part ** 3} of the model: {own:.2f} s with content_safety, {other:.2f} s without: {own / other:.2f} x; first text"
                f" {times[railed][-1][0]:.3f} s; {len(calls) / 2:.0f} calls of {sum(call['duration'] for call in calls) / len(calls):.3f} s;"
                f" of {tokens / 2:.0f} tokens of the judge's prompts {cached / tokens:.1%} cached")


def early(fathom):
    with tempfile.TemporaryDirectory() as scratch:
        main, judge, guard = folders(scratch, 512, 8)
        rail = '[[rail]]\nuse = "self_check"\non = ["input"]\naction = "flag"\nmodel = "../judge"\npolicy = ["Be kind."]\n'
        servers = {"without rails": Model(fathom, [main])}
        for flag in ("false", "true"):
            (guard / "guard.toml").write_text(f"[guard]\nspeculative = {flag}\n{rail}")
            servers[f"speculative = {flag}"] = Model(fathom, [main], guard)
        times = {name: [] for name in servers}
        for turn in range(8):
            for name, server in servers.items():
                times[name].append(server.answer("main", f"Question {turn}: " + " ".join(WORDS) * 8, 8))
        for name, server in servers.items():
            server.stop()
            judged = [call["duration"] for took in times[name][1:] for call in took[2]]
            note = f", of which the judge {1e3 * statistics.median(judged):.0f} ms" if judged else ""
            say(f"{name}: first token after {1e3 * statistics.median(took[0] for took in times[name][1:]):.0f} ms{note}")


if __name__ == "__main__":
    {"perplexity": perplexity, "stream": stream, "early": early}[sys.argv[2]](sys.argv[1])
