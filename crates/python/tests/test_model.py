"""Models: text, numbers, and their threads."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import fathom


def test_an_answer_is_text_ids_and_its_end(model: Any) -> None:
    answer = model.generate("the old river", max_new_tokens=12)
    assert str(answer) == answer.text and len(answer.ids) == 12 and answer.stop == "length"
    assert answer.usage.answer_tokens == 12 and answer.prompt_ids == model.tokenizer.encode("the old river")
    again = model.generate("the old river", max_new_tokens=12, temperature=0.0, seed=3)
    assert again.ids == answer.ids
    drawn = [model.generate("the", max_new_tokens=8, temperature=1.0, seed=seed).ids for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert model.generate(answer.prompt_ids, max_tokens=12).ids == answer.ids
    with pytest.raises(fathom.Error, match="max_new_tokens"):
        model.generate("the", max_new_token=8)


def test_prompts_of_a_list_get_the_answers_of_each(model: Any) -> None:
    prompts = ["the old", "a stone", "every"]
    together = model.generate(prompts, max_new_tokens=6, logprobs=1)
    assert [of.ids for of in together] == [model.generate(of, max_new_tokens=6).ids for of in prompts]
    assert len(together[0].logprobs) == 6 and together[0].logprobs[0]["logprob"] <= 0
    assert len(model.generate("the", max_new_tokens=3, answers=2, temperature=1.0)) == 2


def test_pieces_make_the_answer(model: Any) -> None:
    whole = model.generate("the old", max_new_tokens=10)
    stream = model.stream("the old", max_new_tokens=10)
    pieces = list(stream)
    assert "".join(str(of) for of in pieces) == whole.text and stream.answer.ids == whole.ids

    async def read() -> str:
        return "".join([piece.text async for piece in model.stream("the old", max_new_tokens=10)])

    assert asyncio.run(read()) == whole.text
    for _ in model.stream("the", max_new_tokens=200):
        break
    assert model.generate("the old", max_new_tokens=10).ids == whole.ids


def test_pieces_of_several_answers_name_theirs(model: Any) -> None:
    stream = model.stream("the", max_new_tokens=4, answers=2, temperature=1.0, seed=3, logprobs=1, ignore_eos=True)
    ids: dict[int, list[int]] = {0: [], 1: []}
    for piece in stream:
        ids[piece.answer] += piece.ids
        assert len(piece.logprobs) == len(piece.ids)
    assert [answer.ids for answer in stream.answer] == [ids[0], ids[1]] and len(ids[0]) == 4
    again = model.generate("the", max_new_tokens=4, answers=2, temperature=1.0, seed=3, ignore_eos=True)
    assert [answer.ids for answer in again] == [ids[0], ids[1]]


def test_a_closed_stream_ends_without_an_answer(model: Any) -> None:
    stream = model.stream("the", max_new_tokens=200, answers=16, temperature=1.0, ignore_eos=True)
    for _ in stream:
        stream.close()
    assert stream.answer is None


def test_guesses_change_no_answer(path: str) -> None:
    texts = ["the old river carries the old river", "a stone", "every bridge under every bridge under"]
    found = []
    for draft_tokens in (0, 8):
        with fathom.Model.from_pretrained(path, threads=1, draft_tokens=draft_tokens) as opened:
            found.append([(of.text, of.ids) for of in opened.generate(texts, max_new_tokens=60, ignore_eos=True)])
    assert found[0] == found[1]


def test_logits_share_their_memory_and_outlive_the_model(path: str) -> None:
    numpy = pytest.importorskip("numpy")
    model = fathom.Model.from_pretrained(path, threads=1)
    logits = model.logits("the old river carries")
    array = numpy.asarray(logits)
    assert array.shape == (len(model.tokenizer.encode("the old river carries")), model.card.vocabulary)
    assert array.__array_interface__["data"] == (logits.__array_interface__["data"][0], True)
    assert not array.flags.writeable and numpy.isfinite(array).all()
    shared = numpy.from_dlpack(logits)
    assert shared.__array_interface__["data"][0] == array.__array_interface__["data"][0]
    logprobs = model.logprobs("the old river carries")
    rows = array - numpy.logaddexp.reduce(array, axis=1, keepdims=True)
    ids = model.tokenizer.encode("the old river carries")
    own = [rows[at - 1, token] for at, token in enumerate(ids) if at > 0]
    numpy.testing.assert_allclose(logprobs[1:], own, atol=1e-4)
    best = int(array[-1].argmax())
    assert model.generate("the old river carries", max_new_tokens=1).ids in ([best], [])
    last = numpy.asarray(model.logits("the old river carries", last=1))
    assert (last[0] == array[-1]).all()
    before = array.copy()
    model.close()
    del model, logits
    gc.collect()
    assert (array == before).all() and (shared == before).all()


def test_vectors_are_of_length_one(model: Any) -> None:
    [one, other] = model.embed(["the old river", "every bridge"])
    assert one.shape == (model.card.hidden,)
    assert abs(sum(x * x for x in one.tolist()) - 1) < 1e-4 and one.tolist() != other.tolist()
    assert model.hidden_states("the old").shape[1] == model.card.hidden


def test_a_closed_model_says_so(path: str) -> None:
    model = fathom.Model.from_pretrained(path, threads=1)
    with pytest.raises(TypeError, match="path"):
        pickle.dumps(model)
    model.close()
    model.close()
    with pytest.raises(fathom.Error, match="closed"):
        model.generate("the")
    assert "closed" in repr(model)


def test_a_model_that_is_not_there_is_named() -> None:
    with pytest.raises(fathom.Error, match="no/such/model"):
        fathom.Model.from_pretrained("./no/such/model")


def test_tokenizers_go_on_by_themselves(model: Any) -> None:
    tokenizer = model.tokenizer
    ids = tokenizer.encode("the old river")
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "the old river"
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again.encode("the old river") == ids and len(again) == tokenizer.vocab_size
    assert tokenizer.encode_batch(["the old river"] * 3) == [ids] * 3
    trained = fathom.Tokenizer.train(["the old river " * 20], vocab_size=300)
    assert trained.decode(trained.encode("river", add_special_tokens=False)) == "river"
    with pytest.raises(fathom.Error, match="chat template"):
        trained.apply_chat_template([{"role": "user", "content": "a"}])


def test_another_thread_runs_while_a_model_answers(model: Any) -> None:
    """A second Python thread keeps most of its idle rate while a verb computes on its own thread."""
    counts, going = [0], [True]

    def count() -> None:
        while going[0]:
            counts[0] += 1
            if counts[0] % 1000 == 0:
                time.sleep(0)

    thread = threading.Thread(target=count, daemon=True)
    thread.start()
    made = 0
    # A machine with other work may give this thread no core during one short answer.
    for _ in range(100):
        before = counts[0]
        model.generate("the old", max_new_tokens=40)
        made += counts[0] - before
        if made > 0:
            break
    going[0] = False
    thread.join()
    assert made > 0


def test_memory_returns(path: str) -> None:
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    with fathom.Model.from_pretrained(path, threads=1) as opened:
        opened.generate("the", max_new_tokens=4)
    before = resident()
    for _ in range(5):
        model = fathom.Model.from_pretrained(path, threads=1)
        model.generate("the", max_new_tokens=4)
        del model
        gc.collect()
        assert resident() - before < 32 << 20


CTRL_C = """
import os, signal, sys, threading, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # A shell may have started the tests without it.
import fathom
model = fathom.Model.from_pretrained(sys.argv[1], threads=1)
sent = []
def send():
    time.sleep(0.4)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)
