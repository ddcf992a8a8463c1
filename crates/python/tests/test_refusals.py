"""Fifty wrong programs: each error is of the package, and names the thing, its place and a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import fathom
from fathom import nemo, recipes, trl

# A program over `path` (a run), `folder` (an empty one), `model` and `rows`; a pattern of its error.
RECIPES = {
    "a dial that is none": ("recipes.sft(learning_rte=1e-4)", r"test_refusals.py:\d+|learning_rte"),
    "a key with a slip": ("recipes.sft().optimizer.__setattr__('lrr', 1)", r"lrr.*lr\b"),
    "a value out of range": ("recipes.sft().optimizer.__setattr__('lr', -1)", r"optimizer.lr"),
    "a negative count": ("recipes.sft().set('stage.0.steps', -1)", r"steps"),
    "a text for a number": ("recipes.quickstart().set('model.layers', 'many')", r"model.layers"),
    "an object for a value": ("recipes.sft().set('optimizer.lr', object())", r"optimizer.lr.*object"),
    "a choice that is none": ("recipes.sft().set('optimizer.method', 'adamm')", r"optimizer"),
    "a blend without its last store": ("recipes.sft().set('data.paths', [0.3, 'a', 0.7])", r"blend alternates"),
    "TOML that does not end": ("fathom.Recipe.from_toml('[optimizer]\\nlr = ')", r"text|line"),
    "a file that is not there": ("fathom.Recipe.from_file('none.toml')", r"none.toml"),
    "a recipe that is none": ("fathom.plan('no-such-recipe')", r"no-such-recipe"),
    "a number for a recipe": ("fathom.plan(3)", r"recipe"),
    "memory in words": ("fathom.plan('llama3-8b-64k', memory='lots')", r"lots"),
    "an unknown stage of a curation": ("fathom.curate(fathom.CurationRecipe.from_toml('[[stage]]\\nuse = \"cleen\"\\n'), input=__file__, out='none')", r"line 2.*cleen.*clean"),
}

TRAINING = {
    "rows that are none": ("fathom.sft(path, rows=[], out=folder, steps=1)", r"no rows"),
    "a number for rows": ("fathom.sft(path, rows=3, out=folder, steps=1)", r"rows are"),
    "numbers for rows": ("fathom.sft(path, rows=[3], out=folder, steps=1)", r"a row is a dict"),
    "rows without the columns": ("fathom.sft(path, rows=[{'a': 'b'}], out=folder, steps=1)", r"prompt|messages"),
    "a model that is not there": ("fathom.sft('./none', rows=rows, out=folder, steps=1)", r"none"),
    "learning without rewards": ("fathom.grpo(path, rows=rows, out=folder, steps=1)", r"reward"),
    "a number for a reward": ("fathom.grpo(path, rows=rows, rewards=3, out=folder, steps=1)", r"reward"),
    "two rewards of one name": ("fathom.grpo(path, rows=rows, rewards=[one, one], out=folder, steps=1)", r"one"),
    "a reward in words": ("fathom.grpo(path, rows=rows, rewards=words, out=folder, steps=1)", r"words"),
    "a number for an environment": ("fathom.grpo(path, rows=rows, rewards=one, environment=3, out=folder)", r"environment"),
    "a number for a callback": ("fathom.sft(path, rows=rows, out=folder, steps=1, callbacks=[3])", r"callback"),
    "a run that is none": ("fathom.Run.open(folder)", r"no run"),
}

MODELS = {
    "a folder that is none": ("fathom.Model.from_pretrained('./none')", r"none"),
    "a precision that is none": ("fathom.Model.from_pretrained(path, precision='f12')", r"f12"),
    "a prompt that is none": ("model.generate(3)", r"prompt"),
    "a setting with a slip": ("model.generate('the', max_new_token=3)", r"max_new_tokens"),
    "a temperature below zero": ("model.generate('the', temperature=-1.0)", r"temperature"),
    "a share above one": ("model.generate('the', top_p=2.0)", r"top_p"),
    "an id beyond the vocabulary": ("model.generate([999999])", r"999999"),
    "a prompt longer than the context": ("model.generate('the ' * 5000)", r"context|tokens"),
    "a conversation without a template": ("model.chat([{'role': 'user', 'content': 'the'}])", r"no chat template"),
    "a decoder as a reranker": ("model.rerank('the', ['old'])", r"rerank|head"),
    "a tokenizer that is none": ("fathom.Tokenizer.from_pretrained('./none')", r"none"),
    "a vocabulary below bytes": ("fathom.Tokenizer.train(['the'], vocab_size=3)", r"vocab|3"),
}

VERBS = {
    "a format that is none": ("fathom.quantize(path, folder, format='q3')", r"q8_0"),
    "an export in another precision": ("fathom.export(path, folder, precision='f1')", r"f1"),
    "more layers than there are": ("fathom.prune(path, folder, layers=99, data=path)", r"layers|99"),
    "a model without an adapter": ("fathom.merge(path, folder)", r"adapter"),
    "texts that are not there": ("fathom.evaluate(path, data=['./none'])", r"none"),
    "rows to score that are none": ("fathom.score(path, [])", r"rows"),
    "a server of nothing": ("fathom.serve('./nothing')", r"nothing"),
    "documents that are not there": ("fathom.index('./nothing', folder)", r"nothing"),
    "rails that are not there": ("fathom.Guard('./nothing')", r"nothing"),
    "a script that is not there": ("fathom.launch('none.py')", r"none.py"),
    "a setting that TRL has": ("trl.SFTTrainer(model=path, args=trl.SFTConfig(deepspeed='x.json'), train_dataset=rows)", r"deepspeed"),
    "a dial that NeMo has not": ("nemo.llm.nemotron3_4b.pretrain_recipe(dir=folder, name='a', tensor_paralelism=2)", r"tensor_paralelism"),
}

ROWS = [{"prompt": "the", "completion": " old river", "solution": "o"}] * 4


@fathom.reward(version="1")
def one(answers: list[str], **_: Any) -> list[float | None]:
    return [1.0] * len(answers)


@fathom.reward(version="1")
def words(answers: list[str], **_: Any) -> Any:
    return ["good"] * len(answers)


def check(program: str, pattern: str, **names: Any) -> None:
    given = {"fathom": fathom, "recipes": recipes, "trl": trl, "nemo": nemo, "rows": ROWS, "one": one, "words": words, "__file__": __file__, **names}
    with pytest.raises((fathom.Error, AttributeError)) as caught:
        eval(program, given)
    assert isinstance(caught.value, fathom.Error), f"{type(caught.value).__name__}: {caught.value}"
    assert re.search(pattern, str(caught.value)), str(caught.value)


@pytest.mark.parametrize("name", RECIPES)
def test_a_wrong_recipe_is_refused(name: str) -> None:
    check(*RECIPES[name])


@pytest.mark.parametrize("name", TRAINING)
def test_wrong_training_is_refused(name: str, path: str, tmp_path: Path) -> None:
    check(*TRAINING[name], path=path, folder=str(tmp_path / "out"))


@pytest.mark.parametrize("name", MODELS)
def test_wrong_questions_are_refused(name: str, path: str, model: Any) -> None:
    check(*MODELS[name], path=path, model=model)


@pytest.mark.parametrize("name", VERBS)
def test_wrong_verbs_are_refused(name: str, path: str, tmp_path: Path) -> None:
    check(*VERBS[name], path=path, folder=str(tmp_path / "out"))
