"""Recipes as objects, and plans."""

from __future__ import annotations

import copy
import pickle

import pytest

import fathom
from fathom import recipes


def test_a_dial_is_a_key() -> None:
    recipe = recipes.sft(model_from="models/a", data_paths=["rows.jsonl"], out="out/x", lr=1e-4, steps=7)
    assert (recipe.model.from_, recipe.data.paths, recipe.run.out) == ("models/a", ["rows.jsonl"], "out/x")
    assert recipe.optimizer.lr == 1e-4 and recipe.stage[0].steps == 7
    assert recipes.sft().optimizer.lr == 2e-5


def test_an_assignment_is_checked_at_its_line() -> None:
    recipe = recipes.sft()
    for wrong in (
        lambda: setattr(recipe.optimizer, "lrr", 1e-4),
        lambda: setattr(recipe.optimizer, "beta1", 1.5),
        lambda: setattr(recipe.optimizer, "kind", "adan"),
        lambda: setattr(recipe.stage[0], "steps", "many"),
        lambda: recipes.sft(modle_from="a"),  # type: ignore[call-arg]
    ):
        with pytest.raises(fathom.RecipeError) as caught:
            wrong()
        assert "test_recipe.py:" in caught.value.place and caught.value.key and isinstance(caught.value, ValueError)
    assert recipe.optimizer.beta1 == recipes.sft().optimizer.beta1
    with pytest.raises(fathom.RecipeError, match="did you mean"):
        recipe.optimizer.lrr = 1e-4  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        recipe.optimizer.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018


def test_sources_name_the_line() -> None:
    recipe = recipes.sft()
    recipe.optimizer.lr = 1e-3
    assert "test_recipe.py:" in recipe.sources["optimizer.lr"]
    assert recipe.sources["optimizer.beta2"].startswith("recipe sft")
    assert "lr = 0.001" in recipe.to_toml()
    [line] = [line for line in recipes.sft().diff(recipe) if line.startswith("optimizer.lr")]
    assert "test_recipe.py:" in line


def test_recipes_copy_and_pickle() -> None:
    recipe = recipes.llama3_8b_64k(model_from="m", cp=4)
    for other in (copy.deepcopy(recipe), pickle.loads(pickle.dumps(recipe)), recipe.copy()):
        assert other == recipe and other.mesh.cp == 4
        other.mesh.cp = 2
        assert recipe.mesh.cp == 4
    again = fathom.Recipe.from_toml(recipe.to_toml())
    assert not again.diff(recipe)


def test_a_blend_is_a_list_of_weights_and_stores() -> None:
    recipe = recipes.quickstart()
    recipe.data.paths = [0.3, "a", 0.7, "b"]
    assert [(of.source, of.weight) for of in recipe.data.blend] == [("a", 0.3), ("b", 0.7)]
    with pytest.raises(fathom.RecipeError, match="alternates"):
        recipe.data.paths = [0.3, 0.7]


def test_every_recipe_has_a_function() -> None:
    for name in recipes.__all__:
        assert isinstance(getattr(recipes, name)(), fathom.Recipe), name


def test_a_plan_says_whether_it_fits_and_why() -> None:
    recipe = recipes.llama3_1b(tp=1)
    plan = fathom.plan(recipe, memory="8GiB")
    assert not plan.fits and "lowers it most" in plan.why and plan.peak > 8 << 30
    assert "svg" in plan._repr_html_() and plan.to_dict()["stage"]


def test_nemos_slide() -> None:
    from fathom import nemo

    recipe = nemo.llm.nemotron3_4b.pretrain_recipe(
        dir="out", name="slide", tensor_parallelism=2, num_nodes=1, num_gpus_per_node=2, max_steps=100
    )
    recipe.trainer.strategy.context_parallel_size = 1
    recipe.optim.config.lr = 1e-4
    recipe.data.paths = [0.3, "a", 0.7, "b"]
    recipe.data.global_batch_size = 16
    assert (recipe.mesh.tp, recipe.mesh.dp, recipe.stage[0].steps, recipe.optimizer.lr) == (2, 1, 100, 1e-4)
    assert recipe.run.out == "out/slide" and [of.weight for of in recipe.data.blend] == [0.3, 0.7]
    with pytest.raises(fathom.RecipeError, match="trainer.limit_val"):
        recipe.trainer.limit_val_batches = 3
    assert len(fathom.plan(recipe, memory="80GiB")) == len(recipe.stage)
