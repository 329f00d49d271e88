#!/usr/bin/env python3
"""Compiles every installed header alone. Prints the errors and warnings of each, and ends with 1 if there are any.

    check_headers.py FOLDER COMPILER FLAGS...

FOLDER is the root of the installed headers. FLAGS must find everything that they include. Each header is the main file of
one compilation, so that its own warnings are errors even if FLAGS name FOLDER by -isystem.

LibTorch takes seconds to parse. The headers of LibTorch that a header includes, directly or through headers of FOLDER, are
therefore precompiled with the VOCABULARY, once for each such set, and come first in the compilation. The header cannot use more of LibTorch
than it includes. Headers of FOLDER that do not include LibTorch are compiled without it, so they cannot rely on it.

Needs Python 3.8 and a GCC.
"""

import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile

INCLUDE = re.compile(r'^ *# *include +(?:"([^"]+)"|<((?:ATen|c10|torch)/[^>]+)>)', re.M)
WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# Nearly every header includes these, and they take most of the time that is left. Their users' own sources, which
# include their header first, show that no header relies on another one for them.
VOCABULARY = ("absl/status/statusor.h", "absl/types/span.h")


class Headers:

    def __init__(self, folder):
        self.paths = sorted(
            os.path.relpath(os.path.join(parent, name), folder)
            for parent, _, names in os.walk(folder) for name in names if name.endswith(".h"))
        self.includes = {}
        for path in self.paths:
            with open(os.path.join(folder, path), encoding="utf-8") as file:
                self.includes[path] = INCLUDE.findall(file.read())

    def libtorch_of(self, path):
        """The headers of LibTorch that `path` includes, sorted."""
        found, seen, waiting = set(), set(), [path]
        while waiting:
            header = waiting.pop()
            if header in seen or header not in self.includes:
                continue
            seen.add(header)
            for own, libtorch in self.includes[header]:
                (found.add(libtorch) if libtorch else waiting.append(own))
        return tuple(sorted(found))


def run(command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, universal_newlines=True)
    return "" if result.returncode == 0 else result.stdout or "%s failed" % command[0]


def precompile(compiler, headers, path):
    """Precompiles a header that includes `headers`. Returns the errors."""
    with open(path, "w", encoding="utf-8") as file:
        file.writelines("#include <%s>\n" % header for header in VOCABULARY + headers)
    return run(compiler + ["-x", "c++-header", path, "-o", path + ".gch"])


def main():
    folder, compiler = sys.argv[1], sys.argv[2:]
    headers = Headers(folder)
    if not headers.paths:
        sys.exit("check_headers: %s has no headers" % folder)
    with tempfile.TemporaryDirectory() as work, concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        sets = sorted({headers.libtorch_of(path) for path in headers.paths})
        forms = {one: os.path.join(work, "libtorch_%d.h" % number) for number, one in enumerate(sets)}
        errors = list(pool.map(lambda one: precompile(compiler, one, forms[one]), sets))

        def check(path):
            first = ["-Winvalid-pch", "-include", forms[headers.libtorch_of(path)]]
            return run(compiler + WARNINGS + first + ["-fsyntax-only", "-x", "c++", os.path.join(folder, path)])

        errors += pool.map(check, headers.paths)
    failures = [error for error in errors if error]
    print("\n".join(failures + ["%d headers, %d failures" % (len(headers.paths), len(failures))]))
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
