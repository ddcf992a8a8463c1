"""Writes tests/golden_rl: losses, gradients and advantages of TRL 1.16's GRPOTrainer and RLOOTrainer on fixed tensors.

    python oracle/rl.py

Only the model and the rewards are ours: the trainers' own `_compute_loss` and `_generate_and_score_completions` run, in f64, on
given logits of completions and given rewards. README.md explains the files. Needs tests/golden_preferences/model.
"""
import json
import logging
import math
import warnings
from pathlib import Path

import torch
import transformers as tf
import trl
from datasets import Dataset, disable_progress_bars
from safetensors.torch import save_file

from preferences import EOS, OUT as PREFERENCES, PAD, tokenizer

OUT = Path(__file__).resolve().parent.parent / "tests" / "golden_rl"
LENGTHS, WIDEST, VOCAB = [7, 3, 5, 1, 6, 7], 7, 12
LOSSES = {
    "grpo": dict(loss_type="grpo"),
    "bnpo": dict(loss_type="bnpo"),
    "dr_grpo": dict(loss_type="dr_grpo", scale_rewards="none"),
    "dapo": dict(loss_type="dapo", epsilon_high=0.45),
    "dapo_parts": dict(loss_type="dapo", gradient_accumulation_steps=2, steps_per_generation=4),
    "grpo_parts": dict(loss_type="grpo", gradient_accumulation_steps=2),
    "cispo": dict(loss_type="cispo", epsilon_high=1.3),
    "sapo": dict(loss_type="sapo"),
    "sapo_hot": dict(loss_type="sapo", sapo_temperature_pos=2.0, sapo_temperature_neg=3.0),
    "luspo": dict(loss_type="luspo", importance_sampling_level="sequence", epsilon=0.03, epsilon_high=0.04),
    "vespo": dict(loss_type="vespo"),
    "gspo": dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=0.03, epsilon_high=0.04),
    "gspo_kl": dict(loss_type="grpo", importance_sampling_level="sequence", epsilon=0.03, epsilon_high=0.04, beta=0.04),
    "delta": dict(loss_type="grpo", delta=1.5),
    "kl_corrected": dict(loss_type="grpo", beta=0.04),
    "kl_plain": dict(loss_type="grpo", beta=0.04, use_bias_correction_kl=False),
    "kl_dapo": dict(loss_type="dapo", beta=0.1),
    "kl_cispo": dict(loss_type="cispo", epsilon_high=1.3, beta=0.1),
    "entropy": dict(loss_type="dapo", entropy_coef=0.02),
    "top_entropy": dict(loss_type="grpo", top_entropy_quantile=0.4),
    "off_policy": dict(loss_type="grpo", off_policy_mask_threshold=0.02),
    "on_policy": dict(loss_type="grpo", beta=0.04),
    "tools": dict(loss_type="dapo"),
    "sampler_tokens": dict(loss_type="dapo"),
    "sampler_sequences": dict(loss_type="grpo"),
}
FIXED = {
    "plain": [1, 0, 0, 0, 1, 1, 1, 1, 0.5, -2, 3, 0.25],
    "missing": [None, 1, 0, 2, None, None, None, 1, None, None, None, None],
    "one_missing": [None, 1, 1, 1, 0, 0, 0, None, 0.3, 0.7, -0.1, 5],
}
PAIRS = [[1, 0.5], [0, -1], [0, 2], [1, 2], [1, None], [1, 0], [None, None], [0, 3], [0.5, 1], [0.5, 1], [0.5, 1], [None, 4]]


def tensors():
    """Log-probabilities move by up to a half, so that ratios are clipped on both sides under both signs."""
    made = torch.Generator().manual_seed(24)
    rows = len(LENGTHS)
    found = {
        "logits": 1.5 * torch.randn(rows, WIDEST, VOCAB, generator=made),
        "completion_ids": torch.randint(3, VOCAB, (rows, WIDEST), generator=made),
        "mask": torch.tensor([[int(at < length) for at in range(WIDEST)] for length in LENGTHS]),
        "advantages": torch.tensor([1.2, -0.7, 0.0, 0.9, -1.4, 0.3]),
        "tool_mask": (torch.rand(rows, WIDEST, generator=made) > 0.3).long(),
    }
    logps = logps_and_entropies(found["logits"], found["completion_ids"])[0]
    for name, by in (("old_logps", 0.35), ("ref_logps", 0.5), ("sampler_logps", 0.1)):
        start = found["old_logps"] if name == "sampler_logps" else logps
        found[name] = (start + by * torch.randn(logps.shape, generator=made)).clamp(max=-1e-3)
    return found


