"""Chat templates: does `fathom data check` make of conversations what Transformers makes of them?

    templates.py BINARY [FOLDER]     every template of TRL's folder, or of FOLDER

Compares text and ids, and the mask where a template marks the model's words, or where `NAME_training.jinja` next to it does and makes
the same text (Fathom has marks of its own for such templates, see `marks.py`). Arguments hold exponents, null, nested lists and
objects, and characters beyond ASCII. A row that Fathom refuses is counted by its reason; one
that Transformers refuses has to be refused. No template is kept.
"""

import glob
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MARKS = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
         "<end_of_turn>", "<start_of_turn>"]


def tokenizer():
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=MARKS, initial_alphabet=alphabet)
    inner.train_from_iterator(["the user says hello to the assistant and the system is kind to you"] * 50, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>")


def rows():
    def user(text):
        return {"role": "user", "content": text}

    def model(text, **more):
        return {"role": "assistant", "content": text, **more}

    kind = {"role": "system", "content": "be kind"}
    city = {"type": "object", "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"]}
    tool = {"type": "function", "function": {"name": "get_weather", "description": "Weather é of a city.",
                                             "parameters": city}}
    call = {"id": "abcdefghi", "type": "function",
            "function": {"name": "get_weather", "arguments": {"city": "Köln"}}}
    odd = {"tiny": 1e-07, "large": 1e+16, "half": 0.5, "whole": 3, "none": None, "yes": True, "deep": [[1, [2.5e-8, "ü"]], []],
           "map": {"☕": {"ß": [None, 1.5]}}, "text": "line\n\"quoted\" \\ é 漢"}
    numbers = {**call, "function": {"name": "get_weather", "arguments": odd}}
    answer = {"role": "tool", "content": "sunny", "name": "get_weather", "tool_call_id": "abcdefghi"}
    return {
        "one": {"messages": [user("hello"), model("there ☕")]},
        "space": {"messages": [kind, user(" hello \n"), model(" hi  \n")]},
        "turns": {"messages": [kind, user("a"), model("b"), user("c"), model("d é")]},
        "more": {"messages": [user("a"), model("b"), user("c"), model("d"), user("e"), model("f")]},
        "thoughts": {"messages": [user("a"), model("<think>\nhm\n</think>\n\nb"), user("c"),
                                  model("<think>\nho\n</think>\n\nd")]},
        "reasons": {"messages": [user("a"), model("b", reasoning_content="hm"), user("c"),
                                 model("d", reasoning_content="ho")]},
        "tools": {"messages": [user("weather?"), model("", tool_calls=[call]), answer, model("It is sunny.")],
                  "tools": [tool]},
        "odd": {"messages": [user("weather?"), model("", tool_calls=[numbers]), answer, model("It is sunny.")],
                "tools": [tool]},
        "silent": {"messages": [user("weather?"), model(None, tool_calls=[call, numbers]), answer, model("Sunny.")],
                   "tools": [tool]},
    }


def training(tok, path, row, text):
    """The mask of the template for training next to this one, if it makes the same text."""
    other = path.replace(".jinja", "_training.jinja")
    if not os.path.isfile(other):
        return None
    with open(other) as file:
        source = file.read()
    try:
        same, ids, mask = expected(tok, source, row)
    except Exception:
        return None
    return mask if same == text else None


def expected(tok, source, row):
    marked = "generation %}" in source or "generation -%}" in source
    how = {"tools": row.get("tools"), "chat_template": source}
    text = tok.apply_chat_template(row["messages"], tokenize=False, **how)
    out = tok.apply_chat_template(row["messages"], return_dict=True, return_assistant_tokens_mask=marked, **how)
    ids = list(out["input_ids"])
    return text, ids, whole(tok, text, list(out["assistant_masks"])) if marked else None


def whole(tok, text, mask):
    """Of a character of several tokens at the end of a span, Transformers marks the first token alone; Fathom has all of it learned."""
    places = tok(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    for at in range(1, len(mask)):
        if mask[at - 1] and places[at] == places[at - 1] and places[at][0] < places[at][1]:
            mask[at] = 1
    return mask


def main():
    binary = sys.argv[1]
    if len(sys.argv) > 2:
        folder = sys.argv[2]
    else:
        import trl
        folder = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
    tok, counts = tokenizer(), Counter()
    with tempfile.TemporaryDirectory() as work:
        model = os.path.join(work, "model")
        config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                             num_attention_heads=2, num_key_value_heads=1, head_dim=16)
        LlamaForCausalLM(config).save_pretrained(model)
        tok.save_pretrained(model)
        data = os.path.join(work, "row.jsonl")
        for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
            with open(path) as file:
                source = file.read()
            for name, row in rows().items():
                with open(data, "w") as file:
                    file.write(json.dumps(row) + "\n")
                found = subprocess.run([binary, "data", "check", data, "--model", model, "--json",
                                        "stage.0.seq_tokens=16384", f"data.chat_template={path}"],
                                       capture_output=True, text=True)
                case = f"{os.path.basename(path)}, {name}"
                try:
                    text, ids, mask = expected(tok, source, row)
                    if mask is None:
                        mask = training(tok, path, row, text)
                except Exception:
                    counts["refused by both" if found.returncode else "refused by Transformers alone"] += 1
                    if not found.returncode:
                        print(case, "refused by Transformers alone")
                    continue
                if found.returncode:
                    said = ("does not show", "cannot be distinguished", "is unknown", "no supervised token")
                    rewrites = any(words in found.stderr for words in said)
                    counts["refused: earlier turns are rewritten" if rewrites else "refused"] += 1
                    if not rewrites:
                        print(case, found.stderr.strip().splitlines()[-1:])
                    continue
                ours = json.loads(found.stdout)
                if (ours["text"], ours["ids"]) != (text, ids):
                    counts["different"] += 1
                    print(case, "text or ids")
                elif mask is not None and ours["supervised"][1:] != mask[1:]:
                    counts["different masks"] += 1
                    print(case, "mask at", [at for at, pair in enumerate(zip(ours["supervised"], mask)) if len(set(pair)) > 1])
                else:
                    counts["equal, with mask" if mask is not None else "equal"] += 1
    print(dict(counts))


if __name__ == "__main__":
    main()
