#!/usr/bin/env python3
"""Compares the benchmarks of two commits. This half of tools/gpu_compare.sh runs on the machine with the GPU.

    gpu_compare.py [FOLDER]       builds and runs what `tools/gpu_compare.sh pack` wrote into FOLDER
    gpu_compare.py --targets      prints the Bazel targets of the programs

FOLDER defaults to the folder of this file. Settings are environment variables:

    ROUNDS=N            rounds per run: each round runs the old program, then the new one (5, at least 2)
    PROGRAMS="a b"      names from RUNS below; default: all
    LIMIT=SECONDS       wall time for the build and all runs (540); drops rounds that would exceed it, but runs two
    BUILT=DIR           folder of the built programs; objects are kept for the next call
    OUT=DIR             folder for the output of every run; default: a temporary folder

"A to A" is the largest |ratio - 1| of two consecutive old runs, or one unit of the last printed digit if that is
larger. A quantity is marked if the median of NEW/OLD over the rounds is further from 1 than A to A. Ends with 1 if the
build or a program fails; a difference is a result, not a failure. Needs Python 3.8, and the compilers of build.py.
"""

import argparse
import collections
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

PACKAGE = "//tests/benchmarks/device:"
SIDES = ("old", "new")
# Seconds after which a program counts as hung.
PROGRAM_SECONDS = 150

# A measured quantity of one run of a program. resolution: one unit of the last printed digit.
Value = collections.namedtuple("Value", "name number resolution")
# seconds: estimated time of one run on an H100. Divides LIMIT among the runs.
Run = collections.namedtuple("Run", "name program flags parse seconds")


# ---- The lines of each program.


def json_lines(point_keys, value_keys):
    """A parser of programs that print a JSON object per point: `point_keys` name the point."""

    def parse(line):
        if not line.startswith("{"):
            return []
        fields = json.loads(line)
        point = " ".join(str(fields[k]) if isinstance(fields[k], str) else f"{k} {fields[k]}" for k in point_keys)
        return [Value(f"{point}: {key}", float(fields[key]), 0.0) for key in value_keys]

    return parse


def printed(name, text):
    """A Value of a number as a table prints it."""
    return Value(name, float(text), 10.0 ** -len(text.partition(".")[2]))


LINEAR_COLUMNS = ("cublaslt", "few rows alone", "tiles alone", "few rows chain", "tiles chain", "fp8 by rows",
                  "fp8 by groups", "fp8 by rows tiles", "fp8 by groups tiles")


def linear_line(line):
    """`8b.qkv            8 |    16.4  98 %          |                    - | ...`: microseconds, share, form."""
    head, *cells = [cell.split() for cell in line.split("|")]
    if len(cells) != len(LINEAR_COLUMNS) or len(head) != 2 or not head[1].isdigit():
        return []
    return [printed(f"{head[0]} rows {head[1]}: {column}", cell[0])
            for column, cell in zip(LINEAR_COLUMNS, cells) if cell[0] != "-"]


METADATA_LINE = re.compile(r"(\S.*?) +(\d+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)$")


def metadata_line(line):
    """`window + full                8     2.10       0.00       3.90      6.40     13.2`"""
    match = METADATA_LINE.match(line.rstrip())
    if not match:
        return []
    layers, rows, refill, _, tile_schedules, together, host = match.groups()
    return [printed(f"{layers}, rows {rows}: {name}", text) for name, text in
            (("refill", refill), ("tile schedules", tile_schedules), ("together", together), ("host", host))]


STEP = json_lines(("batch",), ("step_us", "launch_us", "products_us", "kernels"))

RUNS = (
    Run("decode_8b", "decode_step", ("--preset=llama-3.1-8b", "--batch=1,8,64", "--steps=20"), STEP, 10),
    Run("decode_1b", "decode_step", ("--preset=llama-3.2-1b", "--batch=1", "--steps=60"), STEP, 5),
    Run("attention", "attention_bench", ("--grid=all", "--filter=4096"), json_lines(("name",), ("us",)), 7),
    Run("linear", "linear_bench", ("--shapes=8b.", "--rows=8,64"), linear_line, 5),
    Run("cache", "cache_ops", ("--only=write,read,copy,prologue",), json_lines(("operation", "shape"), ("us",)), 5),
    Run("metadata", "metadata_step", ("--rows=64",), metadata_line, 4),
    Run("launch", "launch_bench", ("--rows=1,8,64", "--steps=3000"), json_lines(("rows",), ("median_us", "p90_us")), 4),
)


