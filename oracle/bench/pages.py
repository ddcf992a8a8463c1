"""A conversation that is longer than the pages in memory: seconds of its steps, by several binaries or settings in turns.

    python oracle/bench/copying_model.py MODEL
    python oracle/bench/pages.py OUT MODEL NAME=FATHOM.. [--tokens 65536] [--memory 200MiB] [--rounds 3] [--new 24] [--cold]

Each binary reads a prompt of that many tokens, once; then in turns each writes `--new` tokens behind it, and the row has the median of
its steps and the ratio of the first binary's to its own. NAME=FATHOM+ (with a plus) gives all of the memory that it needs, so that
nothing is on disk. A needle of eight tokens in the prompt has to be answered exactly. `--cold` empties the system's cache before each
turn (as root).
"""
import argparse
import json
import os
import random
import statistics
import subprocess
import time
import urllib.request

from serving import wait_ready


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("model")
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--tokens", type=int, default=65536)
    parser.add_argument("--memory", default="200MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new", type=int, default=24)
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--keys", nargs="*", default=[])
    args = parser.parse_args()
    drawn = random.Random(1)
    # The needle's tokens, and the one before them, stand nowhere else.
    ids, first, needle = [drawn.randrange(100, 32000) for _ in range(args.tokens - 10)], 50, list(range(51, 59))
    at = len(ids) // 3
    prompt = [*ids[:at], first, *needle, *ids[at:], first]
    servers = []
    try:
        measure(args, servers, prompt, needle)
    finally:
        for server in servers:
            server.process.terminate()


def measure(args, servers, prompt, needle):
    for index, binary in enumerate(args.binaries):
        name, fathom = binary.split("=")
        servers.append(Server(name, fathom, args, 8150 + index))
    for server in servers:
        began = time.monotonic()
        said, _ = server.write(prompt, 8)
        assert said == needle, f"{server.name}: {said} and not {needle}"
        print(json.dumps(dict(name=server.name, prompt_tokens=len(prompt), prompt_s=round(time.monotonic() - began, 2), rss=server.memory())), flush=True)
    steps = {server.name: [] for server in servers}
    for _ in range(args.rounds):
        for server in servers:
            if args.cold:
                os.sync()
                with open("/proc/sys/vm/drop_caches", "w") as file:
                    file.write("3\n")
            said, times = server.write(prompt, args.new)
            assert said[:8] == needle
            steps[server.name].append(statistics.median(times))
    first = statistics.median(steps[servers[0].name])
    for server in servers:
        own = statistics.median(steps[server.name])
        print(json.dumps(dict(name=server.name, step_ms=round(1000 * own, 2), steps_ms=[round(1000 * s, 2) for s in steps[server.name]],
                              ratio=round(first / own, 3), load=os.getloadavg()[0])), flush=True)


class Server:
    """`fathom serve` of the model."""

    def __init__(self, name, fathom, args, port):
        self.name, self.at = name, f"http://127.0.0.1:{port}"
        whole = fathom.endswith("+")
        kept = os.path.join(args.out, f"kept-{name}")
        command = [fathom.rstrip("+"), "serve", args.model, "--port", str(port), "--name", "m", "--kv", "int8", "--precision", "f32",
                   "--memory", "2GiB" if whole else args.memory, "serve.sequences=1", f"serve.context_tokens={args.tokens + 64}",
                   "serve.draft_tokens=0", "serve.body_bytes=67108864", "serve.prefix_bytes=1", *args.keys]
        if not whole:
            command += ["--prefix-store", kept, "serve.page_file_bytes=4294967296"]
        os.makedirs(args.out, exist_ok=True)
        with open(os.path.join(args.out, f"{name}.log"), "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        wait_ready(self.at, f": {name}, see its log in {args.out}")

    def memory(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return {line.split()[0][:-1]: line.split()[1] for line in file if line.startswith(("RssAnon", "VmHWM"))}

    def write(self, prompt, tokens):
        """The ids of an answer, and seconds of its steps but the first."""
        body = dict(model="m", prompt=prompt, max_tokens=tokens, temperature=0, stream=True, return_token_ids=True, ignore_eos=True)
        request = urllib.request.Request(self.at + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"})
        ids, moments = [], []
        with urllib.request.urlopen(request, timeout=36000) as answer:
            for line in answer:
                if not line.startswith(b"data: {"):
                    continue
                for choice in json.loads(line[6:])["choices"]:
                    if choice.get("token_ids"):
                        ids += choice["token_ids"]
                        moments.append(time.monotonic())
        return ids, [b - a for a, b in zip(moments, moments[1:])]


main()
