#!/usr/bin/env python3
"""Holds the documentation against the sources. Prints each breach, and ends with 1 if there is one.

  tools/ci/docs.py [--root DIR]

  links      each link of a Markdown page to a file of the project, and to a heading of it, leads somewhere
  code       each block ```cpp of README.md and docs/ is in a source of tests/docs or tests/readme that is
             compiled, between the lines "// [NAME begin]" and "// [NAME end]". A block ```cpp sketch is not
             looked for: it shows code that the reader is to write elsewhere. Indented blocks have no C++
  knobs      docs/tuning.md has each field of the structs that its headings name, with the default of the header
  questions  docs/questions.md has at least ten questions, each with a short answer that links to a heading
  data       each number of docs/data/*.json is in the file that its "numbers_of" names for its field, written alike
  index      docs/README.md links to every page of docs/

Needs Python 3.8 and nothing else.
"""

import argparse
import json
import os
import re
import sys
import textwrap

TUNING = "docs/tuning.md"
QUESTIONS = "docs/questions.md"
INDEX = "docs/README.md"
CODE_FOLDERS = ("tests/docs", "tests/readme")
LEAST_QUESTIONS = 10
MOST_ANSWER_LINES = 4
# Folders without pages of the project.
SKIPPED = {".git", ".gpu", "node_modules", "external"}

_FENCE = re.compile(r"^\s*(```+|~~~+)(.*)$")
_LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\)")
_HTML = re.compile(r"<(?:img|source|a)\b[^>]*?\b(?:src|srcset|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*\s*$")
_FIELD = re.compile(r"^(?P<type>.+?[\s&*>])(?P<name>[a-z]\w*)\s*(?:=\s*(?P<default>.+)|(?P<braces>\{.*\}))?$", re.S)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def find_pages(root):
    """The Markdown pages below root, as paths relative to it."""
    pages = []
    for folder, names, files in os.walk(root):
        names[:] = sorted(n for n in names
                          if n not in SKIPPED and not n.startswith("bazel-") and not os.path.islink(os.path.join(folder, n)))
        pages += [os.path.relpath(os.path.join(folder, f), root) for f in sorted(files) if f.endswith(".md")]
    return sorted(pages)


class Number(str):
    """A number of a JSON file, as it is written."""


class Page:
    """A page: its headings, links and blocks of code."""

    def __init__(self, text):
        self.headings = []  # (line number, level, text)
        self.anchors = set()
        self.links = []  # (line number, target)
        self.blocks = []  # (line number, info, text)
        self.indented = []  # (line number, line) of indented blocks
        self.prose = []  # (line number, line), without blocks of code
        counts = {}
        fence, block = None, None
        in_list, was_blank = False, True
        for number, line in enumerate(text.splitlines(), 1):
            match = _FENCE.match(line)
            if fence is None and match:
                fence, block = match.group(1), (number, match.group(2).strip(), [])
                continue
            if fence is not None:
                if match and match.group(1).startswith(fence) and not match.group(2).strip():
                    self.blocks.append((block[0], block[1], "\n".join(block[2])))
                    fence = None
                else:
                    block[2].append(line)
                continue
            if re.match(r"^\s*([-*+]|\d+\.)\s", line):
                in_list = True
            elif line.strip() and not line.startswith(" "):
                in_list = False
            if line.startswith("    ") and not in_list and (was_blank or self._is_indented):
                self._is_indented = True  # an indented block of code
                self.indented.append((number, line))
                continue
            self._is_indented = False
            was_blank = not line.strip()
            self.prose.append((number, line))
            heading = _HEADING.match(line)
            if heading:
                self.headings.append((number, len(heading.group(1)), heading.group(2)))
                slug = slug_of(heading.group(2))
                count = counts.get(slug, 0)
                counts[slug] = count + 1
                self.anchors.add(f"{slug}-{count}" if count else slug)
            plain = re.sub(r"(`+)(?:(?!\1).)+?\1", "", line)
            self.links += [(number, target) for target in _LINK.findall(plain) + _HTML.findall(plain)]
            self.anchors.update(re.findall(r"<a (?:id|name)=\"([^\"]+)\"", plain))

    _is_indented = False