# ---- The comparison.


def spread(old):
    """The largest |ratio - 1| of consecutive runs of the old program."""
    return max((abs(b / a - 1) for a, b in zip(old, old[1:])), default=0.0)


class Quantity:
    """A quantity in all rounds of a run."""

    def __init__(self, resolution):
        self.by_side = {side: {} for side in SIDES}  # round -> number
        self._resolution = resolution

    def compare(self):
        """Returns (old median, new median, median ratio, A to A, mark, pairs), or None without a pair of numbers."""
        old, new = (self.by_side[side] for side in SIDES)
        rounds = [r for r in sorted(old) if r in new and old[r] > 0]
        if not rounds:
            return None
        ratio = statistics.median(new[r] / old[r] for r in rounds)
        olds = [old[r] for r in rounds]
        a_to_a = max(spread(olds), self._resolution / statistics.median(olds))
        mark = "" if abs(ratio - 1) <= a_to_a + 1e-9 else "HIGHER" if ratio > 1 else "LOWER"
        return statistics.median(olds), statistics.median(new[r] for r in rounds), ratio, a_to_a, mark, len(rounds)


def print_quantities(quantities, num_rounds):
    """Prints a row per quantity; returns the marks."""
    marks = []
    for name, quantity in quantities.items():
        missing = [side for side in SIDES if not quantity.by_side[side]]
        compared = quantity.compare()
        if missing:
            print(f"  {name:<54} not in {missing[0]}")
            marks.append("MISSING")
            continue
        if compared is None:
            print(f"  {name:<54} 0 in old")
            continue
        old, new, ratio, a_to_a, mark, pairs = compared
        note = "" if pairs == num_rounds else f"  ({pairs} pairs)"
        print(f"  {name:<54} {old:11.2f} {new:11.2f} {ratio:9.4f} {a_to_a:8.4f}  {mark}{note}".rstrip())
        marks.append(mark)
    return marks


# ---- The runs.


class Failure(Exception):
    pass


class Machine:
    """Runs the built programs, and stores their output."""

    def __init__(self, built, out):
        self._built = built
        self._out = out
        with open(os.path.join(built, "env.sh"), encoding="utf-8") as file:
            folders = file.read().strip().partition("=")[2]
        self._environment = dict(os.environ, LD_LIBRARY_PATH=folders)

    def measure(self, run, side, number):
        """Runs the program of a side; returns its Values. Raises Failure."""
        path = os.path.join(self._out, f"{run.name}.{number}.{side}")
        where = f"{run.name}: round {number} of {side}"
        with open(path + ".txt", "w", encoding="utf-8") as out, open(path + ".log", "w", encoding="utf-8") as log:
            try:
                status = subprocess.run([os.path.join(self._built, side, run.program), *run.flags], stdout=out,
                                        stderr=log, env=self._environment, timeout=PROGRAM_SECONDS).returncode
            except (OSError, subprocess.TimeoutExpired) as error:
                raise Failure(f"{where}: {error}")
        if status != 0:
            with open(path + ".log", encoding="utf-8", errors="replace") as log:
                raise Failure(f"{where}: status {status}\n{log.read()[-1000:]}")
        with open(path + ".txt", encoding="utf-8", errors="replace") as out:
            try:
                values = [value for line in out for value in run.parse(line)]
            except (KeyError, TypeError, ValueError) as error:
                raise Failure(f"{where}: {path}.txt cannot be parsed: {error!r}")
        if not values:
            raise Failure(f"{where}: no quantity in {path}.txt")
        return values


def run_rounds(machine, run, num_rounds, deadline):
    """Runs both sides in turn; returns ({name: Quantity}, number of rounds). Runs at least two rounds, and stops if the
    next round would end after the deadline."""
    quantities = {}
    done, seconds = 0, 0.0
    while done < num_rounds and (done < 2 or time.monotonic() + seconds <= deadline):
        done += 1
        begin = time.monotonic()
        for side in SIDES:
            for value in machine.measure(run, side, done):
                quantity = quantities.setdefault(value.name, Quantity(value.resolution))
                quantity.by_side[side][done] = value.number
        seconds = time.monotonic() - begin
    return quantities, done