def logps_and_entropies(logits, ids):
    logs = logits.log_softmax(-1)
    return logs.gather(-1, ids[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def fixed(kind, config):
    """The trainer, with a model that gives `self.scores` and rewards that are `self.given`."""

    class Fixed(kind):
        def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
            return self.scores["reference" if model is self.ref_model else "policy"] + (None,)

        def _calculate_rewards(self, *args, **kwargs):
            return self.given

        def _generate(self, prompts):
            ids = [[5] * (length - 1) + [EOS] for length in self.lengths]
            texts = [""] * len(ids)
            grpo = (None, texts, None, {}, None, None)
            return ([[4]] * len(ids), ids, *grpo) if kind is trl.GRPOTrainer else ([[4]] * len(ids), ids, texts)

    def make(rewards=1, **how):
        def reward(completions, **_):
            return [0.0] * len(completions)

        rewards = [reward] * rewards
        args = config(output_dir="/tmp/oracle_rl", bf16=False, use_cpu=True, report_to=[], gradient_checkpointing=False,
                      max_completion_length=16, disable_tqdm=True, **how)
        trainer = Fixed(model=str(PREFERENCES / "model"), reward_funcs=rewards, args=args, processing_class=tokenizer(),
                        train_dataset=Dataset.from_list([{"prompt": "w03"}] * 24))
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        return trainer

    return make


def metrics_of(trainer, mode="train"):
    return {key: numbers(value[-1]) for key, value in sorted(trainer._metrics[mode].items()) if not key.startswith("completions/")}


def numbers(value):
    """NaN is null in JSON."""
    if isinstance(value, list):
        return [numbers(one) for one in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def loss_of(trainer, given, inputs, level):
    """Loss and the gradients by log-probabilities and by logits; `level` replaces inputs of the trainer."""
    logits = given["logits"].double().requires_grad_()
    logps, entropies = logps_and_entropies(logits, given["completion_ids"])
    logps.retain_grad()
    trainer.scores = {"policy": (logps, entropies)}
    loss = trainer._compute_loss(trainer.model, inputs | level)
    loss.backward()
    return loss.item(), logps.grad, logits.grad


def losses(given):
    make = fixed(trl.GRPOTrainer, trl.GRPOConfig)
    saved, cases = {key: value for key, value in given.items()}, {}
    double = {key: given[key].double() for key in ("advantages", "old_logps", "ref_logps", "sampler_logps")}
    base = {
        "prompt_ids": torch.full((len(LENGTHS), 1), 4), "prompt_mask": torch.ones(len(LENGTHS), 1).long(),
        "completion_ids": given["completion_ids"], "completion_mask": given["mask"], "advantages": double["advantages"],
        "old_per_token_logps": double["old_logps"], "ref_per_token_logps": double["ref_logps"],
        "num_items_in_batch": given["mask"].sum().double(),
    }
    for name, how in LOSSES.items():
        trainer, level = make(per_device_train_batch_size=6, num_generations=3, **how), {}
        if name == "dapo_parts":
            level["num_items_in_batch"] = torch.tensor(90.0).double()
        if name == "on_policy":
            level["old_per_token_logps"] = None
        if name == "tools":
            level["tool_mask"] = given["tool_mask"]
            level["num_items_in_batch"] = (given["mask"] * given["tool_mask"]).sum().double()
        if name.startswith("sampler"):
            # As for vLLM's samples: a ratio for every token, cut, or one for the sequence, dropped beyond the bounds.
            trainer.use_vllm, trainer.vllm_importance_sampling_correction = True, True
            apart = (double["old_logps"] - double["sampler_logps"]) * given["mask"]
            ratio = apart.exp().clamp(max=1.1) if name == "sampler_tokens" else apart.sum(-1, keepdim=True).exp()
            level["importance_sampling_ratio"] = ratio if name == "sampler_tokens" else ratio.masked_fill(ratio > 1.25, 0.0)
            saved[f"{name}.ratio"] = level["importance_sampling_ratio"]
        loss, by_logps, by_logits = loss_of(trainer, given, base, level)
        saved |= {f"{name}.grad_logps": by_logps, f"{name}.grad_logits": by_logits}
        items = (base | level)["num_items_in_batch"].item()
        cases[name] = how | {"num_items_in_batch": items, "value": loss, "metrics": metrics_of(trainer)}
        print(name, loss, by_logps.norm().item(), flush=True)
    return saved, cases


def rloo_losses(given, saved):
    make, cases = fixed(trl.RLOOTrainer, trl.RLOOConfig), {}
    for name, how in {"rloo": dict(), "rloo_reversed": dict(), "rloo_wide": dict(epsilon=0.5, epsilon_high=0.9)}.items():
        trainer = make(per_device_train_batch_size=6, num_generations=3, **how)
        sign = -1.0 if name == "rloo_reversed" else 1.0
        inputs = {
            "prompt_ids": torch.full((len(LENGTHS), 1), 4), "prompt_mask": torch.ones(len(LENGTHS), 1).long(),
            "completion_ids": given["completion_ids"], "completion_mask": given["mask"], "advantages": sign * given["advantages"].double(),
            "old_logps": (given["old_logps"].double() * given["mask"]).sum(1),
        }
        loss, by_logps, by_logits = loss_of(trainer, given, inputs, {})
        saved |= {f"{name}.grad_logps": by_logps, f"{name}.grad_logits": by_logits}
        cases[name] = how | {"advantages_times": sign, "value": loss, "metrics": metrics_of(trainer)}
        print(name, loss, by_logps.norm().item(), flush=True)
    return cases


def advantages_of(make, rewards, generations, group=True, **how):
    """The trainer's own scoring of completions of 4, 5, 6, 4, .. tokens."""
    rows = len(rewards)
    rows_of = [row if isinstance(row, list) else [row] for row in rewards]
    given = torch.tensor([[math.nan if one is None else one for one in row] for row in rows_of], dtype=torch.float64)
    trainer = make(rewards=given.shape[1], per_device_train_batch_size=rows, num_generations=generations if group else rows, **how)
    if not group:
        trainer.model.eval()
        trainer.num_generations_eval = 1
    trainer.given = given
    trainer.lengths = [4 + row % 3 for row in range(rows)]
    made = torch.Generator().manual_seed(rows)
    policy, reference = (-torch.rand(rows, 6, generator=made, dtype=torch.float64) for _ in range(2))
    trainer.scores = {"policy": (policy, None), "reference": (reference, None)}
    found = trainer._generate_and_score_completions([{"prompt": "w03"}] * rows)
    mask = found["completion_mask"]
    more = {"logp_sums": (policy * mask).sum(1).tolist(), "reference_sums": (reference * mask).sum(1).tolist()}
    more = more if how.get("beta") else {}
    metrics = metrics_of(trainer, "train" if group else "eval")
    kept = {key: value for key, value in metrics.items() if key.startswith(("reward", "frac")) and not key.startswith("rewards/")}
    return how | {"generations": generations, "rewards": rewards, **more, "advantages": found["advantages"].tolist(), "metrics": kept}


def advantages():
    grpo, rloo, cases = fixed(trl.GRPOTrainer, trl.GRPOConfig), fixed(trl.RLOOTrainer, trl.RLOOConfig), {}
    for given, rewards in FIXED.items():
        for scale in ("group", "batch", "none"):
            cases[f"grpo_{scale}_{given}"] = advantages_of(grpo, rewards, 4, scale_rewards=scale)
        cases[f"rloo_{given}"] = advantages_of(rloo, rewards, 4, beta=0.0)
        cases[f"rloo_normalised_{given}"] = advantages_of(rloo, rewards, 4, beta=0.0, normalize_advantages=True)
    cases["rloo_kl"] = advantages_of(rloo, FIXED["plain"], 4, beta=0.05)
    cases["rloo_clipped_kl"] = advantages_of(rloo, FIXED["plain"], 4, beta=0.05, reward_clip_range=[-1.0, 2.0])
    for scale in ("group", "none"):
        cases[f"grpo_{scale}_one_member"] = advantages_of(grpo, [1, 0, 0.5, 3], 1, group=False, scale_rewards=scale)
    cases["rloo_one_member"] = advantages_of(rloo, [1, 0, 0.5, 3], 1, group=False, beta=0.0)
    weights = dict(reward_weights=[1.0, 0.5])
    cases["grpo_two_rewards"] = advantages_of(grpo, PAIRS, 4, **weights)
    cases["gdpo_two_rewards"] = advantages_of(grpo, PAIRS, 4, multi_objective_aggregation="normalize_then_sum", **weights)
    cases["rloo_two_rewards"] = advantages_of(rloo, PAIRS, 4, beta=0.0, **weights)
    return cases


def main():
    torch.set_num_threads(1)
    tf.utils.logging.disable_progress_bar()
    tf.utils.logging.set_verbosity_error()
    logging.disable(logging.WARNING)
    disable_progress_bars()
    warnings.simplefilter("ignore")
    assert trl.__version__ == "1.16.0", trl.__version__
    given = tensors()
    saved, grpo = losses(given)
    golden = {
        "trl": trl.__version__, "transformers": tf.__version__, "torch": torch.__version__.split("+")[0], "eos": EOS, "pad": PAD,
        "max_completion_length": 16, "losses": grpo, "rloo_losses": rloo_losses(given, saved), "advantages": advantages(),
    }
    kinds = {torch.float64: torch.float32, torch.int64: torch.int32}
    save_file({key: value.to(kinds.get(value.dtype, value.dtype)).contiguous() for key, value in saved.items()}, OUT / "losses.safetensors")
    parts = []
    for key, value in golden.items():
        if isinstance(value, dict):
            inner = ",\n ".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in value.items())
            parts.append(f"{json.dumps(key)}: {{\n {inner}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    (OUT / "golden.json").write_text("{\n" + ",\n".join(parts) + "\n}\n")
    for name, case in golden["advantages"].items():
        print(name, case["advantages"])


if __name__ == "__main__":
    main()