def slug_of(heading):
    """The anchor that a heading has, as GitHub makes it."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    text = re.sub(r"[^\w\- ]", "", text.strip().lower())
    return text.replace(" ", "-")


def check_links(root, pages):
    breaches = []
    for path, page in pages.items():
        for number, link in page.links:
            if re.match(r"^[a-z][a-z0-9+.-]*:", link):
                continue
            target, _, anchor = link.partition("#")
            where = f"{path}:{number}"
            full = os.path.normpath(os.path.join(os.path.dirname(path), target)) if target else path
            if full.startswith("..") or not os.path.exists(os.path.join(root, full)):
                breaches.append(f"{where}: {link}: there is no {full}")
            elif anchor and full in pages and anchor not in pages[full].anchors:
                breaches.append(f"{where}: {link}: {full} has no heading with the anchor #{anchor}")
            elif anchor and not full.endswith(".md"):
                breaches.append(f"{where}: {link}: an anchor of a file that is no page")
    return breaches


def compiled_snippets(root):
    """The texts between markers in the sources that are compiled."""
    snippets = []
    for folder in CODE_FOLDERS:
        for name in sorted(os.listdir(os.path.join(root, folder))) if os.path.isdir(os.path.join(root, folder)) else []:
            if not name.endswith((".cc", ".h")):
                continue
            text = read(os.path.join(root, folder, name))
            for match in re.finditer(r"^[ \t]*// \[(\w+) begin\]\n(.*?)^[ \t]*// \[\1 end\]$", text, re.M | re.S):
                snippets.append(textwrap.dedent(match.group(2)).strip("\n"))
    return snippets


def check_code(root, pages):
    breaches = []
    snippets = compiled_snippets(root)
    for path, page in pages.items():
        if path != "README.md" and not path.startswith("docs/"):
            continue
        for number, info, text in page.blocks:
            if info == "cpp" and text.strip("\n") not in snippets:
                breaches.append(f"{path}:{number}: the block is not between markers in {' or '.join(CODE_FOLDERS)}")
            elif info.startswith("cpp ") and info != "cpp sketch":
                breaches.append(f"{path}:{number}: '{info}': expected cpp or cpp sketch")
        breaches += [f"{path}:{number}: C++ in an indented block, which nothing compiles: {line.strip()}"
                     for number, line in page.indented if re.search(r"\w.*;\s*(//.*)?$", line)]
    return breaches


def without_comments(text):
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def body_of(text, name):
    """What is between the braces of the struct `name`, or None."""
    match = re.search(rf"\bstruct {name}\s*{{", text)
    if not match:
        return None
    depth, begin = 1, match.end()
    for position in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin:position]
    return None


def without_templates(text):
    """`text` without what is between angle brackets."""
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def statements_of(body):
    """The declarations at the top level of a body; bodies of functions and types are dropped."""
    depth, current, statements = 0, "", []
    for character in body:
        if character == "{":
            depth += 1
        if depth == 0 and character == ";":
            statements.append(current)
            current = ""
            continue
        current += character
        if character == "}":
            depth -= 1
            # The end of a function: no ';' follows, unless the braces initialise a field or end a type.
            head = without_templates(current.split("{")[0])
            if depth == 0 and "(" in head and "=" not in head:
                current = ""
    return [statement.strip() for statement in statements]


def fields_of(body):
    """The fields of a struct as {name: default}, the default as one line, "" if there is none."""
    fields = {}
    for statement in statements_of(without_comments(body)):
        first = statement.split(None, 1)[0] if statement else ""
        if first in ("", "enum", "struct", "class", "using", "friend", "static", "constexpr", "template"):
            continue
        if "(" in without_templates(statement).split("=")[0].split("{")[0]:
            continue
        match = _FIELD.match(statement)
        if match:
            default = match.group("default") or match.group("braces") or ""
            fields[match.group("name")] = " ".join(default.split())
    return fields


def check_tuning(root, pages):
    if TUNING not in pages:
        return [f"there is no {TUNING}"]
    breaches, section, rows, sections = [], None, {}, []
    for number, line in pages[TUNING].prose:
        heading = re.match(r"^#+ `?(\w+)`?, `?([\w/]+\.h)`?\s*$", line)
        if heading:
            section, rows = heading.groups(), {}
            sections.append((number, section, rows))
        elif line.startswith("#"):
            section = None
        elif section:
            # A cell may have an escaped bar.
            row = re.match(r"^\| `(\w+)` \| (.*?) (?<!\\)\| (.*) \|$", line)
            if row:
                rows[row.group(1)] = (number, row.group(2).strip(), row.group(3).strip())
    if not sections:
        return [f"{TUNING}: no heading of the form '## Struct, path/of/header.h'"]
    for number, (name, header), rows in sections:
        where = f"{TUNING}:{number}"
        path = os.path.join(root, header)
        body = body_of(read(path), name) if os.path.exists(path) else None
        if body is None:
            breaches.append(f"{where}: {header} has no struct {name}")
            continue
        fields = fields_of(body)
        for field, default in fields.items():
            if field not in rows:
                breaches.append(f"{where}: {name}::{field} is not on the page")
                continue
            line, said, effect = rows[field]
            # "{}" is the default of a field without an initialiser, too.
            expected = default if default not in ("", "{}") else "{}"
            if said.strip("`") != expected:
                breaches.append(f"{TUNING}:{line}: {name}::{field}: the default is `{expected}`, the page says {said}")
            if not effect:
                breaches.append(f"{TUNING}:{line}: {name}::{field} has no effect on the page")
        for field in rows:
            if field not in fields:
                breaches.append(f"{TUNING}:{rows[field][0]}: {name} has no field {field}")
    return breaches


def check_questions(pages):
    if QUESTIONS not in pages:
        return [f"there is no {QUESTIONS}"]
    page = pages[QUESTIONS]
    questions = [heading for heading in page.headings if heading[1] == 2]
    breaches = []
    if len(questions) < LEAST_QUESTIONS:
        breaches.append(f"{QUESTIONS}: {len(questions)} questions, expected at least {LEAST_QUESTIONS}")
    ends = [heading[0] for heading in page.headings[1:]] + [10**9]
    for begin, _, text in questions:
        end = min(number for number in ends if number > begin)
        lines = [line for number, line in page.prose if begin < number < end and line.strip()]
        links = [link for number, link in page.links if begin < number < end]
        where = f"{QUESTIONS}:{begin}: '{text}'"
        if not text.endswith("?"):
            breaches.append(f"{where} is no question")
        if not 1 <= len(lines) <= MOST_ANSWER_LINES:
            breaches.append(f"{where}: an answer of {len(lines)} lines, expected 1 to {MOST_ANSWER_LINES}")
        if not any("#" in link for link in links):
            breaches.append(f"{where}: no link to a heading")
    return breaches


def check_data(root):
    breaches = []
    folder = os.path.join(root, "docs/data")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        where = f"docs/data/{name}"
        # Numbers stay as they are written.
        data = json.loads(read(os.path.join(folder, name)), parse_float=Number, parse_int=Number)
        sources = data.get("numbers_of", {})
        texts = {field: read(os.path.join(root, path)) for field, path in sources.items()}

        def visit(value, field):
            if isinstance(value, dict):
                for key, inner in value.items():
                    visit(inner, key)
            elif isinstance(value, list):
                for inner in value:
                    visit(inner, field)
            elif isinstance(value, Number) and field in sources:
                if not re.search(rf"(?<![\d.,]){re.escape(value)}(?![\d])(?!\.\d)", texts[field]):
                    breaches.append(f"{where}: {field} {value} is not in {sources[field]}; correct it, and run //docs:drawings")
            elif isinstance(value, Number) and field not in data.get("counts", []):
                breaches.append(f"{where}: {field} is neither among numbers_of nor among counts")

        visit(data, "")
    return breaches


def check_index(pages):
    if INDEX not in pages:
        return [f"there is no {INDEX}"]
    named = {os.path.normpath(os.path.join("docs", link.partition("#")[0])) for _, link in pages[INDEX].links}
    return [f"{INDEX} does not link to {path}"
            for path in pages if path.startswith("docs/") and path != INDEX and path not in named]


def main():
    parser = argparse.ArgumentParser(description="Checks the documentation; see the head of this file.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
    root = os.path.normpath(parser.parse_args().root)
    pages = {path: Page(read(os.path.join(root, path))) for path in find_pages(root)}
    breaches = (check_links(root, pages) + check_code(root, pages) + check_tuning(root, pages) +
                check_questions(pages) + check_data(root) + check_index(pages))
    if breaches:
        print("\n".join(breaches))
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
