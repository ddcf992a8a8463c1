"""Programs for TRL, as its users write them, with the imports changed: they run, or are refused by a setting's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_run import QUESTIONS, SMALL, lessons

import fathom
from fathom.trl import (
    DPOConfig,
    DPOTrainer,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    LoraConfig,
    RewardConfig,
    RewardTrainer,
    SFTConfig,
    SFTTrainer,
)

PAIRS = [{"prompt": "the", "chosen": " river", "rejected": " stone"}] * 4


def small(trainer: Any) -> Any:
    """Shortens the steps of a test; a program of a user has no such line."""
    for key, value in {**SMALL, "stage.0.seq_tokens": 512}.items():
        trainer.recipe.set(key, value)
    return trainer


def trained(trainer: Any) -> Any:
    run = small(trainer).train()
    assert run.outcome == "finished" and len(run.metrics) == trainer.args.settings["max_steps"]
    return run


def letters(completions: list[str], solution: list[str], **_: Any) -> list[float]:
    return [float(text.count(letter)) for text, letter in zip(completions, solution, strict=True)]


def grpo(path: str, out: Path, rewards: Any, **settings: Any) -> Any:
    args = GRPOConfig(
        output_dir=str(out),
        num_generations=4,
        max_completion_length=8,
        max_steps=1,
        per_device_train_batch_size=8,
        bf16=True,
        logging_steps=1,
        **settings,
    )
    return GRPOTrainer(model=path, reward_funcs=rewards, args=args, train_dataset=QUESTIONS)


def test_sft(path: str, tmp_path: Path) -> None:
    args = SFTConfig(
        output_dir=str(tmp_path),
        max_steps=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_ratio=0.1,
        weight_decay=0.01,
        gradient_checkpointing=True,
        report_to="none",
    )
    trained(SFTTrainer(model=path, args=args, train_dataset=lessons(), peft_config=LoraConfig(r=4, lora_alpha=8)))


def test_dpo(path: str, tmp_path: Path) -> None:
    trained(DPOTrainer(model=path, args=DPOConfig(output_dir=str(tmp_path), max_steps=1, beta=0.2), train_dataset=PAIRS))


def test_kto(path: str, tmp_path: Path) -> None:
    rows = [{"prompt": "the", "completion": f" {word}", "label": word == "river"} for word in ("river", "stone")] * 4
    args = KTOConfig(output_dir=str(tmp_path), max_steps=1, per_device_train_batch_size=4, beta=0.1)
    trained(KTOTrainer(model=path, args=args, train_dataset=rows))


def test_a_reward_model(path: str, tmp_path: Path) -> None:
    run = trained(RewardTrainer(model=path, args=RewardConfig(output_dir=str(tmp_path), max_steps=1), train_dataset=PAIRS))
    assert len(fathom.score(run.folder, PAIRS, precision="f32")) == 4


def test_grpo_with_a_function(path: str, tmp_path: Path) -> None:
    trained(grpo(path, tmp_path, letters))


def test_grpo_with_a_list_and_weights(path: str, tmp_path: Path) -> None:
    def length(completions: list[str], **_: Any) -> list[float]:
        return [-len(text) / 100 for text in completions]

    run = trained(grpo(path, tmp_path, [letters, length], reward_weights=[1.0, 0.5]))
    assert {"rewards.letters", "rewards.length"} <= set(run.rollouts.columns)


def test_grpo_with_an_async_function(path: str, tmp_path: Path) -> None:
    async def judged(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [float(len(text) % 3) for text in completions]

    trained(grpo(path, tmp_path, judged))


def test_grpo_with_a_function_that_says_nothing_of_some(path: str, tmp_path: Path) -> None:
    def vowels(completions: list[str], **_: Any) -> list[float | None]:
        return [None if not text.strip() else float(text.count("e")) for text in completions]

    trained(grpo(path, tmp_path, [letters, vowels]))


def test_settings_without_an_equivalent_are_refused_by_name(path: str) -> None:
    with pytest.raises(fathom.Error, match="deepspeed"):
        SFTTrainer(model=path, args=SFTConfig(deepspeed="x.json"), train_dataset=lessons())
    with pytest.raises(fathom.Error, match="eval_dataset"):
        SFTTrainer(model=path, train_dataset=lessons(), eval_dataset=lessons())
    with pytest.raises(fathom.Error, match="ref_model"):
        DPOTrainer(model=path, ref_model=path, train_dataset=PAIRS)
    refused: dict[str, Any] = {"push_to_hub": True, "report_to": "wandb", "save_strategy": "no", "group_by_length": True}
    for name, value in refused.items():
        with pytest.raises(fathom.Error, match=name):
            SFTTrainer(model=path, args=SFTConfig(**{name: value}), train_dataset=lessons())
    with pytest.raises(fathom.Error, match="resume_from_checkpoint"):
        SFTTrainer(model=path, train_dataset=lessons()).train(resume_from_checkpoint="checkpoint-2")
    with pytest.raises(fathom.Error, match="train"):
        SFTTrainer(model=path, train_dataset=lessons()).save_model("out")


def test_settings_may_be_assigned_later(path: str) -> None:
    args = SFTConfig(learning_rate=1e-3, max_steps=4)
    args.max_steps = 2  # type: ignore[attr-defined]
    given = SFTTrainer(model=path, args=SFTConfig(learning_rate=1e-3, max_steps=2))
    assert SFTTrainer(model=path, args=args).recipe.diff(given.recipe) == []


def test_adapters_have_pefts_defaults_and_refuse_what_they_lack(path: str) -> None:
    def recipe(**of: Any) -> Any:
        return SFTTrainer(model=path, peft_config=LoraConfig(r=4, **of)).recipe

    assert recipe().adapter.dropout in (None, 0.0)
    assert recipe(use_rslora=True).adapter.method == "rslora"
    for name, value in {"bias": "all", "rank_pattern": {"q": 2}, "init_lora_weights": "pissa", "task_type": "TOKEN_CLS"}.items():
        with pytest.raises(fathom.Error, match=name):
            recipe(**{name: value})
