"""Writes tests/golden_sft: what TRL 1.16 computes when it teaches a tiny model, and how it packs rows.

    python oracle/sft.py

`model/` is a random Llama in f32. `steps.json` has the rows, all random, and for each case the losses and gradient norms of three AdamW
steps (constant rate, clipped at norm 1, no decay) over rows 0 to 3, 4 to 7 and 8 to 11, or over bins of them. `bins.json` has lengths
and the bins of `pack_dataset` (`bfd_split`).
"""
import json
import random
from pathlib import Path

import pyarrow as pa
import torch
import trl
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.utils.data import SequentialSampler
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer
from trl.data_utils import _pack_bfd

OUT = Path(__file__).parent.parent / "tests" / "golden_sft"
VOCAB, LONGEST, RATE = 96, 24, 1e-2
assert trl.__version__ == "1.16.0", trl.__version__


def bins():
    rng, cases = random.Random(22), []
    for seq_len, rows in ((16, 40), (64, 120), (100, 60)):
        lengths = [rng.randint(1, seq_len + seq_len // 4) for _ in range(rows)]
        ids = pa.array([[row] * length for row, length in enumerate(lengths)], type=pa.list_(pa.int64()))
        packed = _pack_bfd(pa.table({"input_ids": ids}), seq_len, "split")
        found = []
        for row, pieces in zip(packed.column("input_ids").to_pylist(), packed.column("seq_lengths").to_pylist()):
            starts = [sum(pieces[:at]) for at in range(len(pieces))]
            found.append([[row[start], length] for start, length in zip(starts, pieces)])
        cases.append({"seq_len": seq_len, "lengths": lengths, "bins": found})
    return {"trl": trl.__version__, "cases": cases}


def make_model():
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=1,
                         eos_token_id=2, dtype="float32")
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.08 * torch.randn_like(weight)
    model.save_pretrained(OUT / "model")


def make_rows():
    rng, rows = random.Random(7), []
    for _ in range(12):
        length = rng.randint(6, LONGEST)
        ids = [rng.randrange(3, VOCAB) for _ in range(length - 1)] + [2]
        first = rng.randint(2, length - 3)
        completion = [int(at >= first) for at in range(length)]
        # Several turns.
        assistant = [int(at >= 2 and (at // 3) % 2) for at in range(length - 1)] + [1]
        rows.append({"input_ids": ids, "completion_mask": completion, "assistant_masks": assistant})
    return rows


def watched(kind):
    """A trainer of a kind that takes rows in order and notes the loss of each batch in `seen`."""

    class Watched(kind):
        def _get_train_sampler(self, *args, **kwargs):
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *args, **kwargs):
            result = super().compute_loss(*args, **kwargs)
            loss = result[0] if isinstance(result, tuple) else result
            self.seen = getattr(self, "seen", []) + [loss.item()]
            return result

    return Watched


def train(rows, mask, batch=4, accumulate=1, packed=False, loss_type="nll"):
    columns = ["input_ids"] + ([mask] if mask else [])
    data = Dataset.from_list([{key: row[key] for key in columns} for row in rows])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t0")),
        eos_token="t2", pad_token="t0")
    model = LlamaForCausalLM.from_pretrained(OUT / "model", attn_implementation="sdpa")
    config = SFTConfig(
        output_dir="/tmp/oracle_sft", max_steps=3, per_device_train_batch_size=batch, gradient_accumulation_steps=accumulate,
        learning_rate=RATE, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, adam_beta1=0.9,
        adam_beta2=0.999, adam_epsilon=1e-8, bf16=False, use_cpu=True, logging_steps=1, save_strategy="no", report_to=[],
        gradient_checkpointing=False, max_length=LONGEST, packing=packed, completion_only_loss=mask == "completion_mask",
        assistant_only_loss=False, loss_type=loss_type, disable_tqdm=True, dataset_num_proc=None)
    trainer = watched(SFTTrainer)(model=model, args=config, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    seen = trainer.seen
    losses = [sum(seen[at:at + accumulate]) for at in range(0, len(seen), accumulate)]
    said = {key: [log[key] for log in logs] for key in ("mean_token_accuracy", "entropy")}
    return {"losses": losses, "grad_norms": [log["grad_norm"] for log in logs], **said}


def main():
    (OUT / "model").mkdir(parents=True, exist_ok=True)
    (OUT / "bins.json").write_text(json.dumps(bins(), separators=(",", ":")) + "\n")
    make_model()
    rows = make_rows()
    cases = {
        "whole": dict(mask=None),
        "completion_only": dict(mask="completion_mask"),
        "assistant_only": dict(mask="assistant_masks"),
        "accumulated": dict(mask="assistant_masks", batch=1, accumulate=4),
        "dft": dict(mask="completion_mask", loss_type="dft"),
        "packed": dict(mask="completion_mask", packed=True, batch=1, accumulate=3),
        "packed_dft": dict(mask="completion_mask", packed=True, batch=1, accumulate=3, loss_type="dft"),
    }
    found = {}
    for name, how in cases.items():
        found[name] = {**how, **train(rows, **how)}
        print(name, found[name])
    golden = {"trl": trl.__version__, "longest": LONGEST, "rate": RATE, "rows": rows, "cases": found}
    (OUT / "steps.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
