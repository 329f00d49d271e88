#!/usr/bin/env python3
"""Makes the programs that pack_sources.py packed, on the machine that is to run them.

    build.py [--libraries FILE] [--racecheck REGEX] [--jobs N] OUT FOLDER...

OUT/<name of FOLDER>/ gets the programs of each folder, and OUT/env.sh sets LD_LIBRARY_PATH for them. What several
folders compile from the same text with the same options is compiled once: two branches take little longer than one.
Needs nvcc, g++, and a python3 with LibTorch. See docs/gpu-testing.md.
"""

import argparse
import concurrent.futures
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time

INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.M)


class Toolchain:
    """The compilers of this machine, and the folders of what they find."""

    def __init__(self, libraries):
        torch = os.path.dirname(importlib.util.find_spec("torch").origin)
        wheels = os.path.join(os.path.dirname(torch), "nvidia")
        self._nvcc = os.path.realpath(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc")
        cuda = os.path.dirname(os.path.dirname(self._nvcc))
        packages = [os.path.join(wheels, p) for p in sorted(os.listdir(wheels))] if os.path.isdir(wheels) else []
        self._includes = [libraries + "/include", cuda + "/include"]
        self._torch_includes = [torch + "/include", torch + "/include/torch/csrc/api/include"]
        self._torch_includes += [p + "/include" for p in packages]
        self.library_folders = [libraries + "/lib", torch + "/lib", *[p + "/lib" for p in packages],
                                cuda + "/lib64", cuda + "/extras/CUPTI/lib64"]

    def compile(self, tree, source, options, output):
        """Returns what the compiler said if it failed."""
        if source.endswith(".cu"):
            command = [self._nvcc, "-O3", "-lineinfo", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC"]
            folders = self._includes
        else:
            # Some tests of gpu_all take minutes on the host, most of them in what their own sources instantiate.
            command = ["g++", "-O2", "-fPIC", "-ffunction-sections"]
            folders = self._includes + self._torch_includes
        command += ["-std=c++20", "-DNDEBUG", "-I.", *[a for f in folders for a in ("-isystem", f)]]
        return run([*command, *options, "-c", source, "-o", output], cwd=tree)

    def link(self, objects, libraries, output):
        """Likewise."""
        with open(output + ".objects", "w") as file:
            file.write("\n".join(objects))
        folders = ["-L" + f for f in self.library_folders if os.path.isdir(f)]
        kind = "-shared" if output.endswith(".so") else "-pie"
        return run(["g++", kind, "-s", "-Wl,--gc-sections", "@" + output + ".objects", *folders, "-Wl,--no-as-needed",
                    *libraries, "-Wl,--allow-shlib-undefined", "-o", output])


def run(command, cwd=None):
    result = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return None if result.returncode == 0 else result.stdout[-3000:] or "status %d" % result.returncode


class Tree:
    """The sources of a folder."""

    def __init__(self, folder, path):
        self.path = path
        with tarfile.open(folder + "/sources.tar.xz") as archive:
            archive.extractall(path)
        with open(folder + "/plan.json") as file:
            plan = json.load(file)
        self.links = plan["links"]
        self.by_object = {c["object"]: c for c in plan["compilations"]}

    @functools.lru_cache(maxsize=None)
    def _read(self, name):
        try:
            with open(os.path.join(self.path, name), "rb") as file:
                text = file.read()
        except OSError:
            return None
        return hashlib.sha256(text).digest(), [i.decode() for i in INCLUDE.findall(text)]

    def key(self, source, options):
        """Names what an object is made of: the source, all that it includes, and the options."""
        digests, names = {}, [source]
        while names:
            name = names.pop()
            if name in digests or self._read(name) is None:
                continue
            digests[name], includes = self._read(name)
            for include in includes:
                names += [include, os.path.normpath(os.path.join(os.path.dirname(name), include))]
        whole = hashlib.sha256(json.dumps([source, options]).encode())
        for name in sorted(digests):
            whole.update(name.encode() + digests[name])
        return whole.hexdigest()

    def cost(self, source):
        """About how long it is compiled: the longest begin first."""
        if source.endswith(".cu"):
            return 3 if source.startswith("bazel-out/") else 2
        return min(1, os.path.getsize(os.path.join(self.path, source)) / 40000)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--libraries", metavar="FILE", help="the archive of pack_sources.py --libraries")
    parser.add_argument("--racecheck", metavar="REGEX",
                        help="also make gpu_racecheck: gpu_all with kernels for racecheck, those whose source matches")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("out")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()
    begin = time.monotonic()
    out = os.path.abspath(options.out)
    os.makedirs(out + "/objects", exist_ok=True)
    if options.libraries:
        with tarfile.open(options.libraries) as archive:
            archive.extractall(out + "/libraries")
    tools = Toolchain(out + "/libraries")
    with open(out + "/env.sh", "w") as file:
        file.write("export LD_LIBRARY_PATH=%s\n" % ":".join(f for f in tools.library_folders if os.path.isdir(f)))

    compilations, links = {}, []
    for folder in options.folders:
        name = os.path.basename(os.path.normpath(folder))
        tree = Tree(folder, "%s/sources/%s" % (out, name))
        programs = dict(tree.links)
        if options.racecheck and "gpu_all" in programs:
            programs["gpu_racecheck"] = programs["gpu_all"]
        os.makedirs("%s/%s" % (out, name), exist_ok=True)
        for program, link in programs.items():
            objects = []
            for item in (tree.by_object[o] for o in link["objects"]):
                source, flags = item["source"], item["options"]
                if program == "gpu_racecheck" and source.endswith(".cu") and re.search(options.racecheck, source):
                    flags = [*flags, "-DREPRISE_EVERY_LANE_ARRIVES"]
                objects.append("%s/objects/%s.o" % (out, tree.key(source, flags)))
                if not os.path.exists(objects[-1]):
                    compilations[objects[-1]] = (tree, source, flags)
            links.append((objects, link["libraries"], "%s/%s/%s" % (out, name, program)))

    def compile_one(output):
        tree, source, flags = compilations[output]
        start = time.monotonic()
        problem = tools.compile(tree.path, source, flags, output + ".part.o")
        if problem is None:
            os.rename(output + ".part.o", output)
        return problem, source, time.monotonic() - start

    def link_one(link):
        return tools.link(*link) if all(os.path.exists(o) for o in link[0]) else "not all of its objects are there"

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        order = sorted(compilations, key=lambda o: -compilations[o][0].cost(compilations[o][1]))
        compiled = list(pool.map(compile_one, order))
        problems = [(source, problem) for problem, source, _ in compiled if problem]
        problems += [(link[2], p) for link, p in zip(links, pool.map(link_one, links)) if p]
    for name, problem in problems:
        print("%s: %s" % (name, problem))
    longest = sorted(((seconds, source) for _, source, seconds in compiled), reverse=True)[:3]
    print("build: %d compiled, %d linked, %d failed, %.0f s; longest: %s" % (
        len(compiled), len(links), len(problems), time.monotonic() - begin,
        ", ".join("%s %.0f s" % (os.path.basename(source), seconds) for seconds, source in longest)))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
