"""The programs that a user writes first, over small models: they are the package's acceptance test."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY, write_text
from test_run import SMALL

import fathom

CHATML = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"


@pytest.fixture
def home(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model that converses, texts, rows and a web archive."""
    model = tmp_path / "out" / "quickstart"
    shutil.copytree(Path(path) / "model", model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": CHATML}))
    rows = [{"question": f"say {word}", "answer": f"<answer>{word}</answer>"} for word in ("river", "stone", "light", "old")] * 6
    (tmp_path / "tickets.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = [{"prompt": f"the {word}", "solution": word[0]} for word in ("river", "stone", "light", "old")]
    (tmp_path / "math.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    write_text(tmp_path / "held_out", files=4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def small(recipe: Any, **settings: Any) -> Any:
    """Shortens a recipe for a test; a user's program has no such line."""
    for key, value in {**SMALL, **settings}.items():
        recipe.set(key, value)
    return recipe


def test_1_ask_a_model(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with fathom.Model.from_pretrained("out/quickstart") as model:
        print(model.generate("fn main() {", max_new_tokens=40))
        for piece in model.stream("Once", temperature=0.8, seed=1, stop=["\n\n"]):
            print(piece.text, end="", flush=True)
        reply = model.chat([{"role": "user", "content": "Why is the sky blue?"}])
    assert isinstance(reply, fathom.Answer) and reply.ids and capsys.readouterr().out


def test_2_look_inside(home: Path) -> None:
    np = pytest.importorskip("numpy")
    model = fathom.Model.from_pretrained("out/quickstart")
    logits = model.logits("The sky is")
    best = np.asarray(logits)[-1].argmax()
    same = np.from_dlpack(logits)
    loss = -np.mean(model.logprobs("The sky is blue")[1:])
    assert 0 <= best < logits.shape[1] and same.shape == logits.shape and np.isfinite(loss)


def test_3_a_recipe_as_an_object(home: Path, text: Path) -> None:
    from fathom import plan, recipes, train

    # With `model_from` the plan reads that folder; without it the shape is the recipe's.
    recipe = recipes.llama3_8b_64k(out="out/long", cp=4)
    recipe.optimizer.lr = 1e-5
    recipe.data.paths = [0.3, "books_text", 0.7, "code_text"]
    p = plan(recipe, memory="80GiB")
    assert p.peak > 0 and (p.fits or p.why)
    recipe = recipes.quickstart(out="out/short")
    for key, value in TINY.items():
        recipe.set(key, value)
    recipe.data.paths = [str(text)]
    losses = []
    for step in train(recipe, wait=False):
        losses.append(step.loss)
        if step.loss < 5.9:
            step.run.stop()
    assert fathom.Run.open("out/short").outcome in ("interrupted", "finished") and losses
    assert fathom.train(recipe).outcome == "finished"


def test_4_teach_from_a_table_with_a_callback(home: Path) -> None:
    pl = pytest.importorskip("polars")

    class Stop(fathom.Callback):
        def on_measured(self, found: Any, control: fathom.Control) -> None:
            if found.loss is not None and found.loss < 1.2:
                control.stop()

    rows = pl.read_ndjson("tickets.jsonl").select(prompt="question", completion="answer")
    run = fathom.lora(
        "out/quickstart", rows=rows, epochs=2, steps=None, out="out/tickets", callbacks=[Stop()], seq_tokens=128, stage_tile_rows=128, threads=1
    )
    with run.model as model:
        assert model.chat([{"role": "user", "content": "My order is late."}], max_new_tokens=4).ids
    assert pl.DataFrame(run.metrics).select("step", "loss").height == len(run.metrics) > 0


def test_5_learn_from_rewards(home: Path) -> None:
    import re

    @fathom.reward(version="2")
    def right(answers: list[str], solution: list[str], **_: Any) -> list[float | None]:
        found = [re.search(r"(\w)", answer) for answer in answers]
        return [1.0 if m and m[1] == s else 0.0 for m, s in zip(found, solution, strict=True)]

    @fathom.reward(weight=0.2, version="2026-11", pure=False)
    async def judged(prompts: list[str], answers: list[str], **_: Any) -> list[float | None]:
        return [None if len(answer) % 2 else 0.5 for answer in answers]

    recipe = small(
        fathom.recipes.grpo(model_from="out/quickstart", out="out/grpo", steps=2, epochs=None),
        **{"rl.prompts": 2, "rl.answers": 4, "rl.max_answer_tokens": 12, "stage.0.samples_per_micro_batch": 2},
    )
    run = fathom.train(recipe, rows="math.jsonl", rewards=[right, judged], wait=False).wait()
    assert {"rewards.right", "rewards.judged"} <= set(run.rollouts.columns)


def archive(to: Path) -> None:
    """A web archive of three pages."""
    to.mkdir()
    records = []
    for number, shout in enumerate(("The old river carries light under every bridge. ", "THE OLD RIVER CARRIES LIGHT UNDER EVERY BRIDGE. ", "A stone is old and slow. ")):
        page = f"<html><head><title>Page {number}</title></head><body><article><p>{shout * 12}</p><p>{shout * 9}</p></article></body></html>"
        http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page)}\r\n\r\n{page}"
        head = (
            "WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:00000000-0000-0000-0000-00000000000%d>\r\nWARC-Date: 2026-01-01T00:00:00Z\r\n"
            "WARC-Target-URI: https://example.org/%d\r\nContent-Type: application/http; msgtype=response\r\nContent-Length: %d\r\n\r\n"
        )
        records.append(head % (number, number, len(http)) + http + "\r\n\r\n")
    (to / "pages.warc").write_text("".join(records), newline="")


def test_6_curate_with_a_stage_of_ones_own(home: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.compute as pc  # type: ignore[import-not-found, import-untyped, unused-ignore]

    archive(home / "warc")

    @fathom.stage(version="1", after="clean", adds={"shouting": pa.float32()})
    def shouting(batch: Any) -> Any:
        share = pc.divide(pc.count_substring_regex(batch["text"], "[A-Z]").cast("float32"), pc.utf8_length(batch["text"]))
        return batch.append_column("shouting", share.cast(pa.float32())), pc.less(share, 0.3)

    done = fathom.curate("common-crawl", input="warc/", out="out/cc", stages=[shouting])
    account = {row["name"]: row for row in done.stats}
    assert account["shouting"]["tally.dropped.shouting.documents"] == 1, done.account


def test_7_measure_compress_measure_again(home: Path) -> None:
    fathom.quantize("out/quickstart", "model.gguf", format="q8_0")
    found = [fathom.evaluate(m, data=["held_out/"], needle_trials=1, threads=1) for m in ("out/quickstart", "model.gguf")]
    assert [len(f.needles) > 0 and f.bits_per_byte is not None for f in found] == [True, True]


def test_8_serve_here_and_a_script_for_trl(home: Path) -> None:
    from fathom.trl import GRPOConfig, GRPOTrainer

    with fathom.serve("out/quickstart", port=0) as server:
        body = {"model": "quickstart", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
        request = urllib.request.Request(f"{server.url}/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as response:
            assert "content" in json.load(response)["choices"][0]["message"]

    def right(completions: list[str], solution: list[str], **_: Any) -> list[float]:
        return [float(text.count(letter)) for text, letter in zip(completions, solution, strict=True)]

    rows = [json.loads(line) for line in Path("math.jsonl").read_text().splitlines()]
    args = GRPOConfig(output_dir="out/g", num_generations=4, max_completion_length=8, max_steps=1, per_device_train_batch_size=8)
    trainer = GRPOTrainer(model="out/quickstart", reward_funcs=right, args=args, train_dataset=rows)
    small(trainer.recipe, **{"stage.0.seq_tokens": 512})
    assert trainer.train().outcome == "finished"
