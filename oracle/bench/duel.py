"""Fathom and PyTorch in turns, shape by shape: the table of ratios for docs/log.

    PYTHON=../venv/bin/python ../venv/bin/python oracle/bench/duel.py gemm attention step decode lora \
        [--fathom target/release/fathom] [--rounds 5] [--tokens 2048,8192,16384] [--rows duel.jsonl]

For every shape the rival is started once and stays loaded; each round runs Fathom, then lets the rival measure once.
The figures are medians over the rounds; a ratio is ours over the rival's rate, so more is better (memory: less is).
`busy` is the median share of time that the rival's threads waited for a core. PyTorch's spinning threads collapse to a
half or a twentieth when something else runs, which would flatter us: rounds above the limit (0.05; 0.2 for steps and
decoding, where the script's own helper thread waits too) are measured again, and a shape with fewer than three quiet
rounds gets no ratio.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
GEMM = [
    (512, 512, 512), (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (4096, 3072, 768),
    (4096, 768, 3072), (768, 3072, 4096), (2048, 1408, 512), (2048, 32000, 512), (128, 4096, 4096),
]

LIMIT = dict(gemm=0.05, attention=0.05, step=0.2, decode=0.2, lora=0.2)
# Our verb, where it is not the name of the rival's script.
VERBS = dict(lora="step")
ADAPTER = ["adapter.method=lora", "adapter.rank=16", "adapter.targets=all-linear"]


class Rival:
    def __init__(self, script, flags):
        command = [str(HERE / "rival.sh"), script + ".py", "--serve", *flags]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the rival ended without a row")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def ours(fathom, bench, flags, match):
    """The rows of one run of `fathom bench` that agree with `match`."""
    command = [fathom, "bench", VERBS.get(bench, bench), *flags]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    rows = [r for r in rows if all(r.get(k) == v for k, v in match.items())]
    if not rows:
        raise SystemExit(f"no row like {match} from: {' '.join(command)}")
    return rows


def shapes(args, bench):
    """(title, our flags, flags of the rival, keys that our rows must have): all but products with flat and peaked scores."""
    if bench == "gemm":
        yield from sizes(args, bench)
        return
    for title, flags, rival_flags, match in sizes(args, bench):
        for scores in args.scores.split(","):
            more = ["--scores", scores]
            yield f"{title} {scores}", flags + more, rival_flags + more, {**match, "scores": scores}


def sizes(args, bench):
    tokens = args.tokens.split(",")
    if bench == "gemm":
        for m, n, k in GEMM:
            flags = ["--shape", f"{m},{n},{k}"]
            yield f"gemm {m} x {n} x {k}", flags, [*flags, "--repeat", "3"], dict(m=m, n=n, k=k)
    elif bench == "attention":
        for t in tokens:
            for dim in (64, 128):
                for name in ("forward", "forward_backward"):
                    flags = ["--tokens", t, "--head-dim", str(dim), "--heads", "8", "--kv-heads", "8"]
                    match = {"tokens": int(t), "head_dim": dim, "pass": name}
                    yield f"attention {name} {t} D {dim}", flags, [*flags, "--repeat", "1", "--passes", name], match
    elif bench == "step":
        for t in tokens:
            yield f"step {t}", [f"stages={t}"], ["--tokens", t, "--repeat", "1"], dict(tokens=int(t))
    elif bench == "lora":
        for t in tokens:
            yield f"LoRA step {t}", [f"stages={t}", *ADAPTER], ["--tokens", t, "--repeat", "1"], dict(tokens=int(t))
    elif bench == "decode":
        flags = ["--prompt", "128", "--new", "64"]
        yield "decode 128 + 64", flags, [*flags, "--repeat", "1"], {}


def duel(args, bench, flags, rival_flags, match):
    rival, mine, theirs = Rival(bench, rival_flags), [], []
    rival.turn()
    for _ in range(2 * args.rounds):
        own, other = ours(args.fathom, bench, flags, match), rival.turn()
        if other["waited"] <= LIMIT[bench]:
            mine.append(own)
            theirs.append(other)
        if len(theirs) == args.rounds:
            break
    rival.close()
    return mine, theirs


def median(rows, key):
    values = [r[key] for r in rows if r.get(key) is not None]
    return statistics.median(values) if values else None


def lines(title, mine, theirs, rate):
    """One table line per kind of row that we print for the shape (weights as given, weights packed)."""
    busy = statistics.median(r["waited"] for r in theirs)
    kinds = sorted({str(r.get("packed", "")) for rows in mine for r in rows})
    for kind in kinds:
        own = [r for rows in mine for r in rows if str(r.get("packed", "")) == kind]
        a, b = median(own, rate), median(theirs, rate)
        name = title + {"True": ", packed", "False": ", as given"}.get(kind, "")
        yield name, kind, a, b, a / b, busy
    if "step" in title:
        a = median([r for rows in mine for r in rows], "peak_rss_bytes")
        b = median(theirs, "peak_rss_bytes")
        if a and b:
            yield title + ", peak anonymous MiB", "memory", a / 2**20, b / 2**20, a / b, busy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benches", nargs="+", choices=["gemm", "attention", "step", "decode", "lora"])
    parser.add_argument("--fathom", default="target/release/fathom")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", default="2048,8192,16384")
    parser.add_argument("--scores", default="flat,peaked", help="of attention: see `fathom bench step --help`")
    parser.add_argument("--rows", help="also append every row of both to this file")
    args = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.2f}\n\n| figure | Fathom | PyTorch | ratio | busy |\n|---|---|---|---|---|")
    means = {}
    for bench in args.benches:
        rate = "gflops" if bench in ("gemm", "attention") else "tokens_per_s"
        for title, flags, rival_flags, match in shapes(args, bench):
            mine, theirs = duel(args, bench, flags, rival_flags, match)
            if len(theirs) < min(3, args.rounds):
                print(f"| {title} | | | disturbed | |", flush=True)
                continue
            if args.rows:
                with open(args.rows, "a") as file:
                    file.writelines(json.dumps(r) + "\n" for r in [x for rows in mine for x in rows] + theirs)
            for name, kind, a, b, ratio, busy in lines(title, mine, theirs, rate):
                print(f"| {name} | {a:.0f} | {b:.0f} | {ratio:.2f} | {busy:.2f} |", flush=True)
                if bench == "gemm":
                    means.setdefault(kind, []).append(ratio)
    for kind, ratios in means.items():
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        name = {"True": "packed", "False": "as given"}.get(kind, kind)
        print(f"| gemm geometric mean, {name} | | | {mean:.2f} | |")


if __name__ == "__main__":
    main()
