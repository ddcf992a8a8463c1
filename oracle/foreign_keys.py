"""Keys that settings of other tools may have, from the tools' own sources: `tests/foreign_keys/TOOL.txt`.

    pip download --no-deps -d FOLDER axolotl==0.19.0 llamafactory==0.9.5 torchtune==0.6.1 transformers==5.24.0 trl==1.16.0
    foreign_keys.py FOLDER

Wheels are read and nothing of them is run: fields of the classes that hold settings, by `ast`, and of torchtune, whose recipes have no
such class, all keys of its shipped files. A class of a field is a table with keys of its own.
"""

import ast
import re
import sys
import zipfile
from pathlib import Path

OUT = Path(__file__).parent.parent / "tests" / "foreign_keys"
TRAINER = "transformers/training_args.py"


class Wheel:
    def __init__(self, folder, name):
        self.zip = zipfile.ZipFile(next(Path(folder).glob(f"{name}-*.whl")))

    def texts(self, start, end):
        names = [name for name in self.zip.namelist() if name.startswith(start) and name.endswith(end)]
        return [self.zip.read(name).decode() for name in sorted(names)]

    def classes(self, start):
        """Classes by name: their bases, and annotations of their fields."""
        found = {}
        for text in self.texts(start, ".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ClassDef):
                    fields = [it for it in node.body if isinstance(it, ast.AnnAssign) and isinstance(it.target, ast.Name)]
                    bases = [ast.unparse(base).split(".")[-1] for base in node.bases]
                    found[node.name] = (bases, {it.target.id: ast.unparse(it.annotation) for it in fields})
        return found


def keys(classes, name, prefix=""):
    """Keys of a class and its bases; fields that are of another class have its keys."""
    bases, fields = classes.get(name, ([], {}))
    found = set()
    for base in bases:
        found |= keys(classes, base, prefix)
    for field, kind in fields.items():
        if field.startswith("_") or "ClassVar" in kind or field == "model_config":
            continue
        inner = [word for word in re.findall(r"\w+", kind) if word in classes and classes[word][1]]
        # Of lists of tables Fathom reads the list.
        if inner and "list" not in kind.lower() and not prefix:
            for word in inner:
                found |= keys(classes, word, f"{field}.")
        else:
            found.add(prefix + field)
    return found


def dataclasses(classes, names):
    return set().union(*(keys(classes, name) for name in names))


def torchtune(wheel):
    """Keys of the shipped files, dotted: these are indented by two."""
    found = set()
    for text in wheel.texts("recipes/configs/", ".yaml"):
        path = []
        for line in text.splitlines():
            at = re.match(r"( *)([A-Za-z_][\w.]*):(.*)", line)
            if at:
                depth = len(at[1]) // 2
                path = path[:depth] + [at[2]]
                if at[3].split("#")[0].strip():
                    found.add(".".join(path))
    return found


def main():
    folder = sys.argv[1]
    wheel = {name: Wheel(folder, name) for name in ["axolotl", "llamafactory", "torchtune", "transformers", "trl"]}
    trainer = wheel["transformers"].classes(TRAINER)
    trl = trainer | wheel["trl"].classes("trl/trainer/") | wheel["trl"].classes("trl/scripts/")
    configs = [name for name in trl if name.endswith("Config") and name not in ("_BaseConfig",)]
    factory = trainer | wheel["llamafactory"].classes("llamafactory/hparams/")
    arguments = [name for name in factory if name.endswith("Arguments")]
    axolotl = wheel["axolotl"].classes("axolotl/utils/schemas/")
    lists = {
        "axolotl": keys(axolotl, "AxolotlInputConfig"),
        "llamafactory": dataclasses(factory, arguments),
        "torchtune": torchtune(wheel["torchtune"]),
        "trl": dataclasses(trl, configs + ["ScriptArguments"]),
    }
    OUT.mkdir(exist_ok=True)
    for name, found in lists.items():
        (OUT / f"{name}.txt").write_text("".join(f"{key}\n" for key in sorted(found)))
        print(f"{name}: {len(found)} keys")


main()
