"""TRL's trainers over Fathom's recipes. Settings are translated as `fathom recipes from` translates TRL's files; a setting that
would change what is trained or written, and has no equivalent, is refused by its name. A trainer takes the tokenizer and the chat
template of the model's folder."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fathom import _fathom, _run
from fathom._keys import TrainRecipe
from fathom.errors import Error

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fathom._model import Model
    from fathom._recipe import Recipe
    from fathom._run import Run

# Settings of how a program logs, or of the machine that it runs on, which change no numbers here.
_IGNORED = {
    "bf16",
    "fp16",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataset_num_proc",
    "ddp_timeout",
    "disable_tqdm",
    "do_train",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "log_completions",
    "log_level",
    "logging_dir",
    "logging_first_step",
    "logging_steps",
    "logging_strategy",
    "overwrite_output_dir",
    "remove_unused_columns",
    "run_name",
    "tf32",
    "use_cpu",
    "use_vllm",
    "vllm_mode",
    "vllm_gpu_memory_utilization",
}

# Settings that ask for nothing with these values, and what to do for others.
_NOTHING: dict[str, tuple[tuple[Any, ...], str]] = {
    "hub_model_id": ((None,), "nothing is uploaded; run.folder has the model"),
    "push_to_hub": ((None, False), "nothing is uploaded; run.folder has the model"),
    "report_to": ((None, "none", "all", "tensorboard", [], ["none"], ["tensorboard"]), "the recipe's keys are run.wandb and run.mlflow"),
    "save_strategy": ((None, "steps", "epoch"), "the recipe's keys are checkpoint.every_steps and checkpoint.every_s"),
    "save_total_limit": ((None,), "the recipe's key is checkpoint.keep"),
    "eval_strategy": ((None, "no"), "data.held_out_share of the rows is held out and measured"),
    "group_by_length": ((None, False), "samples are packed"),
}


class _Config:
    """Settings of a trainer, by TRL's names."""

    method = ""
    # Settings that the trainer itself takes.
    own: frozenset[str] = frozenset()

    def __init__(self, output_dir: str | os.PathLike[str] | None = None, **settings: Any) -> None:
        self.output_dir = None if output_dir is None else os.fspath(output_dir)
        self.__dict__.update(settings)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings by name, those that were assigned later among them."""
        return {name: value for name, value in vars(self).items() if name != "output_dir"}

    def recipe(self, model: str, others: dict[str, Any] | None = None) -> Recipe:
        """The recipe that these settings are."""
        for name, (values, instead) in _NOTHING.items():
            if self.settings.get(name) not in values:
                raise Error(f"{type(self).__name__}: the setting `{name}` has no equivalent here: {instead}")
        skipped = _IGNORED | self.own | _NOTHING.keys()
        told = {name: value for name, value in self.settings.items() if name not in skipped and value is not None}
        refused = {
            name: value for name, value in told.items() if isinstance(value, (list, dict)) and not _plain(value)
        }
        if refused:
            raise Error(f"{type(self).__name__}: `{next(iter(refused))}` holds objects; give numbers, texts and lists")
        named = {"model_name_or_path": model, **told, **(others or {})}
        text, unsaid = _fathom.translate(json.dumps(named), self.method)
        known = [(key, why) for key, why in unsaid if key in told or others and key in others]
        if known:
            key, why = known[0]
            raise Error(f"{type(self).__name__}: the setting `{key}` cannot be translated: {why}")
        recipe = TrainRecipe(("text", f"{type(self).__name__}", text))
        recipe._set("run.out", self.output_dir or f"out/{self.method}")
        return recipe

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.settings.items())})"


def _plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except TypeError:
        return False
    return True


class SFTConfig(_Config):
    """Settings of `SFTTrainer`."""

    method = "sft"


class DPOConfig(_Config):
    """Settings of `DPOTrainer`."""

    method = "dpo"


class KTOConfig(_Config):
    """Settings of `KTOTrainer`."""

    method = "kto"


class ORPOConfig(_Config):
    """Settings of `ORPOTrainer`."""

    method = "orpo"


class RewardConfig(_Config):
    """Settings of `RewardTrainer`."""

    method = "reward"


class GRPOConfig(_Config):
    """Settings of `GRPOTrainer`."""

    method = "grpo"
    own = frozenset({"reward_weights"})


class RLOOConfig(_Config):
    """Settings of `RLOOTrainer`."""

    method = "rloo"
    own = frozenset({"reward_weights"})


class LoraConfig:
    """An adapter, by PEFT's names and defaults (`peft_config=`)."""

    def __init__(self, r: int = 8, lora_alpha: float = 8, lora_dropout: float = 0.0, **settings: Any) -> None:
        self.settings = {"use_peft": True, "lora_r": r, "lora_alpha": lora_alpha, "lora_dropout": lora_dropout}
        for name, value in settings.items():
            if name in _ADAPTER:
                self.settings[_ADAPTER[name]] = value
            elif value not in _PLAIN.get(name, ()):
                raise Error(f"LoraConfig: the setting `{name}={value!r}` has no equivalent here")


# Settings of an adapter as TRL's arguments, and values of others that ask for nothing.
_ADAPTER = {
    "target_modules": "lora_target_modules",
    "use_dora": "use_dora",
    "use_rslora": "use_rslora",
    "modules_to_save": "lora_modules_to_save",
}
_PLAIN: dict[str, tuple[Any, ...]] = {
    "task_type": (None, "CAUSAL_LM", "SEQ_CLS"),
    "bias": ("none",),
    "inference_mode": (False,),
    "fan_in_fan_out": (False,),
    "init_lora_weights": (True,),
}


