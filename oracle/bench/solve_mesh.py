"""How long `fathom plan --solve mesh` takes as a whole process: wall and CPU seconds, by several binaries in turns.

    python oracle/bench/solve_mesh.py NAME=FATHOM.. [--rounds 5] [--recipes llama3-8b-64k-nvidia ..]

Each row has the medians of a binary's runs and the ratio of the first binary's CPU time to its own; the answers of all are compared, and
it ends with 1 if they differ. CPU time is of both cores, and says something on a loaded machine too.
"""
import argparse
import os
import resource
import statistics
import subprocess
import sys
import time

RECIPES = ["llama3-8b-64k-nvidia", "llama3-70b-64k-nvidia", "llama3-405b-128k-nvidia"]


def run(binary, recipe, answers):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([binary, "plan", recipe, "--solve", "mesh", "-q"], capture_output=True, text=True, check=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    answers.append(done.stdout)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries", nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    args = parser.parse_args()
    binaries = [binary.split("=", 1) for binary in args.binaries]
    differ = []
    for recipe in args.recipes:
        times, answers = {name: [] for name, _ in binaries}, []
        for _ in range(args.rounds):
            for name, binary in binaries:
                times[name].append(run(binary, recipe, answers))
        if len(set(answers)) > 1:
            differ.append(recipe)
        medians = {name: [statistics.median(column) for column in zip(*rows)] for name, rows in times.items()}
        first = medians[binaries[0][0]][1]
        for name, (wall, cpu) in medians.items():
            print(f"{recipe:26} {name:10} wall {wall:6.2f} s  cpu {cpu:6.2f} s  {first / cpu:5.2f} x", flush=True)
    print("load", *os.getloadavg())
    if differ:
        sys.exit(f"answers differ: {' '.join(differ)}")


if __name__ == "__main__":
    main()