for work in (
    lambda: model.generate(["the"] * 64, max_new_tokens=220, ignore_eos=True),
    lambda: [None for _ in range(10000) for _ in model.stream("the", max_new_tokens=220, ignore_eos=True)],
    lambda: fathom.plan("llama3-405b", solve=True),
):
    threading.Thread(target=send, daemon=True).start()
    try:
        while True:
            work()
    except KeyboardInterrupt:
        late = time.monotonic() - sent[-1]
        print(f"{late:.3f}")
        assert late < 0.5, late
print(len(model.generate("the", max_new_tokens=3, ignore_eos=True).ids))
"""


def test_ctrl_c_ends_a_verb_and_not_the_model(path: str) -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "3"


FORK = """
import multiprocessing, os, sys, threading, warnings
warnings.simplefilter("ignore")
import fathom
if __name__ == "__main__":
    model = fathom.Model.from_pretrained(sys.argv[1], threads=1)
    tokenizer = model.tokenizer
    ids = tokenizer.encode_batch(["the old"] * 4)
def child(queue):
    try:
        model.generate("the")
        queue.put("answered")
    except fathom.ForkedError as error:
        queue.put("spawn" in str(error) and tokenizer.encode_batch(["the old"] * 4) == ids)
def fresh(queue, path):
    with fathom.Model.from_pretrained(path, threads=1) as own:
        queue.put(len(own.generate("the", max_new_tokens=2, ignore_eos=True).ids) == 2)
