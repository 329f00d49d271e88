#!/usr/bin/env python3
"""Prints docs/features.md from docs/features.txt, and holds each claim against the tests that it names.

  tools/ci/features.py            checks; prints each breach, and ends with 1 if there is one
  tools/ci/features.py --write    writes docs/features.md, and then checks
  tools/ci/features.py --cases //cache/tables:tests    lists the cases of a target, as rows name them
  tools/ci/features.py --graphs   prints the rows that claim a captured graph, and how many cases capture each

docs/features.txt starts by explaining its own form. A row is breached by a claim without a test, by a test
that is not there (targets are read from the BUILD files, cases from the sources that they name), by a test
of the wrong kind (the GPU's are reprise_gpu_test targets that //tests:gpu_all carries), by a GPU claim in a
graph that no GPU test captures (tools/ci/captures.py finds which do), by a claim that says "not run", by a
cell that says nothing: without a word, or "–" without a reason. A test of runner/ or engine/ breaches
an operator. Needs Python 3.8 and nothing else.
"""

import argparse
import ast
import fnmatch
import glob
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import captures  # noqa: E402

CELLS = ("CPU", "GPU", "graph")
DATA = "docs/features.txt"
PAGE = "docs/features.md"
# What a cell says that claims nothing: it does not apply, is not built, or has no test yet.
NO_CLAIM = re.compile(r"^(–|not built\b|not held\b)")
# How the feature of an operator begins, and the rooms whose tests show that the product uses a feature.
OPERATOR = "operator: "
PRODUCT = re.compile(r"^//(runner|engine)[:/]")
TEST_RULES = ("reprise_cc_test", "reprise_gpu_test", "reprise_fuzz_test", "sh_test")

_CASE = re.compile(r"^(TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)", re.M)
_INSTANCE = re.compile(
    r"^(INSTANTIATE_TEST_SUITE_P|INSTANTIATE_TYPED_TEST_SUITE_P)\(\s*(\w+),\s*(\w+)", re.M)
_ID = re.compile(r"^[A-Z]\d+[a-z]?$")


class Row:
    """A feature: its texts by cell, and the tests of each as (label, [patterns])."""

    def __init__(self, name, feature):
        self.name = name
        self.feature = feature
        self.texts = {}
        self.tests = {cell: [] for cell in CELLS}

    def claims(self, cell):
        return not NO_CLAIM.match(self.texts.get(cell, "not built"))


class Section:
    def __init__(self, title):
        self.title = title
        self.rows = []


def read_features(text):
    """Returns (introduction lines, sections, breaches) of the data file."""
    introduction, sections, breaches = [], [], []
    row, cell = None, None
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{DATA}:{number}"
        words = line.split()
        if not words or line.startswith("#"):
            continue
        if line.startswith("== "):
            sections.append(Section(line[3:].strip()))
            row, cell = None, None
        elif line.startswith("> ") or line == ">":
            introduction.append(line[2:])
        elif not line.startswith(" ") and _ID.match(words[0]):
            if not sections:
                breaches.append(f"{where}: a row before the first section")
                continue
            row, cell = Row(words[0], line[len(words[0]):].strip()), None
            sections[-1].rows.append(row)
        elif row is not None and re.match(r"^  \w+:", line):
            cell, _, said = line.strip().partition(":")
            if cell not in CELLS or cell in row.texts:
                breaches.append(f"{where}: {row.name} says '{cell}' twice, or it is none of {', '.join(CELLS)}")
                cell = None
                continue
            row.texts[cell] = said.strip()
        elif cell and line.startswith("    ") and words[0].startswith("//"):
            row.tests[cell].append((words[0], words[1:]))
        elif cell and line.startswith("      ") and row.tests[cell]:
            row.tests[cell][-1][1].extend(words)
        else:
            breaches.append(f"{where}: neither a section, a row, a cell nor a test: {line.strip()}")
    return introduction, sections, breaches


def printed(introduction, sections):
    """Returns the page."""
    lines = ["# Features", ""] + introduction
    for section in sections:
        lines += ["", f"## {section.title}", "", "| # | feature | CPU | GPU | in a graph |", "|---|---|---|---|---|"]
        for row in section.rows:
            said = " | ".join(row.texts.get(cell, "") for cell in CELLS)
            lines.append(f"| {row.name} | {row.feature} | {said} |")
        tested = [row for row in section.rows if any(row.tests.values())]
        if tested:
            lines += ["", "Tests:", ""]
        for row in tested:
            lines.append(f"- **{row.name}**")
            for cell in CELLS:
                if row.tests[cell]:
                    tests = "; ".join(" ".join(f"`{word}`" for word in [label] + patterns)
                                      for label, patterns in row.tests[cell])
                    lines.append(f"  - {'in a graph' if cell == 'graph' else cell}: {tests}")
    return "\n".join(lines) + "\n"


class Target:
    def __init__(self, rule, srcs, tests):
        self.rule = rule
        self.srcs = srcs  # paths
        self.tests = tests  # of a reprise_gpu_test_binary


