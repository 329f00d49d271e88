#!/usr/bin/env python3
"""Writes the drawings and plots of the documentation into docs/pictures.

  bazel run //docs:drawings                 writes them into the workspace
  docs/pictures/draw.py --out DIR           into DIR
  docs/pictures/draw.py --check             writes nothing; names those that are not as they would be drawn

Plots are of the numbers in docs/data. Needs Python 3.8 and nothing else.
"""

import argparse
import decimal
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

import concepts  # noqa: E402
import plots  # noqa: E402

MOST_BYTES = 30 * 1024


def drawings():
    """The text of each file, by its name."""
    drawn = {name: getattr(concepts, name)() for name in ("whole", "paged_batch", "slots_and_refill", "graphs", "cache",
                                                          "scheduling", "speculation")}
    for name in ("steps", "attention"):
        with open(os.path.join(HERE, "../data", name + ".json"), encoding="utf-8") as file:
            drawn[name] = getattr(plots, name)(json.load(file, parse_float=decimal.Decimal))
    return {name + ".svg": drawing.svg() for name, drawing in drawn.items()}


def breaches(files, folder):
    """What differs in `folder` from `files`."""
    found = []
    for name, text in sorted(files.items()):
        if len(text.encode()) > MOST_BYTES:
            found.append(f"{name}: {len(text.encode())} bytes, expected at most {MOST_BYTES}")
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8") as file:
                if file.read() != text:
                    found.append(f"{path} is not what is drawn: bazel run //docs:drawings")
        except OSError:
            found.append(f"there is no {path}: bazel run //docs:drawings")
    known = set(files)
    found += [f"{os.path.join(folder, name)} is drawn by nothing"
              for name in sorted(os.listdir(folder)) if name.endswith(".svg") and name not in known]
    return found


def main():
    parser = argparse.ArgumentParser(description="Draws docs/pictures/*.svg; see the head of this file.")
    parser.add_argument("--out", help="the folder to write to")
    parser.add_argument("--check", action="store_true", help="compare with what is in the folder")
    options = parser.parse_args()
    workspace = os.environ.get("BUILD_WORKSPACE_DIRECTORY")
    folder = options.out or (os.path.join(workspace, "docs/pictures") if workspace else HERE)
    files = drawings()
    if options.check:
        found = breaches(files, folder)
        print("\n".join(found), end="\n" if found else "")
        return int(bool(found))
    os.makedirs(folder, exist_ok=True)
    for name, text in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    print(f"{len(files)} drawings in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