if __name__ == "__main__":
    for method, work, given in (("fork", child, ()), ("spawn", fresh, (sys.argv[1],)), ("forkserver", fresh, (sys.argv[1],))):
        context = multiprocessing.get_context(method)
        for _ in range(int(os.environ.get("FATHOM_TEST_CHILDREN", "3"))):
            queue = context.Queue()
            process = context.Process(target=work, args=(queue, *given))
            process.start()
            print(queue.get(timeout=10))
            process.join(5)
            assert not process.is_alive() and process.exitcode == 0
"""


def test_child_processes_answer_or_are_refused_and_do_not_hang(path: str, tmp_path: Path) -> None:
    """By fork a handle is refused and a tokenizer goes on; by spawn and forkserver a child opens a model of its own."""
    script = tmp_path / "children.py"
    script.write_text(FORK)
    done = subprocess.run([sys.executable, str(script), path], capture_output=True, text=True, timeout=600)
    said = done.stdout.split()
    assert done.returncode == 0 and len(said) >= 9 and set(said) == {"True"}, done.stdout + done.stderr


IMPORT = """
import sys
before = set(sys.modules)
import fathom
new = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(name for name in new if name not in sys.stdlib_module_names))
"""


def test_importing_loads_the_package_alone() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['fathom']", done.stdout + done.stderr


def test_the_interpreter_ends_with_an_open_model(path: str) -> None:
    script = "import sys, fathom; m = fathom.Model.from_pretrained(sys.argv[1]); s = iter(m.stream('the')); next(s); print('end')"
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_answers_are_drawn_as_they_are_asked_for(model: Any) -> None:
    greedy = model.generate("the", max_new_tokens=8).ids
    assert model.generate("the", max_new_tokens=8, do_sample=False, temperature=1.0).ids == greedy
    drawn = {tuple(answer.ids) for answer in model.generate(["the"] * 8, max_new_tokens=8, do_sample=True)}
    assert len(drawn) > 1
    seeded = model.generate(["the"] * 2, max_new_tokens=8, temperature=1.0, seed=1)
    assert seeded[0].ids == seeded[1].ids and model.generate([]) == []
    with pytest.raises(fathom.Error, match="regex and choice"):
        model.generate("the", regex="a", choice=["b"])


def test_masked_tokens_are_not_read(path: str) -> None:
    from fathom.transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path)
    ids, settings = model.model.tokenizer.encode("the old"), {"max_new_tokens": 5}
    [alone] = model.generate([ids], **settings)
    padded = model.generate([[0, 0, *ids], [*ids, *ids[:2]]], attention_mask=[[0, 0] + [1] * len(ids), [1] * (len(ids) + 2)], **settings)
    assert padded[0] == [0, 0, *alone]
    assert len(model.generate([ids], num_return_sequences=2, do_sample=True, **settings)) == 2
    with pytest.raises(fathom.Error, match="shape"):
        model.generate([ids], attention_mask=[[1]], **settings)
    model.close()


def test_transformers_names(path: str) -> None:
    from fathom.transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, torch_dtype="auto")
    ids = tokenizer("the old")["input_ids"]
    [found] = model.generate([ids], max_new_tokens=5)
    assert found[: len(ids)] == ids and len(found) <= len(ids) + 5
    with pytest.raises(fathom.Error, match="quantization_config"):
        AutoModelForCausalLM.from_pretrained(path, quantization_config=1)
    [row] = pipeline("text-generation", path)("the old", max_new_tokens=5)
    assert row["generated_text"].startswith("the old")
    model.close()