def _strings(node, folder):
    """The strings of an expression of a BUILD file: lists, sums, selects and globs of literals."""
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, (ast.List, ast.Tuple)):
        return [text for element in node.elts for text in _strings(element, folder)]
    if isinstance(node, ast.BinOp):
        return _strings(node.left, folder) + _strings(node.right, folder)
    if isinstance(node, ast.Dict):
        return [text for value in node.values for text in _strings(value, folder)]
    if isinstance(node, ast.Call):
        texts = [text for argument in node.args for text in _strings(argument, folder)]
        if isinstance(node.func, ast.Name) and node.func.id == "glob":
            return [os.path.relpath(path, folder) for text in texts
                    for path in sorted(glob.glob(os.path.join(folder, text), recursive=True))]
        return texts
    return []


def read_targets(root):
    """Returns {label: Target} of the BUILD files that are literal; what comprehensions make is left out."""
    targets = {}
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders
                            if not name.startswith((".", "bazel-")) and not
                            os.path.exists(os.path.join(folder, name, "WORKSPACE")))
        if "BUILD" not in files:
            continue
        package = os.path.relpath(folder, root).replace(os.sep, "/")
        package = "" if package == "." else package
        with open(os.path.join(folder, "BUILD"), encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for statement in tree.body:
            call = statement.value if isinstance(statement, ast.Expr) else None
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
                continue
            arguments = {keyword.arg: _strings(keyword.value, folder) for keyword in call.keywords}
            name = (arguments.get("name") or [None])[0]
            if name:
                srcs = [os.path.join(folder, src) for src in arguments.get("srcs", []) if src[:1] not in ":/@"]
                targets[f"//{package}:{name}"] = Target(call.func.id, srcs, arguments.get("tests", []))
    return targets


def full(label):
    """'//folder:folder' for '//folder'."""
    return label if ":" in label else f"{label}:{label.split('/')[-1]}"


class Cases:
    """The cases of test targets, from their sources."""

    def __init__(self, root, targets):
        self._targets = targets
        self._of_file = {}
        self._captures = captures.Captures(root)
        # Cases with a parameter, by suite: a suite may be compiled into a library and instantiated elsewhere.
        self._with_parameter = {}
        self._suite_files = {}
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith((".", "bazel-"))]
            for name in files:
                if name.endswith((".cc", ".cu")):
                    for kind, suite, case in self._read(os.path.join(folder, name))[0]:
                        if kind.endswith("_P") or kind == "TYPED_TEST":
                            self._with_parameter.setdefault(suite, set()).add(case)
                            self._suite_files.setdefault(suite, set()).add(os.path.join(folder, name))

    def _read(self, path):
        if path not in self._of_file:
            try:
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            except OSError:
                text = ""
            self._of_file[path] = (_CASE.findall(text), _INSTANCE.findall(text))
        return self._of_file[path]

    def of(self, label):
        """Returns {name: whether it has parameters}, as gtest names them without '/0'."""
        names = {}
        for src in self._targets[label].srcs:
            cases, instances = self._read(src)
            for kind, suite, case in cases:
                if kind in ("TEST", "TEST_F"):
                    names[f"{suite}.{case}"] = False
                elif kind == "TYPED_TEST":
                    names[f"{suite}.{case}"] = True
            for _, prefix, suite in instances:
                for case in self._with_parameter.get(suite, ()):
                    names[f"{prefix}/{suite}.{case}"] = True
        return names

    def captures(self, label, name):
        """Whether the case `name` of a target captures work in a graph and replays it."""
        suite, _, case = name.rpartition("/")[2].partition(".")
        files = set(self._targets[label].srcs) | self._suite_files.get(suite, set())
        return any(self._captures.of_case(path, suite, case) for path in files if path.endswith((".cc", ".cu")))


def named_cases(pattern, names):
    """The cases that a pattern ('*' allowed) names; '/parameter' may follow one that has parameters."""
    return {name for name, has_parameter in names.items()
            if "DISABLED_" not in name and
            (fnmatch.fnmatchcase(name, pattern) or
             (has_parameter and fnmatch.fnmatchcase(name, pattern.rpartition("/")[0])))}


def case_exists(pattern, names):
    return bool(named_cases(pattern, names))


def captured_cases(row, targets, cases):
    """[(label, pattern, number of cases that capture)] of a row's tests in a graph on a GPU."""
    found = []
    for label, patterns in row.tests["graph"]:
        if label in targets and targets[label].rule == "reprise_gpu_test":
            names = cases.of(label)
            for pattern in patterns:
                captured = [name for name in named_cases(pattern, names) if cases.captures(label, name)]
                found.append((label, pattern, len(captured)))
    return found


