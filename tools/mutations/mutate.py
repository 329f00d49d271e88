#!/usr/bin/env python3
"""Plants faults in the sources, one at a time, and expects the tests to find each of them.

  tools/mutations/mutate.py                   every fault that needs no GPU
  tools/mutations/mutate.py --only NAME...    these
  tools/mutations/mutate.py --gpu             those that need a GPU, on a machine that has one
  tools/mutations/mutate.py --gpu --bundle DIR    packs them, to be run on such a machine: DIR/run.sh
  tools/mutations/mutate.py --list            prints the faults
  tools/mutations/mutate.py --check           only looks whether faults.txt still fits the sources; builds nothing

faults.txt, next to this file, has the faults and explains its own form. They are planted in a git worktree in the
cache, made of the checkout with its uncommitted changes (but without untracked files), so the checkout stays
as it is. The tests that a fault names must pass without it and fail with it. Ends with 1 if a fault escapes.
Needs Python 3.8 and nothing else.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "../ci"))
sys.dont_write_bytecode = True
import features  # noqa: E402

DATA = "tools/mutations/faults.txt"
FIELDS = ("why", "file", "test", "gpu", "escaped")
# A fault that makes a test hang is found, too, but not in the test's own time.
TEST_SECONDS = 120


class Fault:
    """A fault: what replaces what where, and the test that must fail."""

    def __init__(self, name):
        self.name = name
        self.why = self.file = self.test = self.gpu = self.escaped = ""
        self.before = ""
        self.after = ""

    @property
    def target(self):
        return self.test.partition(" ")[0]

    @property
    def cases(self):
        return self.test.partition(" ")[2].strip()

    @property
    def needs_gpu(self):
        return self.gpu == "yes"

    def planted(self, text):
        """The source with the fault, or None unless the text to be replaced is there once."""
        lines = "\n" + text
        if lines.count("\n" + self.before) != 1:
            return None
        return lines.replace("\n" + self.before, "\n" + self.after)[1:]


def read_faults(text):
    """Returns (faults, breaches) of the data file."""
    faults, breaches = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        field, colon, said = line.partition(":")
        if line.startswith("== "):
            faults.append(Fault(line[3:].strip()))
        elif faults and line[0] == "-" and not faults[-1].after:
            faults[-1].before += line[1:] + "\n"
        elif faults and line[0] == "+":
            faults[-1].after += line[1:] + "\n"
        elif faults and colon and field in FIELDS and not getattr(faults[-1], field):
            setattr(faults[-1], field, said.strip())
        else:
            breaches.append(f"{DATA}:{number}: neither a fault, a field nor a line of source: {line}")
    return faults, breaches


def check(root, faults):
    """Returns what does not fit the sources and the BUILD files."""
    breaches, seen = [], set()
    targets = features.read_targets(root)
    cases = features.Cases(root, targets)

    def breaches_of(fault):
        if fault.name in seen or not re.fullmatch(r"[a-z0-9-]+", fault.name):
            yield "its name is not new, or not of small letters, digits and hyphens"
        seen.add(fault.name)
        if not fault.why or not fault.before or fault.before == fault.after:
            yield "it has no 'why', or changes nothing"
        try:
            with open(os.path.join(root, fault.file), encoding="utf-8") as file:
                if fault.planted(file.read()) is None:
                    yield f"{fault.file} does not have the text to be replaced exactly once"
        except OSError:
            yield f"there is no {fault.file}"
        target = targets.get(fault.target)
        if target is None or target.rule not in features.TEST_RULES:
            yield f"{fault.target} is no test that a BUILD file names"
            return
        if fault.needs_gpu != (target.rule == "reprise_gpu_test"):
            yield f"{fault.target} is a {target.rule}, and gpu: is '{fault.gpu}'"
        names = cases.of(fault.target)
        for pattern in fault.cases.split(":"):
            if not features.case_exists(pattern, names):
                yield f"{fault.target} has no case {pattern}"

    for fault in faults:
        breaches += [f"fault {fault.name}: {breach}" for breach in breaches_of(fault)]
    return breaches


# ---- The worktree.


def git(folder, *arguments):
    return subprocess.run(("git", "-C", folder) + arguments, check=True, stdout=subprocess.PIPE,
                          universal_newlines=True).stdout.strip()


def cache_folder(root):
    cache = os.environ.get("REPRISE_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "reprise")
    repository = os.path.realpath(os.path.join(root, git(root, "rev-parse", "--git-common-dir")))
    return os.path.join(cache, "mutations", hashlib.sha1(repository.encode()).hexdigest()[:12])


@contextlib.contextmanager
def worktree(root):
    """A worktree of the checkout as it is, for this process alone."""
    tree = cache_folder(root)
    os.makedirs(os.path.dirname(tree), exist_ok=True)
    with open(tree + ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"mutate.py: another run uses {tree}")
        # The uncommitted changes as a commit that no branch knows; nothing if there are none.
        revision = git(root, "stash", "create") or git(root, "rev-parse", "HEAD")
        if os.path.exists(os.path.join(tree, ".git")):
            git(tree, "reset", "-q", "--hard")  # a run that was killed may have left its fault
            git(tree, "checkout", "-q", "--detach", revision)
        else:
            git(root, "worktree", "prune")
            git(root, "worktree", "add", "-q", "--detach", "--force", tree, revision)
        yield tree


@contextlib.contextmanager
def planted(tree, fault):
    """The fault is in the worktree; the file is restored whatever happens."""
    path = os.path.join(tree, fault.file)
    with open(path, encoding="utf-8", newline="") as file:
        text = file.read()
    try:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(fault.planted(text))
        yield
    finally:
        with open(path, "w", encoding="utf-8", newline="") as file:
            file.write(text)


# ---- Runs.


class Bazel:
    """bazelw in the worktree. `log_folder`: gets a log of each call."""

    def __init__(self, tree, log_folder, device, options):
        self._tree = tree
        self._log_folder = log_folder
        self._options = options
        self._environment = dict(os.environ, REPRISE_DEVICE=device)

    def call(self, name, command, *arguments):
        """Returns (status, output)."""
        words = ["./bazelw", command, "--noshow_progress"] + self._options + list(arguments)
        done = subprocess.run(words, cwd=self._tree, env=self._environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True,
                              errors="replace")
        with open(os.path.join(self._log_folder, name + ".log"), "w", encoding="utf-8") as file:
            file.write(done.stdout)
        return done.returncode, done.stdout

    def test(self, name, target, cases, *arguments):
        return self.call(name, "test", "--test_output=errors", f"--test_timeout={TEST_SECONDS}",
                         f"--test_filter={cases}", *arguments, target)

    def build(self, name, target):
        """Builds a program; returns its path, or None."""
        status, _ = self.call(name, "build", target)
        if status != 0:
            return None
        folder = subprocess.run(["./bazelw", "info"] + self._options + ["bazel-bin"], cwd=self._tree,
                                env=self._environment, check=True, stdout=subprocess.PIPE,
                                stderr=subprocess.DEVNULL, universal_newlines=True).stdout.strip()
        return os.path.join(folder, target[2:].replace(":", "/"))


# What a planted fault must not leave in the disk cache, which nothing trims.
NOT_KEPT = "--remote_upload_local_results=false"


def outcome_of(status, output):
    """(whether the fault was found, what happened) of a test with a fault."""
    if status == 0:
        return False, "ESCAPED"
    if re.search(r": error: static assertion failed", output):
        return True, "found by a static_assert"
    if status != 3:  # Bazel's status of tests that failed
        return False, "does not build"
    failed = sorted(set(re.findall(r"^\[  FAILED  \] ([^\s,]+\.[^\s,]+)", output, re.M)))
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        return True, f"found by {failed[0]}{more}"
    return True, "found: out of time" if re.search(r"\bTIMEOUT\b", output) else "found: the test crashed"


def by_target(faults):
    targets = {}
    for fault in faults:
        targets.setdefault(fault.target, []).append(fault)
    return targets


class Table:
    def __init__(self, faults):
        self._width = max(len(fault.name) for fault in faults)
        self.rows = []

    def add(self, name, is_good, what, seconds=None):
        self.rows.append((name, is_good, what))
        took = "" if seconds is None else f"{seconds:5.0f} s  "
        print(f"{name:{self._width}}  {took}{what}", flush=True)

    def finish(self):
        """Prints the sum; returns the exit status."""
        bad = [row for row in self.rows if not row[1]]
        print(f"\n{len(self.rows) - len(bad)} of {len(self.rows)} faults were found")
        for name, _, what in bad:
            print(f"{name:{self._width}}  {what}")
        return int(bool(bad))


def run(bazel, tree, faults):
    """Runs the faults; returns the exit status."""
    table = Table(faults)
    for target, here in by_target(faults).items():
        cases = ":".join(dict.fromkeys(":".join(fault.cases for fault in here).split(":")))
        status, _ = bazel.test("without-" + target[2:].replace("/", "-").replace(":", "-"), target, cases)
        for fault in here:
            if status != 0:
                table.add(fault.name, False, f"{target} fails without the fault, or does not build")
                continue
            start = time.monotonic()
            with planted(tree, fault):
                found, what = outcome_of(*bazel.test(fault.name, target, fault.cases, NOT_KEPT))
            table.add(fault.name, found, what, time.monotonic() - start)
    return table.finish()


# ---- For a machine with a GPU.


def bundle(bazel, tree, faults, folder):
    """Packs the tests, with and without the faults, and the script that runs them."""
    folder = os.path.abspath(folder)
    rows, programs = [], {}
    with tempfile.TemporaryDirectory() as content:

        def add(program, name):
            script = 'set -euo pipefail; source tools/gpu_pack.sh; add_program "$@"'
            subprocess.run(["bash", "-c", script, "add", program, content, name], cwd=tree, check=True)

        for target, here in by_target(faults).items():
            plain = "without-" + target[2:].replace("/", "-").replace(":", "-")
            program = bazel.build(plain, target)
            if program is None:
                sys.exit(f"mutate.py: {target} does not build")
            add(program, plain)
            for fault in here:
                with planted(tree, fault):
                    program = bazel.build(fault.name, target)
                    if program is None:
                        sys.exit(f"mutate.py: {fault.name} does not build")
                    add(program, fault.name)
                rows.append((fault.name, plain, fault.cases))
                print(f"packed {fault.name}", flush=True)
        with open(os.path.join(content, "faults.tsv"), "w", encoding="utf-8") as file:
            file.writelines("\t".join(row) + "\n" for row in rows)
        os.makedirs(folder, exist_ok=True)
        script = 'set -euo pipefail; source tools/gpu_pack.sh; pack_programs "$@"'
        subprocess.run(["bash", "-c", script, "pack", content, folder], cwd=tree, check=True)
    shutil.copy(os.path.join(HERE, "gpu_run.sh"), os.path.join(folder, "run.sh"))
    print(f"{len(rows)} faults are in {folder}: run {folder}/run.sh on a machine with a GPU")
    return 0


def has_gpu():
    return any(map(os.path.exists, ("/dev/nvidiactl", "/dev/nvidia0", "/usr/lib/wsl/lib/libcuda.so.1")))


def main():
    parser = argparse.ArgumentParser(description="Plants faults and runs tests; see the head of this file.")
    parser.add_argument("--root", default=os.path.join(HERE, "../.."))
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--check", action="store_true", help="look whether faults.txt fits the sources")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults alone")
    parser.add_argument("--gpu", action="store_true", help="those that need a GPU, in place of all others")
    parser.add_argument("--bundle", metavar="DIR", help="with --gpu: pack them to be run elsewhere")
    parser.add_argument("--jobs", type=int, help="of Bazel, if not all that the machine has")
    options = parser.parse_args()
    root = os.path.normpath(options.root)
    with open(os.path.join(root, DATA), encoding="utf-8") as file:
        faults, breaches = read_faults(file.read())
    breaches += check(root, faults)
    if breaches:
        print("\n".join(breaches))
        return 1
    if options.check:
        return 0
    if options.only:
        unknown = set(options.only) - {fault.name for fault in faults}
        if unknown:
            sys.exit(f"mutate.py: no such fault: {' '.join(sorted(unknown))}")
        faults = [fault for fault in faults if fault.name in options.only]
    if options.list:
        for fault in faults:
            print(f"{fault.name}{' (GPU)' if fault.needs_gpu else ''}\n  {fault.why}\n  {fault.file}\n  {fault.test}")
            if fault.escaped:
                print(f"  escaped at first: {fault.escaped}")
        return 0
    faults = [fault for fault in faults if fault.needs_gpu == options.gpu]
    if not faults:
        sys.exit(f"mutate.py: these faults are of the other kind: {'leave out' if options.gpu else 'add'} --gpu")
    if options.gpu and not options.bundle and not has_gpu():
        sys.exit("mutate.py: there is no GPU here: name a folder with --bundle, to run its run.sh elsewhere")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutate.py: terminated"))
    device = "cuda" if options.gpu else "cpu"
    bazel_options = [] if options.jobs is None else [f"--jobs={options.jobs}"]
    with worktree(root) as tree:
        log_folder = tree + ".logs"
        os.makedirs(log_folder, exist_ok=True)
        print(f"logs are in {log_folder}")
        bazel = Bazel(tree, log_folder, device, bazel_options)
        if options.bundle:
            return bundle(bazel, tree, faults, options.bundle)
        return run(bazel, tree, faults)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("mutate.py: interrupted")
