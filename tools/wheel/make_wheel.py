"""Makes the wheel reprise-ops: the operators' library, what it links of this system, a loader and types.

    make_wheel.py --library libreprise_ops.so --version 0.1.0 --requirements requirements.txt --out WHEEL FILE...

FILE... are those of the Python package. PyTorch and the C and C++ runtimes are the target's; other libraries
are copied into the wheel, as a system that has no Abseil could not load the operators otherwise.
"""

import argparse
import base64
import hashlib
import os
import re
import subprocess
import zipfile

# Libraries that are not copied: of the C and C++ runtimes, of PyTorch and of what it brings, and those that
# Python itself may load later, whose place a copy would take.
NOT_COPIED = re.compile(
    r"lib(c|m|dl|rt|util|pthread|gcc_s|stdc\+\+|gomp|lzma|z|torch|torch_cpu|torch_cuda|c10|c10_cuda|cudart|cublas|"
    r"cublasLt|cupti)\.so|ld-linux|linux-vdso")


def needed(path):
    """The libraries that a library names, in its own order."""
    dynamic = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
    return re.findall(r"^\s*NEEDED\s+(\S+)", dynamic, re.MULTILINE)


def libraries_of(library):
    """The libraries to copy, by name, each after those that it needs."""
    resolved = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
    paths = dict(re.findall(r"^\s*(\S+) => (/\S+)", resolved, re.MULTILINE))
    ordered = {}

    def add(name):
        if name in ordered or NOT_COPIED.match(name):
            return
        if name not in paths:
            raise SystemExit(f"make_wheel.py: {library} needs {name}, which ldd does not find")
        for other in needed(paths[name]):
            add(other)
        ordered[name] = paths[name]

    for name in needed(library):
        add(name)
    return ordered


def torch_version(requirements):
    with open(requirements) as file:
        return re.search(r"^torch==(\S+)$", file.read(), re.MULTILINE).group(1)


def main():
    parser = argparse.ArgumentParser()
    for name in ["library", "version", "requirements", "out"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("files", nargs="+")
    arguments = parser.parse_args()

    libraries = libraries_of(arguments.library)
    torch = torch_version(arguments.requirements)
    info = f"reprise_ops-{arguments.version}.dist-info"
    contents = {f"reprise_ops/{os.path.basename(path)}": open(path, "rb").read() for path in arguments.files}
    contents["reprise_ops/libreprise_ops.so"] = open(arguments.library, "rb").read()
    for name, path in libraries.items():
        contents[f"reprise_ops/{name}"] = open(path, "rb").read()
    contents["reprise_ops/_build.py"] = (
        f'"""Of the build that made this wheel."""\n\n__version__ = "{arguments.version}"\n'
        f'TORCH_VERSION = "{torch}"\nLIBRARIES = {list(libraries)!r}\n').encode()
    contents[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: reprise-ops\nVersion: {arguments.version}\n"
        "Summary: Paged attention for PyTorch: operators of Reprise\nLicense: Apache-2.0\n"
        f"Requires-Python: >=3.10\nRequires-Dist: torch=={'.'.join(torch.split('.')[:2])}.*\n").encode()
    contents[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: make_wheel.py\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
    record = ""
    for name, data in contents.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    contents[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()

    with zipfile.ZipFile(arguments.out, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in contents.items():
            # Dates as of 1980, so that equal contents are equal files.
            wheel.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data, zipfile.ZIP_DEFLATED)


if __name__ == "__main__":
    main()
