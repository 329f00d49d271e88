#!/usr/bin/env python3
"""Headers as Doxygen reads them: their plain comments become documentation.

  docs/doxygen/filter.py --out DIR HEADER...     writes each to the same path below DIR

  // at the head of the file        of the file, and of the type that the file is named after, or its first one
  // above a declaration            of the declaration
  // behind a declaration           of the declaration
  lines indented by two or more     as they are: code, tables

Comments within functions, and those that divide a class ("// ---- State."), stay what they are. Needs
Python 3.8 and nothing else.
"""

import argparse
import os
import re

_TYPE = re.compile(r"^(?:template <.*> )?(?:class|struct|enum class|enum)\s+(\w+)\b[^;]*$")
_DIVIDER = re.compile(r"^//\s*-{3,}")


def plain(text, is_code=False):
    """`text` so that nothing in it is a command, and in code no request for a link."""
    if is_code:
        return re.sub(r"([\\@<>&#%]|::)", r"\\\1", text)
    return re.sub(r"([\\@<>&#%])", r"\\\1", text)


def escaped(text):
    """As plain(); what is in backquotes becomes code."""
    parts = text.split("`")
    return "".join(f"<tt>{plain(part)}</tt>" if i % 2 and i + 1 < len(parts) else "`" * (i % 2) + plain(part)
                   for i, part in enumerate(parts))


def documented(lines, indent="", mark="///"):
    """Lines of a comment, without their slashes, as lines of documentation."""
    result, block = [], []

    def end_block():
        blank = []
        while block and not block[-1].strip():
            blank.append(block.pop())
        if block:
            least = min(len(line) - len(line.lstrip()) for line in block if line.strip())
            result.extend([f"{indent}{mark} <pre>"] +
                          [f"{indent}{mark} {plain(line[least:], is_code=True)}".rstrip() for line in block] +
                          [f"{indent}{mark} </pre>"])
        result.extend([f"{indent}{mark}"] * len(blank))
        block.clear()

    after_blank = True
    for line in lines:
        is_indented = line.startswith("   ") and line.strip()
        # An indented line is a block's only behind an empty one; else it goes on with a list.
        if is_indented and (block or after_blank):
            block.append(line)
        elif block and not line.strip():
            block.append("")
        else:
            end_block()
            # Each entry of a list begins a line.
            line_break = "<br>" if re.match(r"\s*(\d+\.|-)\s", line) else ""
            result.append(f"{indent}{mark} {line_break}{escaped(line.strip())}".rstrip())
        after_blank = not line.strip()
    end_block()
    return result


class Braces:
    """Whether a place of a header is within a function."""

    def __init__(self):
        self._stack = []
        self._text = ""

    def in_function(self):
        return "function" in self._stack

    def read(self, code):
        for character in code:
            if character == "{":
                head = re.sub(r"<[^<>]*>|alignas\([^)]*\)", "", self._text)
                is_type = re.search(r"\b(class|struct|union|enum|namespace)\b[^()=]*$", head)
                self._stack.append("scope" if is_type else "function" if "(" in head else "value")
                self._text = ""
            elif character == "}":
                if self._stack:
                    self._stack.pop()
                self._text = ""
            elif character == ";":
                self._text = ""
            else:
                self._text += character
        self._text += " "


def filtered(path, text):
    lines = text.splitlines()
    head = 0
    while head < len(lines) and lines[head].startswith("//"):
        head += 1
    opening = [line[2:] for line in lines[:head]]
    own_name = os.path.basename(path).rsplit(".", 1)[0].replace("_", "").lower()
    types = [(number, match.group(1)) for number, line in enumerate(lines) for match in [_TYPE.match(line)] if match]
    named = [number for number, name in types if name.lower() == own_name]
    told = named[0] if named else types[0][0] if types else None
    result = ["/// @file"] + documented(opening) if opening else ["/// @file"]
    braces, trailing, pending = Braces(), None, []

    def end_pending():
        if pending:
            result.extend(documented([line for _, line in pending], pending[0][0]))
            pending.clear()

    for number in range(head, len(lines)):
        line = lines[number]
        plain = re.sub(r'"(?:[^"\\]|\\.)*"', lambda match: '"' + "_" * (len(match.group()) - 2) + '"', line)
        column = plain.find("//")
        code = line if column < 0 else line[:column]
        if column >= 0 and not code.strip():
            if trailing == column:
                result.append(f"{code}///< {escaped(line[column + 2:].strip())}")
            elif braces.in_function() or _DIVIDER.match(line.strip()):
                end_pending()
                result.append(line)
            else:
                pending.append((code, line[column + 2:]))
            continue
        if number == told and not pending and opening:
            result.extend(documented(opening))
        end_pending()
        was_in_function = braces.in_function()
        braces.read(re.sub(r"//.*", "", plain))
        trailing = None
        if column >= 0 and not was_in_function and not braces.in_function() and not code.strip().startswith(("}", "#")):
            trailing = column
            result.append(f"{code}///< {escaped(line[column + 2:].strip())}")
        else:
            result.append(line)
    end_pending()
    return "\n".join(result) + "\n"


def main():
    parser = argparse.ArgumentParser(description="Makes documentation of comments; see the head of this file.")
    parser.add_argument("--out", required=True)
    parser.add_argument("headers", nargs="+")
    options = parser.parse_args()
    for header in options.headers:
        path = os.path.join(options.out, header)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(header, encoding="utf-8") as source, open(path, "w", encoding="utf-8") as target:
            target.write(filtered(header, source.read()))


if __name__ == "__main__":
    main()
