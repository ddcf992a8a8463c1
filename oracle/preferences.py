"""Writes tests/golden_preferences: what TRL 1.16 computes when it teaches a tiny model by preferences.

    python oracle/preferences.py [dpo|kto|orpo|cpo|reward ...]

`model/` is a random Llama in f32, `reference/` the same moved by noise, `reward/` one with a score head. `TRAINER.json` has the rows as
TRL saw them and, for each case, losses, gradient norms and logged metrics of three AdamW steps (constant rate, clipped at norm 1, no
decay) over rows 0 to 3, 4 to 7 and 8 to 11. README.md explains the rest.
"""
import json
import random
import sys
import warnings
from pathlib import Path

import torch
import transformers as tf
import trl
from datasets import Dataset, disable_caching, disable_progress_bars
from sft import watched
from tokenizers import Tokenizer, models, pre_tokenizers
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_preferences"
VOCAB, RATE, ROWS = 96, 3e-3, 12
BOS, EOS, PAD = 1, 2, 0
DPO = {
    "sigmoid": dict(),
    "hinge": dict(loss_type=["hinge"]),
    "ipo": dict(loss_type=["ipo"]),
    "exo_pair": dict(loss_type=["exo_pair"], label_smoothing=1e-3, beta=0.3),
    "nca_pair": dict(loss_type=["nca_pair"]),
    "robust": dict(loss_type=["robust"], label_smoothing=0.1),
    "bco_pair": dict(loss_type=["bco_pair"]),
    "sppo_hard": dict(loss_type=["sppo_hard"], beta=0.5),
    "aot": dict(loss_type=["aot"]),
    "aot_smoothed": dict(loss_type=["aot"], label_smoothing=0.1),
    "aot_unpaired": dict(loss_type=["aot_unpaired"], label_smoothing=0.1),
    "apo_zero": dict(loss_type=["apo_zero"]),
    "apo_down": dict(loss_type=["apo_down"]),
    "discopop": dict(loss_type=["discopop"], discopop_tau=0.2),
    "sigmoid_norm": dict(loss_type=["sigmoid_norm"], beta=2.0),
    "sft": dict(loss_type=["sft"]),
    "combined": dict(loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]),
    "forward_kl": dict(f_divergence_type="forward_kl"),
    "js_divergence": dict(f_divergence_type="js_divergence", beta=0.5),
    "alpha_divergence": dict(f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.6),
    "ipo_js_divergence": dict(loss_type=["ipo"], f_divergence_type="js_divergence"),
    "length_desensitised": dict(ld_alpha=0.4),
    "weighted": dict(use_weighting=True),
    "reference_moves": dict(sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=0.6),
    "reference_before": dict(precompute_ref_log_probs=True),
    "accumulated": dict(per_device_train_batch_size=1, gradient_accumulation_steps=4),
    "cut": dict(max_length=14),
}
KTO = {
    "kto": dict(),
    "kto_sharp": dict(beta=0.5),
    "kto_weighted": dict(desirable_weight=1.0, undesirable_weight=1.4),
    "kto_accumulated": dict(per_device_train_batch_size=2, gradient_accumulation_steps=2),
    "reference_before": dict(precompute_ref_log_probs=True),
    "apo_zero_unpaired": dict(loss_type="apo_zero_unpaired", desirable_weight=1.2),
}
ORPO = {"orpo": dict(), "orpo_sharp": dict(beta=0.5)}
CPO = {
    "cpo": dict(),
    "cpo_smoothed": dict(label_smoothing=0.1, cpo_alpha=0.5),
    "cpo_hinge": dict(loss_type="hinge"),
    "cpo_ipo": dict(loss_type="ipo"),
    "simpo": dict(loss_type="simpo", cpo_alpha=0.0, beta=2.0, simpo_gamma=1.0),
    "simpo_nll": dict(loss_type="simpo", cpo_alpha=1.0, beta=2.0),
    "alphapo": dict(loss_type="alphapo", alpha=0.1, beta=2.0),
}
REWARD = {
    "plain": dict(),
    "margin": dict(margin=True),
    "centred": dict(center_rewards_coefficient=0.05),
    "margin_centred": dict(margin=True, center_rewards_coefficient=0.05),
}
NOT_METRICS = {"loss", "grad_norm", "learning_rate", "epoch", "step"}


def make_models():
    torch.manual_seed(5)
    config = tf.LlamaConfig(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                            num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=BOS,
                            eos_token_id=EOS, pad_token_id=None, dtype="float32")
    model = tf.LlamaForCausalLM(config)
    move(model, 0.08)
    model.save_pretrained(OUT / "model")
    move(model, 0.06)
    model.save_pretrained(OUT / "reference")
    config.pad_token_id, config.num_labels = PAD, 1
    reward = tf.LlamaForSequenceClassification(config)
    move(reward, 0.08)
    reward.save_pretrained(OUT / "reward")
    for folder in ("model", "reference"):
        (OUT / folder / "generation_config.json").unlink(missing_ok=True)


def move(model, by):
    with torch.no_grad():
        for weight in model.parameters():
            weight += by * torch.randn_like(weight)


def make_rows():
    """Random ids; completions end with EOS and share no length."""
    rng, rows = random.Random(11), []
    for _ in range(ROWS):
        prompt, chosen, rejected = ([rng.randrange(3, VOCAB) for _ in range(rng.randint(low, 9))] for low in (2, 1, 1))
        rows.append({"prompt": prompt, "chosen": chosen + [EOS], "rejected": rejected + [EOS]})
    return rows


def words(ids):
    return " ".join(f"w{i:02}" for i in ids)