def packed_programs(folder):
    """{side: names of its programs}."""
    programs = {}
    for side in SIDES:
        with open(os.path.join(folder, side, "plan.json"), encoding="utf-8") as file:
            programs[side] = set(json.load(file)["links"])
        with open(os.path.join(folder, side, "commit"), encoding="utf-8") as file:
            print(f"{side}: {file.read().strip()}")
    return programs


def chosen_runs(names):
    unknown = set(names) - {run.name for run in RUNS}
    if unknown:
        sys.exit(f"gpu_compare: PROGRAMS must be names of {' '.join(run.name for run in RUNS)}: "
                 f"got {' '.join(sorted(unknown))}")
    return [run for run in RUNS if run.name in names] if names else list(RUNS)


def build(folder, built):
    command = [sys.executable, os.path.join(folder, "build.py"), "--libraries",
               os.path.join(folder, "libraries.tar.xz"), built, *[os.path.join(folder, side) for side in SIDES]]
    if subprocess.run(command).returncode != 0:
        sys.exit("gpu_compare: the build failed")


def compare(folder):
    """Returns the exit status."""
    begin = time.monotonic()
    num_rounds = max(2, int(os.environ.get("ROUNDS", "5")))
    limit = float(os.environ.get("LIMIT", "540"))
    built = os.environ.get("BUILT") or os.path.join(tempfile.gettempdir(), "reprise_compare")
    out = os.environ.get("OUT") or tempfile.mkdtemp()
    left = chosen_runs(os.environ.get("PROGRAMS", "").split())
    programs = packed_programs(folder)
    build(folder, built)
    machine = Machine(built, out)
    wanted = 2 * num_rounds * sum(run.seconds for run in left)
    print(f"built in {time.monotonic() - begin:.0f} s; {num_rounds} rounds take about {wanted} s on an H100, "
          f"{limit - (time.monotonic() - begin):.0f} s are left\n")
    print(f"  {'quantity':<54} {'old':>11} {'new':>11} {'new/old':>9} {'A to A':>8}")
    marks, failures = [], []
    while left:
        share = left[0].seconds / sum(run.seconds for run in left)
        run = left.pop(0)
        start = time.monotonic()
        missing = [side for side in SIDES if run.program not in programs[side]]
        if missing:
            print(f"{run.name}: {run.program} is not in {' and '.join(missing)}")
            continue
        try:
            quantities, done = run_rounds(machine, run, num_rounds, start + share * (begin + limit - start))
            note = "" if done == num_rounds else f" of {num_rounds}, to keep LIMIT={limit:.0f}"
            print(f"{run.name}: {run.program} {' '.join(run.flags)}: rounds {done}{note}, "
                  f"{time.monotonic() - start:.0f} s")
            marks += print_quantities(quantities, done)
        except Failure as failure:
            failures.append(run.name)
            print(f"FAILED {failure}")
    counts = collections.Counter(marks)
    print(f"\n{len(marks) - counts['MISSING']} quantities compared: {counts['HIGHER']} higher and {counts['LOWER']} "
          f"lower than A to A explains; {counts['MISSING']} on one side only; failed: {' '.join(failures) or 'none'}")
    print(f"{time.monotonic() - begin:.0f} s in all, of {limit:.0f}; output in {out}")
    return int(bool(failures))


def main():
    parser = argparse.ArgumentParser(description="Compares the benchmarks of two commits; see the head of this file.")
    parser.add_argument("--targets", action="store_true", help="print the Bazel targets of the programs")
    parser.add_argument("folder", nargs="?", default=os.path.dirname(os.path.realpath(__file__)))
    options = parser.parse_args()
    if options.targets:
        print("\n".join(dict.fromkeys(PACKAGE + run.program for run in RUNS)))
        return 0
    sys.stdout.reconfigure(line_buffering=True)  # in order with the output of build.py
    return compare(options.folder)


if __name__ == "__main__":
    sys.exit(main())
