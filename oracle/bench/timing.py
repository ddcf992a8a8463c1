"""Samples with the share of time that the process waited for a core, peaks of memory, and rows of JSON."""
import argparse
import glob
import json
import statistics
import sys
import threading
import time

import torch


def arguments(**extra):
    """The flags that every script takes, and `extra` as name=default."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="stop repeating a row after this long")
    parser.add_argument("--serve", action="store_true", help="measure once for every line on standard input")
    for name, default in extra.items():
        kind = type(default) if default is not None else str
        parser.add_argument("--" + name.replace("_", "-"), type=kind, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    return args


def turns(args):
    """Once; or, serving a duel, once for every line read, so that the rival stays loaded between turns."""
    if not args.serve:
        yield
        return
    for _ in sys.stdin:
        yield


def waited_s():
    """Seconds that this process's threads were ready to run and had no core."""
    total = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            total += int(open(path).read().split()[1])
        except (OSError, IndexError):
            pass
    return total * 1e-9


def measure(run, args, warm=1):
    """Median seconds, best seconds and median waiting share; undisturbed samples only if there are three."""
    # Between turns of a duel the model stays warm; only short work is worth warming again.
    for _ in range(warm if getattr(args, "last_s", 0.0) < 1.0 else 0):
        run()
    samples, begin = [], time.perf_counter()
    while len(samples) < args.repeat and (len(samples) < 2 or time.perf_counter() - begin < args.seconds):
        before, start = waited_s(), time.perf_counter()
        run()
        took = time.perf_counter() - start
        samples.append((took, (waited_s() - before) / took))
    args.last_s = samples[-1][0]
    quiet = [took for took, share in samples if share < 0.03]
    used = quiet if len(quiet) >= 3 else [took for took, _ in samples]
    return statistics.median(used), min(used), statistics.median(share for _, share in samples)


def status_bytes(key):
    for line in open("/proc/self/status"):
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


class PeakAnonymous:
    """The largest anonymous resident memory seen while it is open, sampled every 5 ms."""

    def __enter__(self):
        self.peak, self.running = 0, True
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()
        return self

    def watch(self):
        while self.running:
            self.peak = max(self.peak, status_bytes("RssAnon"))
            time.sleep(0.005)

    def __exit__(self, *_):
        self.running = False
        self.thread.join()


def row(**values):
    rounded = {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in values.items()}
    print(json.dumps({**rounded, "rival": "torch"}), flush=True)
