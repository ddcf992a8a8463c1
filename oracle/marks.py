"""Marks of our own in known chat templates (`crates/text/src/chat/marks.json`), held against TRL's templates for training.

    marks.py             checks every entry against the template of its name in TRL's folder
    marks.py FILE...     prints the hash of templates, for new entries

An entry's marks have to leave the text of every conversation as the model's own template makes it, with and without a prompt for an
answer. Where TRL's template for training (with `{% generation %}` tags) makes the same text, the learned tokens have to be its own;
where it changes the text (it keeps earlier thoughts), the learned parts are printed with `-v`. Needs `blake3`. No template is kept.
"""

import json
import os
import re
import sys
from collections import Counter

from blake3 import blake3

import templates

MARKS = ("\ufdd0", "\ufdd1")
ENTRIES = os.path.join(os.path.dirname(__file__), "..", "crates", "text", "src", "chat", "marks.json")


def plain(path):
    with open(path, newline="") as file:
        return file.read().replace("\r\n", "\n").replace("\r", "\n").rstrip()


def hashed(source):
    return blake3(source.encode()).hexdigest()


def marked(source, places):
    for place in places:
        piece = re.sub("⟦.*?⟧", "", place)
        assert piece in source, piece
        new = re.sub("⟦(.*?)⟧", lambda part: part[1].replace("«", MARKS[0]).replace("»", MARKS[1]), place)
        source = source.replace(piece, new)
    return source


def spans(text):
    out, found, start = "", [], None
    for letter in text:
        if letter == MARKS[0]:
            assert start is None
            start = len(out)
        elif letter == MARKS[1]:
            found.append((start, len(out)))
            start = None
        else:
            out += letter
    assert start is None
    return out, found


def rows():
    """Those of `templates.py`, and more turns with calls, thoughts and content in parts."""
    def user(content):
        return {"role": "user", "content": content}

    def model(content, **more):
        return {"role": "assistant", "content": content, **more}

    def thinks(content, thoughts, **more):
        return model(content, thinking=thoughts, reasoning_content=thoughts, **more)

    def parts(text):
        return [{"type": "text", "text": text}]

    rows = templates.rows()
    tools = rows["tools"]["tools"]
    call, said = rows["tools"]["messages"][1]["tool_calls"][0], rows["tools"]["messages"][2]
    text = {**call, "function": {**call["function"], "arguments": '{"city": "Köln"}'}}
    sunny = model("It is sunny.")
    return {
        **rows,
        "calls alone": {"messages": [user("w?"), model(None, tool_calls=[text, text]), said, sunny, user("x"), model("y")], "tools": tools},
        "arguments as text": {"messages": [user("w?"), model("", tool_calls=[text]), said, sunny], "tools": tools},
        "calls at the end": {"messages": [user("w?"), model("let me", tool_calls=[call]), said, sunny, user("x"),
                                          model("y", tool_calls=[call])], "tools": tools},
        "two calls": {"messages": [user("w?"), model("let me", tool_calls=[call, call]), said, said, sunny, user("x"), model("y")],
                      "tools": tools},
        "thoughts and calls": {"messages": [user("w?"), thinks("", "hm", tool_calls=[call]), said, thinks("It is.", "so"), user("x"),
                                            thinks("y", "z")], "tools": tools},
        "thinking": {"messages": [user("a"), thinks("b", "hm"), user("c"), thinks("d", "ho")]},
        "parts": {"messages": [user(parts("a")), model(parts("b c")), user(parts("c")), model(parts("d e"))]},
        "system between": {"messages": [user("a"), model("b"), {"role": "system", "content": "s"}, user("c"), model("d")]},
        "results in a list": {"messages": [user("w?"), model("", tool_calls=[call]), {"role": "tool", "content": [{"output": "sun"}]}, sunny],
                              "tools": tools},
    }


def main():
    files = [arg for arg in sys.argv[1:] if arg != "-v"]
    if files:
        for path in files:
            print(hashed(plain(path)), path)
        return
    import trl
    folder = os.path.join(os.path.dirname(trl.__file__), "chat_templates")
    tok, counts, wrong = templates.tokenizer(), Counter(), 0
    with open(ENTRIES) as file:
        entries = json.load(file)
    for entry in entries:
        name = entry["name"]
        stock = plain(os.path.join(folder, name + ".jinja"))
        training = os.path.join(folder, name + "_training.jinja")
        training = plain(training) if os.path.isfile(training) else None
        if hashed(stock) != entry["hash"]:
            print(name, "has another hash in this TRL")
            wrong += 1
            continue
        ours = marked(stock, entry["places"])
        for what, row in rows().items():
            for prompt in (False, True):
                how = {"tools": row.get("tools"), "tokenize": False, "add_generation_prompt": prompt}
                try:
                    text = tok.apply_chat_template(row["messages"], chat_template=stock, **how)
                except Exception:
                    counts["refused by the template"] += 1
                    continue
                found, learned = spans(tok.apply_chat_template(row["messages"], chat_template=ours, **how))
                if found != text:
                    print(name, what, "has another text")
                    wrong += 1
                if prompt:
                    counts["texts up to an answer"] += 1
                    continue
                if training is None:
                    counts["texts without TRL's mask"] += 1
                    if "-v" in sys.argv:
                        print(name, what, [text[start:end] for start, end in learned])
                    continue
                try:
                    theirs = tok.apply_chat_template(row["messages"], chat_template=training, **how)
                    out = tok.apply_chat_template(row["messages"], chat_template=training, tools=row.get("tools"),
                                                  return_dict=True, return_assistant_tokens_mask=True)
                except Exception:
                    counts["refused by the template for training"] += 1
                    continue
                if theirs != text:
                    counts["texts that training changes"] += 1
                    if "-v" in sys.argv:
                        print(name, what, [text[start:end] for start, end in learned])
                    continue
                places = tok(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
                mask = [int(any(start < last and end > first for first, last in learned)) for start, end in places]
                counts["texts with TRL's mask"] += 1
                if mask != list(out["assistant_masks"]):
                    print(name, what, "has another mask")
                    wrong += 1
    print(f"{len(entries)} templates, {wrong} faults", dict(counts))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