def tokenizer():
    """Every id is a word. No template: who wants a BOS adds it. No special word begins another one."""
    made = Tokenizer(models.WordLevel({f"w{i:02}": i for i in range(VOCAB)}, unk_token="w00"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, bos_token="w01", eos_token="w02", pad_token="w00")


def train(kind, config, rows, how, reference=False, model=None):
    model = model or tf.LlamaForCausalLM.from_pretrained(OUT / "model")
    settings = dict(
        output_dir="/tmp/oracle_preferences", max_steps=3, per_device_train_batch_size=4, learning_rate=RATE,
        lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0, max_grad_norm=1.0, adam_beta1=0.9, adam_beta2=0.999,
        adam_epsilon=1e-8, bf16=False, use_cpu=True, logging_steps=1, save_strategy="no", report_to=[], gradient_checkpointing=False,
        disable_tqdm=True)
    args = config(**settings | how)
    more = dict(ref_model=tf.LlamaForCausalLM.from_pretrained(OUT / "reference")) if reference else {}
    trainer = watched(kind)(model=model, args=args, train_dataset=Dataset.from_list(rows), processing_class=tokenizer(), **more)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "grad_norm" in log]
    # What is accumulated was already divided by the number of parts or is here.
    parts = args.gradient_accumulation_steps
    losses = [sum(trainer.seen[at : at + parts]) / parts for at in range(0, len(trainer.seen), parts)]
    metrics = {key: [log.get(key) for log in logs] for key in sorted({key for log in logs for key in log} - NOT_METRICS)}
    found = {"losses": losses, "grad_norms": [log["grad_norm"] for log in logs], "metrics": metrics}
    return found, trainer.train_dataset


def columns(data, names):
    return [{name: row[name] for name in names} for row in data]


def dpo(rows):
    texts = [{"prompt": words(row["prompt"]) + " ", "chosen": words(row["chosen"]), "rejected": words(row["rejected"])} for row in rows]
    cases, names = {}, ["prompt_ids", "chosen_ids", "rejected_ids"]
    for name, how in DPO.items():
        found, data = train(trl.DPOTrainer, trl.DPOConfig, texts, how, reference=True)
        if how.get("precompute_ref_log_probs"):
            found["reference_logps"] = columns(data, ["ref_chosen_logps", "ref_rejected_logps"])
        cases[name] = how | found
    return {"rows": columns(data, names), "cases": cases}


def kto(rows):
    rng = random.Random(3)
    labels = [True, False, True, True, False, False, True, False] + [True] * 4
    texts = [{"prompt": words(row["prompt"]) + " ", "completion": words(row[rng.choice(["chosen", "rejected"])]), "label": label}
             for row, label in zip(rows, labels)]
    cases, seen = {}, {}
    for name, how in KTO.items():
        found, data = train(trl.KTOTrainer, trl.KTOConfig, texts, how, reference=True)
        if how.get("precompute_ref_log_probs"):
            found["reference_logps"] = columns(data, ["ref_logps", "ref_KL_logps"])
        cases[name] = how | found
        seen[name] = columns(data, ["KL_completion_ids"]) if "KL_completion_ids" in data.column_names else None
    rows = columns(data, ["prompt_ids", "completion_ids", "label"])
    return {"rows": rows, "mismatched": seen["kto"], "mismatched_accumulated": seen["kto_accumulated"], "cases": cases}


def without_reference(kind, config, wanted):
    def run(rows):
        texts = [{"prompt": words(row["prompt"]), "chosen": " " + words(row["chosen"]), "rejected": " " + words(row["rejected"])}
                 for row in rows]
        cases = {}
        for name, how in wanted.items():
            found, data = train(kind, config, texts, how)
            cases[name] = how | found
        names = ["prompt_input_ids", "chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels"]
        return {"rows": columns(data, names), "cases": cases}

    return run


def reward(rows):
    rng, cases = random.Random(4), {}
    margins = [rng.choice([0.0, 0.25, 0.5, 1.0, 3.0]) for _ in rows]
    plain = [{"chosen_ids": row["prompt"] + row["chosen"], "rejected_ids": row["prompt"] + row["rejected"]} for row in rows]
    with_margins = [row | {"margin": margin} for row, margin in zip(plain, margins)]
    for name, how in REWARD.items():
        how = dict(how)
        asked = with_margins if how.pop("margin", False) else plain
        model = tf.LlamaForSequenceClassification.from_pretrained(OUT / "reward")
        found, _ = train(trl.RewardTrainer, trl.RewardConfig, asked, how, model=model)
        cases[name] = how | {"margin": asked is with_margins} | found
    return {"rows": with_margins, "cases": cases}


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    disable_progress_bars()
    disable_caching()
    warnings.simplefilter("ignore")
    assert trl.__version__ == "1.16.0", trl.__version__
    wanted = sys.argv[1:]
    if not wanted:
        make_models()
    trainers = {
        "dpo": dpo, "kto": kto, "orpo": without_reference(ORPOTrainer, ORPOConfig, ORPO),
        "cpo": without_reference(CPOTrainer, CPOConfig, CPO), "reward": reward,
    }
    for name, run in trainers.items():
        if wanted and name not in wanted:
            continue
        found = run(make_rows())
        versions = {"trl": trl.__version__, "transformers": tf.__version__, "torch": torch.__version__.split("+")[0]}
        golden = versions | {"rate": RATE, "clip": 1.0, "bos": BOS, "eos": EOS, "pad": PAD} | found
        lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden.items() if key != "cases"]
        cases = ",\n ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in golden["cases"].items())
        (OUT / f"{name}.json").write_text("{\n" + ",\n".join(lines) + ',\n"cases": {\n ' + cases + "\n}}\n")
        for case, value in found["cases"].items():
            print(name, case, value["losses"], value["grad_norms"], flush=True)


if __name__ == "__main__":
    main()
