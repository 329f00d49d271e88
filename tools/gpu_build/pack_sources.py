#!/usr/bin/env python3
"""Packs sources, and a plan of their compilation, for a machine that has a GPU, nvcc and LibTorch, but no Bazel.

    tools/gpu_build/pack_sources.py [--tests REGEX] [--libraries FILE] FOLDER [TARGET...]

FOLDER gets plan.json (the compilations and links of Bazel's own plan for the targets, kernels for Hopper alone) and
sources.tar.xz (what they read). build.py, beside this file, makes the programs of them over there. See
docs/gpu-testing.md.
"""

import argparse
import glob
import json
import os
import re
import subprocess
import sys
import tarfile

PROGRAMS = [
    "//tests:gpu_all",
    "//tests/benchmarks/device:decode_step",
    "//tests/benchmarks/device:attention_bench",
    "//tests/benchmarks/device:linear_bench",
    "//examples/decode:decode",
]
FLAGS = ["--define=reprise_cuda_archs=90a", "--define=reprise_precompiled=no"]

# What programs need of this system beyond LibTorch and CUDA.
HEADERS = ["absl", "glog", "gflags", "gtest", "gmock", "nlohmann", "CLI", "editline", "histedit.h", "utf8proc.h",
           "pcre2.h", "gloo"]
LIBRARIES = ["libabsl_*.a", "libabsl_*.so*", "libgtest*.a", "libgmock*.a", "libglog.so*", "libgflags.so*",
             "libunwind.so*", "liblzma.so*", "libpcre2-8.*", "libutf8proc.*", "libedit.*", "libbsd.*", "libmd.*",
             "libtinfo.*"]
LIBRARY_FOLDERS = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"]

SOURCES = (".h", ".cuh", ".inc", ".cc", ".cu")
# Of Bazel's options those that change what a source means; the others are the compiler's that Bazel found here.
OPTIONS = ("-D", "-gencode", "--compress-mode", "-m", "-fmad", "-ffp-contract", "-fopenmp")


def bazelw(*arguments):
    environment = dict(os.environ, REPRISE_DEVICE="cuda")
    return subprocess.run(["./bazelw", *arguments], env=environment, stdout=subprocess.PIPE, text=True,
                          check=True).stdout


class ActionGraph:
    """What `bazel aquery --output=jsonproto` prints."""

    def __init__(self, text):
        graph = json.loads(text)
        self._fragments = {f["id"]: f for f in graph["pathFragments"]}
        self._artifacts = {a["id"]: a["pathFragmentId"] for a in graph["artifacts"]}
        self._actions = graph["actions"]

    def _path(self, artifact):
        labels, fragment = [], self._artifacts[artifact]
        while fragment is not None:
            labels.append(self._fragments[fragment]["label"])
            fragment = self._fragments[fragment].get("parentId")
        return "/".join(reversed(labels))

    def actions(self, mnemonic):
        """Yields the output and the arguments of each action of this kind."""
        for action in self._actions:
            if action["mnemonic"] == mnemonic:
                yield self._path(action["primaryOutputId"]), action["arguments"]


def compilations(graph):
    """{object: its source and options}."""
    found = {}
    for mnemonic in ("CppCompile", "NvccCompile"):
        for output, arguments in graph.actions(mnemonic):
            options = [a for a in arguments if a.startswith(OPTIONS) and not a.startswith(("-D_", "-DNDEBUG"))]
            found[output] = {"source": arguments[arguments.index("-c") + 1], "object": output, "options": options}
    return found


def program_names(targets):
    """{target: name of its program}: the last part of the label, or the whole label if targets share that part."""
    names = [t.rsplit(":", 1)[1] for t in targets]
    return {t: n if names.count(n) == 1 else t.lstrip("/").replace("/", "_").replace(":", "_")
            for t, n in zip(targets, names)}


def plan_of(graph, targets, tests):
    """The plan of the programs; of the tests in gpu_all those whose object's path matches `tests`."""
    known, links, needed = compilations(graph), {}, set()
    names = program_names(targets)
    for output, arguments in graph.actions("CppLink"):
        label = "//" + output.split("/bin/", 1)[-1]
        target = "%s:%s" % (os.path.dirname(label), os.path.basename(output))
        if target not in names:
            continue
        name = names[target]
        objects = [a for a in arguments if a.endswith(".o")]
        if name == "gpu_all":
            objects = [o for o in objects if not o.endswith("_test.pic.o") or re.search(tests, o)]
        libraries = [a for a in arguments if a.startswith("-l") or a in ("-Wl,--start-group", "-Wl,--end-group")]
        links[name] = {"objects": objects, "libraries": libraries}
        needed.update(objects)
    missing = sorted(t for t in targets if names[t] not in links) + sorted(needed - known.keys())
    if missing:
        sys.exit("pack_sources: nothing in Bazel's plan makes " + ", ".join(missing[:5]))
    return {"compilations": [known[o] for o in sorted(needed)], "links": links}


def include_links(names):
    """{link: its target}: reprise/ROOM to the folder of each room, since sources include "reprise/ROOM/x.h"."""
    folders = {re.match(r"(examples/)?[^/]+/|", name).group().rstrip("/") for name in names}
    return {"reprise/" + os.path.basename(folder): "../" + folder for folder in sorted(folders) if folder}


def pack_sources(path, plan):
    generated = sorted({c["source"] for c in plan["compilations"] if c["source"].startswith("bazel-out/")})
    if generated:
        paths = [source.split("/bin/", 1)[1] for source in generated]
        bazelw("build", *FLAGS, *["//%s:%s" % os.path.split(p) for p in paths])
    root = bazelw("info", "execution_root").strip()
    tracked = subprocess.run(["git", "ls-files", "-z"], stdout=subprocess.PIPE, text=True, check=True).stdout
    sources = [name for name in tracked.split("\0") if name.endswith(SOURCES)]
    with tarfile.open(path, "w:xz") as archive:
        for name in sources:
            archive.add(name)
        for name, target in include_links(sources).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name in generated:
            archive.add(os.path.realpath(os.path.join(root, name)), arcname=name)


def pack_libraries(path):
    with tarfile.open(path, "w:xz") as archive:
        for name in HEADERS:
            if os.path.exists("/usr/include/" + name):
                archive.add("/usr/include/" + name, arcname="include/" + name)
        names = {os.path.basename(f): f for folder in LIBRARY_FOLDERS for p in LIBRARIES
                 for f in glob.glob("%s/%s" % (folder, p))}
        for name, file in sorted(names.items()):
            archive.add(file, arcname="lib/" + name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tests", default="", metavar="REGEX", help="which of the tests in gpu_all (all)")
    parser.add_argument("--libraries", metavar="FILE", help="also write an archive of the system's libraries")
    parser.add_argument("folder")
    parser.add_argument("targets", nargs="*", default=PROGRAMS)
    options = parser.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    graph = ActionGraph(bazelw("aquery", *FLAGS, "--output=jsonproto", "deps(set(%s))" % " ".join(options.targets)))
    plan = plan_of(graph, options.targets, options.tests)
    with open(options.folder + "/plan.json", "w") as file:
        json.dump(plan, file)
    pack_sources(options.folder + "/sources.tar.xz", plan)
    if options.libraries:
        pack_libraries(options.libraries)
    print("pack_sources: %d compilations for %s" % (len(plan["compilations"]), ", ".join(plan["links"])))


if __name__ == "__main__":
    main()