class _Trainer:
    """A trainer: `train()` runs the recipe; the same call goes on with a run that was stopped."""

    config: type[_Config] = _Config

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        args: _Config | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        callbacks: Iterable[Any] = (),
        peft_config: Any = None,
        **others: Any,
    ) -> None:
        name = type(self).__name__
        if not isinstance(model, (str, os.PathLike)):
            raise Error(f"{name}: `model` is a name or a path here, not an object")
        for setting in others:
            raise Error(f"{name}: the setting `{setting}` has no equivalent here; see docs/python.md for what has one")
        if eval_dataset is not None:
            raise Error(f"{name}: `eval_dataset` has no equivalent here; data.held_out_share of the rows is held out")
        self.args = args if args is not None else self.config()
        self.train_dataset = train_dataset
        self.callbacks = list(callbacks)
        adapter = None
        if peft_config is not None:
            adapter = peft_config.settings if isinstance(peft_config, LoraConfig) else _peft(peft_config).settings
        from fathom._model import resolved

        self.recipe = self.args.recipe(resolved(model), adapter)
        """The recipe that will be trained; its keys may still be set."""
        self.run: Run | None = None

    def _given(self) -> dict[str, Any]:
        return {}

    def train(self, resume_from_checkpoint: Any = None) -> Run:
        """Trains; a run in `output_dir` that was stopped goes on from its last checkpoint."""
        if resume_from_checkpoint not in (None, True):
            raise Error(f"{type(self).__name__}: a run goes on from its last checkpoint; `resume_from_checkpoint` takes no other")
        self.run = _run.train(self.recipe, rows=self.train_dataset, callbacks=self.callbacks, **self._given())
        return self.run

    @property
    def model(self) -> Model:
        """What was trained, opened."""
        if self.run is None:
            raise Error(f"{type(self).__name__}: nothing is trained yet; call train()")
        return self.run.model

    def save_model(self, output_dir: str | os.PathLike[str] | None = None) -> None:
        """The run has saved the model in its folder; a copy is written to another one."""
        if self.run is None:
            raise Error(f"{type(self).__name__}: nothing is trained yet; call train()")
        if output_dir is not None:
            from fathom._verbs import export

            export(self.run.folder, output_dir)


def _peft(config: Any) -> LoraConfig:
    """PEFT's own object: settings that differ from PEFT's defaults."""
    usual = type(config)()
    changed = {name: value for name, value in vars(config).items() if value != getattr(usual, name, None)}
    for name in ("peft_type", "base_model_name_or_path", "revision", "auto_mapping", "peft_version"):
        changed.pop(name, None)
    if "task_type" in changed:
        changed["task_type"] = str(getattr(changed["task_type"], "value", changed["task_type"]))
    if isinstance(changed.get("target_modules"), (set, tuple)):
        changed["target_modules"] = sorted(changed["target_modules"])
    return LoraConfig(**{"r": config.r, "lora_alpha": config.lora_alpha, **changed})


class SFTTrainer(_Trainer):
    """Teaches a model from lessons."""

    config = SFTConfig


class DPOTrainer(_Trainer):
    """Learns preferences by DPO."""

    config = DPOConfig

    def __init__(self, model: str | os.PathLike[str], ref_model: Any = None, **given: Any) -> None:
        if ref_model is not None:
            raise Error("DPOTrainer: `ref_model` has no equivalent here: the reference is the model that training starts from")
        super().__init__(model, **given)


class KTOTrainer(_Trainer):
    """Learns preferences by KTO."""

    config = KTOConfig


class ORPOTrainer(_Trainer):
    """Learns preferences by ORPO."""

    config = ORPOConfig


class RewardTrainer(_Trainer):
    """Trains a reward model."""

    config = RewardConfig


class _PolicyTrainer(_Trainer):
    def __init__(self, model: str | os.PathLike[str], reward_funcs: Any, **given: Any) -> None:
        self.rewards = list(reward_funcs) if isinstance(reward_funcs, (list, tuple)) else [reward_funcs]
        if any(isinstance(of, str) for of in self.rewards):
            raise Error(f"{type(self).__name__}: `reward_funcs` are functions here; a reward model is a table of a file (rl.reward)")
        super().__init__(model, **given)
        weights = self.args.settings.get("reward_weights")
        if weights is not None:
            from fathom._functions import Reward

            self.rewards = [
                Reward(getattr(of, "function", of), getattr(of, "name", None), getattr(of, "version", ""), weight, getattr(of, "pure", True))
                for of, weight in zip(self.rewards, weights, strict=True)
            ]

    def _given(self) -> dict[str, Any]:
        return {"rewards": self.rewards}


class GRPOTrainer(_PolicyTrainer):
    """Learns from rewards by GRPO. Reward functions are TRL's: `f(prompts, completions, **columns)`."""

    config = GRPOConfig


class RLOOTrainer(_PolicyTrainer):
    """Learns from rewards by RLOO."""

    config = RLOOConfig


__all__ = [
    "DPOConfig",
    "DPOTrainer",
    "GRPOConfig",
    "GRPOTrainer",
    "KTOConfig",
    "KTOTrainer",
    "LoraConfig",
    "ORPOConfig",
    "ORPOTrainer",
    "RLOOConfig",
    "RLOOTrainer",
    "RewardConfig",
    "RewardTrainer",
    "SFTConfig",
    "SFTTrainer",
]
