"""How fast Fathom reads and writes with a GGUF file, in turns with llama.cpp: part `speed` of `real.py`.

Each round measures Fathom and then llama.cpp at each of the three things, so that what else the machine does meets both; figures are
medians over rounds, a ratio is the median of the rounds' ratios. Run as a program it is the rival, which keeps the model loaded and
computes a turn for each line that it reads: `decode`, `prefill` or `batch`. It calls llama_decode without Python's wrapper, whose copies
of logits cost a small model a tenth of its time.
"""
import json
import os
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

PROMPT, NEW, READ = 64, 64, 512
SEQUENCES, IN, OUT = 16, 128, 64


def prompts(vocabulary):
    drawn = random.Random(1)
    return [[drawn.randrange(1, vocabulary) for _ in range(READ)] for _ in range(SEQUENCES)]


class Rival:
    """llama.cpp over a file."""

    def __init__(self, path, threads):
        import llama_cpp
        self.lib = llama_cpp
        llama_cpp.llama_backend_init()
        quiet = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(quiet, None)
        self.quiet = quiet
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = SEQUENCES * (IN + OUT) + READ
        params.n_batch = params.n_ubatch = 512
        params.n_seq_max, params.kv_unified = SEQUENCES, True
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.prompts = prompts(llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model)))
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def run(self, rows):
        """Rows of (token, position, sequence, whether its logits are wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, (token, position, sequence, wanted) in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = token, position, wanted
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, sequence
        if self.lib.llama_decode(self.context, batch):
            raise SystemExit("llama_decode failed")
        self.lib.llama_synchronize(self.context)

    def turn(self, what):
        """Tokens a second."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)
        begin = time.perf_counter()
        if what == "batch":
            rows = [(token, at, sequence, at + 1 == IN) for sequence, prompt in enumerate(self.prompts)
                    for at, token in enumerate(prompt[:IN])]
            for first in range(0, len(rows), 512):
                self.run(rows[first:first + 512])
            for step in range(1, OUT):
                self.run([(prompt[step], IN + step - 1, sequence, True) for sequence, prompt in enumerate(self.prompts)])
            return SEQUENCES * OUT / (time.perf_counter() - begin)
        prompt = self.prompts[0][:READ if what == "prefill" else PROMPT]
        self.run([(token, at, 0, at + 1 == len(prompt)) for at, token in enumerate(prompt)])
        if what == "prefill":
            return READ / (time.perf_counter() - begin)
        begin = time.perf_counter()
        for step in range(NEW):
            self.run([(prompt[step], PROMPT + step, 0, True)])
        return NEW / (time.perf_counter() - begin)


class Ours:
    """`fathom bench` for one sequence, and a server for sixteen."""

    def __init__(self, fathom, server, vocabulary, path):
        self.fathom, self.server, self.path, self.prompts = fathom, server, path, prompts(vocabulary)

    def turn(self, what):
        if what == "batch":
            ask = dict(model="m", max_tokens=OUT, temperature=0, ignore_eos=True)
            begin = time.perf_counter()
            with ThreadPoolExecutor(SEQUENCES) as pool:
                # Another first token in each round: nothing may be found of the prompts before.
                first = int(time.time()) % 1000 + 1
                made = pool.map(lambda prompt: self.server.ask("/v1/completions", prompt=[first, *prompt[1:IN]], **ask), self.prompts)
                tokens = sum(answer["usage"]["completion_tokens"] for answer in made)
            return tokens / (time.perf_counter() - begin)
        flags = ["--prompt", PROMPT, "--new", NEW] if what == "decode" else ["--prompt", READ]
        printed = self.fathom("bench", what, f"model.from={self.path}", *flags, "--repeat", 1)
        return json.loads(next(line for line in printed.splitlines() if line.startswith("{")))["tokens_per_s"]


def measure(fathom, rows, model, args):
    from real_sources import Server, need
    need("llama_cpp", "llama-cpp-python")
    os.environ["FATHOM_THREADS"] = str(args.threads)
    command = [sys.executable, __file__, str(model.path), str(args.threads)]
    rival = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def theirs(what):
        rival.stdin.write(what + "\n")
        rival.stdin.flush()
        return float(rival.stdout.readline())

    vocabulary = int(rival.stdout.readline())
    titles = {"decode": f"decode of one sequence, {NEW} tokens after {PROMPT}", "prefill": f"a prompt of {READ} tokens",
              "batch": f"{SEQUENCES} requests at once through HTTP, {IN} in, {OUT} out"}
    found = {what: [] for what in titles}
    with Server(fathom, {"m": model.path}, "--memory", "2GiB") as server:
        ours = Ours(fathom, server, vocabulary, model.path)
        for round in range(args.rounds + 1):
            for what in titles:
                pair = ours.turn(what), theirs(what)
                # The first round warms both.
                found[what] += [pair] if round else []
    rival.stdin.close()
    rival.wait()
    for what, title in titles.items():
        ratio = statistics.median(mine / other for mine, other in found[what])
        ratios = ", ".join(f"{mine / other:.2f}" for mine, other in found[what])
        mine, other = (statistics.median(column) for column in zip(*found[what]))
        rows.add(model, title, f"{mine:.0f} tokens/s, ratio {ratio:.2f} ({ratios})",
                 f"llama.cpp {other:.0f} tokens/s, {args.threads} threads, load {os.getloadavg()[0]:.1f}")


def main():
    rival = Rival(sys.argv[1], int(sys.argv[2]))
    print(rival.lib.llama_vocab_n_tokens(rival.lib.llama_model_get_vocab(rival.model)), flush=True)
    for line in sys.stdin:
        print(rival.turn(line.strip()), flush=True)


if __name__ == "__main__":
    main()
