"""Writes tests/golden_adapters/encoders: adapters by PEFT 0.21 of tiny encoders and encoder-decoders, and what they compute.

    python oracle/adapters_encoders.py [CASE ...]

Bases are the folders of `encoders.py`, `masked.py` and `t5.py`. Every case has the folder that PEFT wrote (`before/`, perturbed
so that nothing is zero), expected.json (ids, labels, the summed loss, greedy answers) and expected.safetensors: outputs, those of the merged
model, and `grad.NAME` of every trained tensor by its name in the folder.
"""
import copy
import json
import shutil
import sys
import warnings
from pathlib import Path

import peft
import torch
import torch.nn.functional as F
import transformers as tf
from peft import IA3Config, LoraConfig
from safetensors.torch import load_file, save_file

from adapters import close, in_folder, save, trained_of

TESTS = Path(__file__).resolve().parent.parent / "tests"
OUT = TESTS / "golden_adapters" / "encoders"
LENGTHS = [9, 14, 6, 11]
PAIRS = [(37, 9), (5, 14), (60, 6)]
IGNORED = -100
TEMPERATURE = 0.2


def lora(targets, task, **more):
    return LoraConfig(**dict(r=3, lora_alpha=6, target_modules=targets, task_type=task) | more)


def cases():
    """Yields name, base, class, configuration and loss."""
    vectors, texts, tokens, masked, pairs = (
        tf.AutoModel, tf.AutoModelForSequenceClassification, tf.AutoModelForTokenClassification, tf.AutoModelForMaskedLM,
        tf.AutoModelForSeq2SeqLM)
    bert = ["query", "key", "value", "dense"]
    # The pooler, which vectors do not use, has terms too.
    yield "bert_vectors", "encoders/embed_bert", vectors, lora(bert, "FEATURE_EXTRACTION"), "vectors"
    yield "modernbert_vectors", "masked/modernbert", vectors, lora(["Wqkv", "Wo"], "FEATURE_EXTRACTION"), "vectors"
    yield "bert_texts", "encoders/bert", texts, lora(bert, "SEQ_CLS"), "texts"
    yield "bert_texts_saved", "encoders/bert", texts, lora(["query", "value"], "SEQ_CLS", modules_to_save=["pooler.dense"]), "texts"
    yield "bert_ranks", "encoders/bert", texts, lora(
        ["query", "key", "dense"], "SEQ_CLS", rank_pattern={"key": 2}, alpha_pattern={"output.dense": 4}, use_rslora=True), "texts"
    yield "roberta_texts", "encoders/roberta", texts, lora(["query", "value", "output.dense"], "SEQ_CLS", use_dora=True), "texts"
    yield "deberta_texts", "encoders/deberta", texts, lora(["query_proj", "key_proj", "value_proj"], "SEQ_CLS"), "texts"
    yield "modernbert_texts", "masked/modernbert", texts, lora("all-linear", "SEQ_CLS"), "texts"
    # The projection of embeddings has terms too.
    yield "electra_texts", "masked/electra_narrow", texts, lora("all-linear", "SEQ_CLS"), "texts"
    yield "distilbert_tokens", "masked/distilbert", tokens, lora(["q_lin", "v_lin", "lin2"], "TOKEN_CLS"), "tokens"
    yield "bert_masked", "masked/bert", masked, lora(["key", "dense"], None), "masked"
    ia3 = dict(target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"])
    yield "bert_ia3", "encoders/bert", texts, IA3Config(task_type="SEQ_CLS", **ia3), "texts"
    yield "t5_lora", "golden_t5/t5_v11", pairs, lora(["q", "k", "v", "o", "wi_0", "wi_1", "wo", "lm_head"], "SEQ_2_SEQ_LM"), "pairs"
    yield "t5_v10_lora", "golden_t5/t5_v10", pairs, lora(["q", "v", "wi", "wo"], "SEQ_2_SEQ_LM"), "pairs"
    yield "t5_dora", "golden_t5/t5_v11", pairs, lora(["k", "v", "wo"], "SEQ_2_SEQ_LM", use_dora=True), "pairs"
    t5 = dict(target_modules=["k", "v", "wo"], feedforward_modules=["wo"])
    # Of a folder with a tokenizer, for servers.
    yield "t5_served", "golden_harness/models/t5", pairs, lora(["q", "v", "wo"], "SEQ_2_SEQ_LM"), "pairs"
    yield "t5_served_dora", "golden_harness/models/t5", pairs, lora(["k", "o"], "SEQ_2_SEQ_LM", use_dora=True), "pairs"
    yield "t5_ia3", "golden_t5/t5_v11", pairs, IA3Config(task_type="SEQ_2_SEQ_LM", **t5), "pairs"


def base_of(base, kind, loss):
    more = dict(num_labels=4) if loss in ("tokens", "texts") and base.startswith("masked") else {}
    model = kind.from_pretrained(TESTS / base, attn_implementation="eager", dtype=torch.float32, **more).eval()
    if loss == "pairs" and model.config.model_type == "t5" and "lm_head.weight" in load_file(TESTS / base / "model.safetensors"):
        # The folder says so, and Transformers scales the states if it did not.
        model.config.scale_decoder_outputs = False
    return model


def outputs(model, loss, batch):
    """One document after the other."""
    if loss == "pairs":
        rows = [model(input_ids=s[None], decoder_input_ids=d[None], use_cache=False).logits[0] for s, d, _ in batch]
        return torch.cat(rows)
    docs = [model(input_ids=ids[None]) for ids, _ in batch]
    if loss == "vectors":
        return torch.cat([doc.last_hidden_state[0] for doc in docs])
    return torch.cat([doc.logits[0] if loss != "texts" else doc.logits for doc in docs])


def summed_loss(found, loss, batch):
    if loss == "vectors":
        starts = [sum(LENGTHS[:at]) for at in range(len(LENGTHS) + 1)]
        pooled = torch.stack([F.normalize(found[a:b].mean(0), dim=0) for a, b in zip(starts, starts[1:])])
        scores = pooled[0::2] @ pooled[1::2].T / TEMPERATURE
        return F.cross_entropy(scores, torch.arange(len(scores)), reduction="sum")
    labels = torch.stack([doc[-1] for doc in batch]) if loss == "texts" else torch.cat([doc[-1] for doc in batch])
    return F.cross_entropy(found, labels, ignore_index=IGNORED, reduction="sum")


def batch_of(loss, vocab, labels_of_text, generator):
    draw = lambda length, top=vocab: torch.randint(3, top, (length,), generator=generator)
    if loss == "pairs":
        pairs = []
        for s, t in PAIRS:
            labels = draw(t)
            pairs.append((draw(s), torch.cat([torch.zeros(1, dtype=torch.long), labels[:-1]]), labels))
        return pairs
    if loss == "vectors":
        return [(draw(length), torch.full((length,), IGNORED)) for length in LENGTHS]
    if loss == "texts":
        return [(draw(length), torch.tensor(at % labels_of_text)) for at, length in enumerate(LENGTHS)]
    top = 4 if loss == "tokens" else vocab
    docs = []
    for length in LENGTHS:
        labels = torch.randint(0, top, (length,), generator=generator)
        chosen = torch.rand(length, generator=generator) < 0.4
        # The first token of a text has no label.
        chosen[0] = False
        docs.append((draw(length), torch.where(chosen, labels, IGNORED)))
    return docs


def write(name, base, kind, config, loss):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    torch.manual_seed(len(name))
    plain = base_of(base, kind, loss)
    model = peft.get_peft_model(copy.deepcopy(plain), copy.deepcopy(config)).eval()
    with torch.no_grad():
        for weight in trained_of(model).values():
            weight += 0.1 * torch.randn_like(weight)
    batch = batch_of(loss, plain.config.vocab_size, plain.config.num_labels, torch.Generator().manual_seed(9))
    tensors = {}
    with torch.no_grad():
        if (outputs(plain, loss, batch) - outputs(model, loss, batch)).abs().max() < 0.01:
            raise SystemExit(f"{name}: the adapter changes nothing")
        merged = copy.deepcopy(model).merge_and_unload(safe_merge=True)
        tensors["merged.outputs"] = outputs(merged, loss, batch)
    found = outputs(model, loss, batch)
    summed = summed_loss(found, loss, batch)
    summed.backward()
    tensors["outputs"] = found.detach()
    close(name, "merged", tensors["merged.outputs"], tensors["outputs"])
    save(model, folder / "before", base)
    grads = {in_folder(key): weight.grad for key, weight in trained_of(model).items() if weight.grad is not None}
    tensors |= {f"grad.{key}": grad for key, grad in grads.items()}
    if not set(grads) <= set(load_file(folder / "before" / "adapter_model.safetensors")):
        raise SystemExit(f"{name}: {set(grads)} are not in the folder")
    expected = dict(case=name, base=base, loss=loss, peft=peft.__version__, transformers=tf.__version__, summed=summed.item(),
                    temperature=TEMPERATURE, docs=[[part.tolist() for part in doc] for doc in batch])
    if loss == "pairs":
        with torch.no_grad():
            ask = dict(do_sample=False, num_beams=1, max_new_tokens=12, min_new_tokens=12)
            expected["greedy"] = [model.generate(input_ids=s[None], **ask)[0, 1:].tolist() for s, *_ in batch]
    save_file({key: value.contiguous() for key, value in tensors.items()}, folder / "expected.safetensors")
    (folder / "expected.json").write_text(json.dumps(expected) + "\n")
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{name:20} {size / 1024:4.0f} KiB  loss {summed.item():.5f}", flush=True)


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    assert peft.__version__ == "0.21.2", peft.__version__
    wanted = set(sys.argv[1:])
    for name, *case in cases():
        if not wanted or name in wanted:
            write(name, *case)


if __name__ == "__main__":
    main()