def graph_table(sections, targets, cases):
    """The rows that claim a captured graph: how many cases hold each, on a GPU and elsewhere, and which targets
    have them. A case with parameters counts once."""
    lines = ["| # | in a graph | cases on a GPU | others | targets |", "|---|---|---|---|---|"]
    without = 0
    for row in (row for section in sections for row in section.rows if row.claims("graph")):
        counts = {True: 0, False: 0}
        for label, patterns in row.tests["graph"]:
            if label not in targets:
                continue
            names = cases.of(label)
            found = set().union(*(named_cases(pattern, names) for pattern in patterns))
            # A script is a case of its own.
            counts[targets[label].rule == "reprise_gpu_test"] += len(found) if names else 1
        without += counts[True] == 0 and row.claims("GPU")
        labels = " ".join(f"`{label}`" for label, _ in row.tests["graph"])
        lines.append(f"| {row.name} | {row.texts['graph']} | {counts[True]} | {counts[False]} | {labels} |")
    lines += ["", f"{len(lines) - 2} rows claim a captured graph; {without} of those that a GPU serves have no case there."]
    return "\n".join(lines)


def check_rows(sections, targets, cases):
    """Returns the breaches of all rows."""
    breaches, seen = [], set()
    carried = {full(test) for target in targets.values() if target.rule == "reprise_gpu_test_binary"
               for test in target.tests}

    def check_test(row, cell, label, patterns):
        where = f"{row.name}, {cell}: {label}"
        target = targets.get(label)
        if target is None or target.rule not in TEST_RULES:
            return [f"{where} is no test that a BUILD file names"]
        on_gpu = target.rule == "reprise_gpu_test"
        if (cell == "CPU" and on_gpu) or (cell == "GPU" and not on_gpu):
            return [f"{where} is a {target.rule}"]
        if on_gpu and label not in carried:
            return [f"{where} is carried to no GPU: //tests:gpu_all does not have it"]
        if row.feature.startswith(OPERATOR) and PRODUCT.match(label):
            return [f"{where} is a test of the product, which uses no operator"]
        names = cases.of(label)
        if names and not patterns:
            return [f"{where} names no case"]
        return [f"{where} has no case {pattern}" for pattern in patterns if not case_exists(pattern, names)]

    for row in (row for section in sections for row in section.rows):
        if row.name in seen:
            breaches.append(f"{row.name} is there twice")
        seen.add(row.name)
        if not row.feature or "|" in row.feature + "".join(row.texts.values()):
            breaches.append(f"{row.name}: its feature has no words, or there is a '|' in the row")
        breaches_of_names = []
        for cell in CELLS:
            if not row.texts.get(cell):
                breaches.append(f"{row.name}, {cell}: empty; say 'not built', 'not held: why' or '– (why)'")
            elif row.texts[cell] in ("–", "not held", "not held:"):
                breaches.append(f"{row.name}, {cell}: '{row.texts[cell]}' without a reason")
            elif row.claims(cell) and re.search(r"\bnot run\b", row.texts[cell]):
                breaches.append(f"{row.name}, {cell}: '{row.texts[cell]}' is no claim; say 'not held: why'")
            elif row.claims(cell) and not row.tests[cell]:
                breaches.append(f"{row.name}, {cell}: '{row.texts[cell]}' names no test")
            elif not row.claims(cell) and row.tests[cell]:
                breaches.append(f"{row.name}, {cell}: '{row.texts[cell]}', and yet it names tests")
            for label, patterns in row.tests[cell]:
                breaches_of_names += check_test(row, cell, label, patterns)
        breaches += breaches_of_names
        if row.claims("graph") and row.claims("GPU") and not breaches_of_names:
            captured = captured_cases(row, targets, cases)
            if not captured:
                breaches.append(f"{row.name}, graph: no test on a GPU captures it")
            breaches += [f"{row.name}, graph: {label} {pattern} captures nothing"
                         for label, pattern, count in captured if count == 0]
    return breaches


def main():
    parser = argparse.ArgumentParser(description="Checks docs/features.md; see the head of this file.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
    parser.add_argument("--write", action="store_true", help="write docs/features.md")
    parser.add_argument("--graphs", action="store_true", help="print the rows that claim a captured graph")
    parser.add_argument("--cases", metavar="LABEL", help="list the cases of a target")
    options = parser.parse_args()
    root = os.path.normpath(options.root)
    targets = read_targets(root)
    cases = Cases(root, targets)
    if options.cases:
        if options.cases not in targets:
            sys.exit(f"no such target: {options.cases}")
        print("\n".join(sorted(cases.of(options.cases))))
        return 0

    with open(os.path.join(root, DATA), encoding="utf-8") as file:
        introduction, sections, breaches = read_features(file.read())
    if options.graphs:
        print(graph_table(sections, targets, cases))
        return 0
    page = printed(introduction, sections)
    path = os.path.join(root, PAGE)
    if options.write:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page)
    breaches += check_rows(sections, targets, cases)
    try:
        with open(path, encoding="utf-8") as file:
            is_printed = file.read() == page
    except OSError:
        is_printed = False
    if not is_printed:
        breaches.append(f"{PAGE} is not what {DATA} prints: run tools/ci/features.py --write")
    if breaches:
        print("\n".join(breaches))
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
