"""Finds which gtest cases capture work in a CUDA graph and replay it, by reading their sources.

    captures.Captures(root).of_case("attention/cuda/attention_gpu_test.cc", "AttentionGpuTest", "LongRows")

A case captures if a word of its body, or of what the body reaches, is one of PRIMITIVES. A body reaches each
function and class whose name is in it and that is defined in the same file, or in a file for tests (in a folder
`testing` or under `tests`) which the file includes, and so on from there. A name is taken for all that bear it, so
a case that only mentions a capturing function's name counts; this reads C++ as text, and does not compile it.
Needs Python 3.8 and nothing else.
"""

import os
import re

# What captures and replays, or checks that graphs were replayed: the runner's decision, its count of replays, its
# comparison of each replay with an eager step, launches in a trace, and the program's count of eager steps.
PRIMITIVES = frozenset((
    "cudaGraphLaunch", "CapturedWork", "CUDAGraph", "BuilderTwins", "Capture", "Replay",
    "kReplay", "num_replays", "kEveryReplay", "GraphLaunch", "eager_steps",
))

_COMMENT_OR_STRING = re.compile(r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.S)
_INCLUDE = re.compile(r'^#include "(?:reprise/)?([^"]+)"', re.M)
_WORD = re.compile(r"[A-Za-z_]\w*")
_CASE = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*(\w+),\s*(\w+)\)\s*$")
_CLASS = re.compile(r"\b(?:class|struct|union)\s+(?:alignas\([^)]*\)\s*)?(\w+)(?:\s+final)?(?:\s*:[^:].*)?\s*$", re.S)
_FUNCTION = re.compile(r"([A-Za-z_]\w*)\s*\(")
_NO_FUNCTION = frozenset(("if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "requires",
                          "alignas", "static_assert", "noexcept", "defined", "__launch_bounds__"))


def _end_of_block(text, begin):
    """The place behind the '}' of the '{' at `begin`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    return len(text)


class _Source:
    """What a file defines, as words by name; its cases as words by (suite, case); what it includes."""

    def __init__(self, text):
        self.includes = _INCLUDE.findall(text)
        text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", "", text, flags=re.M)
        # Strings keep their words, but nothing that looks like code.
        text = _COMMENT_OR_STRING.sub(
            lambda found: " " if found.group()[0] == "/" else f"'{' '.join(_WORD.findall(found.group()))}'", text)
        self.definitions = {}
        self.cases = {}
        self._read(text)

    def _define(self, name, words):
        self.definitions.setdefault(name, set()).update(words)

    def _read(self, text):
        """Notes the definitions of a namespace or class."""
        at = head = 0
        while True:
            match = re.compile(r"[;{}]").search(text, at)
            if match is None:
                return
            at = match.end()
            if match.group() != "{":
                head = at
                continue
            header = text[head:match.start()]
            end = _end_of_block(text, match.start())
            # Members may be initialised in braces before the body.
            if re.match(r"\s*[,{]", text[end:end + 200]) and ":" in header and "(" in header:
                at = end
                continue
            body = text[match.end():end - 1]
            self._note(header, body)
            at = head = end

    def _note(self, header, body):
        words = set(_WORD.findall(body))
        case = _CASE.search(header)
        of_class = _CLASS.search(header)
        if case:
            self.cases.setdefault(case.groups(), set()).update(words)
        elif re.search(r"\bnamespace\b[\s\w:]*$", header) or re.search(r"\bextern\s*'C'\s*$", header):
            self._read(body)
        elif of_class and "enum" not in header:
            self._define(of_class.group(1), words)
            self._read(body)
        else:
            before = re.split(r"[^=!<>]=[^=]", header)[0]  # of no initialiser
            for name in _FUNCTION.findall(before):
                if name not in _NO_FUNCTION:
                    self._define(name, words | set(_WORD.findall(header)))
                    return


class Captures:
    def __init__(self, root):
        self._root = root
        self._sources = {}
        self._reachable = {}

    def _source(self, path):
        path = os.path.normpath(path)
        if path not in self._sources:
            try:
                with open(path, encoding="utf-8") as file:
                    self._sources[path] = _Source(file.read())
            except OSError:
                self._sources[path] = None
        return self._sources[path]

    def _files_of(self, path):
        """The file, and the files for tests that it includes, directly or not, with their implementations."""
        if path not in self._reachable:
            files, waiting = [], [path]
            while waiting:
                here = waiting.pop()
                source = self._source(here)
                if source is None or here in files:
                    continue
                files.append(here)
                for include in source.includes:
                    if "/testing/" not in include and not include.startswith("tests/"):
                        continue
                    stem = os.path.join(self._root, os.path.splitext(include)[0])
                    waiting += [os.path.normpath(stem + end) for end in (".h", ".cuh", ".cc", ".cu")]
            self._reachable[path] = files
        return self._reachable[path]

    def of_case(self, path, suite, case):
        """Whether the case, if it is in that file, captures."""
        path = os.path.normpath(path)
        source = self._source(path)
        if source is None or (suite, case) not in source.cases:
            return False
        files = [self._source(file) for file in self._files_of(path)]
        waiting, seen = set(source.cases[suite, case]), set()
        while waiting:
            if waiting & PRIMITIVES:
                return True
            seen |= waiting
            waiting = {word for name in waiting for file in files
                       for word in file.definitions.get(name, ())} - seen
        return False
