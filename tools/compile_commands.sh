#!/bin/bash
# Writes compile_commands.json into the project's folder, for clang-tidy, clangd and editors, from the
# compilations of the given targets (all of them), and makes the links by which headers are found. Build first what
# has generated headers; needs python3.
#
#   tools/compile_commands.sh [TARGETS...] && clang-tidy -p . base/*.cc
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
targets=${*:-//...}
output_base=$(./bazelw info output_base 2>/dev/null)
./bazelw query "kind('include_paths rule', deps(${targets// / + }))" 2>/dev/null | xargs ./bazelw build --noshow_progress
# clang-tidy cannot read the precompiled headers of g++.
./bazelw aquery --define=reprise_precompiled=no --output=jsonproto "mnemonic('CppCompile', ${targets// / + })" 2>/dev/null |
  python3 -c '
import json, re, sys

root, output_base = sys.argv[1:]
commands = {}
for action in json.load(sys.stdin).get("actions", []):
    arguments = action["arguments"]
    source = arguments[arguments.index("-c") + 1]
    # GCC only.
    arguments = [a for a in arguments if a not in ("-fno-canonical-system-headers", "-Wno-free-nonheap-object")]
    # Bazel runs the compiler where external/ is; editors want files of the checkout.
    arguments = [re.sub("^external/", output_base + "/external/", a) for a in arguments]
    commands[source] = {"directory": root, "file": source, "arguments": arguments}
json.dump(list(commands.values()), sys.stdout, indent=1)
print("compile_commands.json has %d files" % len(commands), file=sys.stderr)
' "$PWD" "$output_base" >compile_commands.json.partial
mv compile_commands.json.partial compile_commands.json
