#!/usr/bin/env python3
"""Looks for public headers that do not say what they are, and for public types and functions without a comment.

  tools/ci/docstrings.py [--root DIR]           prints each breach, and ends with 1 if there is one
  tools/ci/docstrings.py [--root DIR] --list    the public headers: those of tools/install/public_targets.bzl

A header begins with a comment, which is that of its first type and of the one that it is named after. Other
types and functions at the level of the namespace, and public methods, have a comment above them or on one of
their lines; or are in a run of declarations, without an empty line, that begins with one; or the comment at
the head of the file or of their class names them, or all values of an enum. A struct or an enum may be
explained by the comments of its members instead.

Nothing is asked of constructors, destructors, operators, overrides, friends, accessors (const, without
arguments), functions that are defined in up to three lines, functions of x_args.h, which the host and the
device form of a unit share, and names that a hash or a print looks up.

Needs Python 3.8 and nothing else.
"""

import argparse
import ast
import os
import re
import sys

TARGETS = "tools/install/public_targets.bzl"
# Known gaps. To be closed with the next change of each header, as most of the project is compiled anew with it; the
# list may only become shorter: a name that has its comment by now is a breach.
WAITING = {
    "attention/merge/cascade_rule.h": {"ToString"},
    "attention/merge/merge_states_args.h": {"LogBase"},
    "attention/metadata/batch_builder.h": {"KeyStarts"},
    "attention/metadata/batch_rows.h": {"NewColumns", "BlockAt", "TokensOf"},
    "attention/metadata/cross_batch.h": {"CrossRowOf", "WriteCrossRow"},
    "attention/metadata/ragged_gather_args.h": {"RaggedRow"},
    "attention/reference/reference.h": {"ReferenceRaggedAttention"},
    "attention/tile_schedule/tile_schedule_builder.h": {"KeyHull::Add", "WorkCounts", "ItemSpan"},
    "cache/blocks/block_manager.h": {"BlockManager::contains"},
    "cache/blocks/block_pool.h": {"BlockState", "BlockPool::has_content"},
    "cache/prefix/prefix_events.h": {"PrefixEventQueue", "PrefixEventQueue::Push"},
    "cache/prefix/prefix_index.h": {"PrefixIndex::contains"},
    "cache/storage/kv_layout.h": {"KvForm"},
    "engine/request.h": {"TokenLogProbs::Candidate"},
    "graphs/graph_backend.h": {"CapturedGraph"},
    "runner/sampling/logits_params.h": {"LogitBias", "HasPenalties"},
}
# What needs no words: what it does is said by its name everywhere in C++.
# A function that is defined in so few lines shows what it does.
MOST_LINES = 3
EXEMPT = {"AbslHashValue", "AbslStringify", "PrintTo"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def headers_of_rule(call, folder, root):
    """The headers that a rule of a BUILD file names, or those it has by default."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    name = keywords["name"].value
    if isinstance(keywords.get("hdrs"), ast.List):
        names = [element.value for element in keywords["hdrs"].elts]
    else:
        names = [name + ".h", name + "_args.h"]
    return [f"{folder}/{header}" for header in names
            if not header.startswith((":", "//")) and os.path.exists(os.path.join(root, folder, header))]


def public_headers(root):
    """Paths of the headers of the public targets, each once."""
    labels = re.findall(r'^    "//([\w/]*):(\w+)",$', read(os.path.join(root, TARGETS)), re.M)
    headers = []
    for folder in dict.fromkeys(folder for folder, _ in labels):
        rules = {}
        for node in ast.walk(ast.parse(read(os.path.join(root, folder, "BUILD")))):
            if isinstance(node, ast.Call):
                names = [keyword.value for keyword in node.keywords if keyword.arg == "name"]
                if names and isinstance(names[0], ast.Constant):
                    rules[names[0].value] = node
        for name in [name for other, name in labels if other == folder]:
            if name in rules:
                headers += headers_of_rule(rules[name], folder, root)
    return list(dict.fromkeys(headers))


class Lines:
    """A header's lines as code, and which of them have comments."""

    def __init__(self, text):
        self.code = []
        self.is_comment = []  # nothing else is on the line
        self.has_comment = []
        self.comments = []
        in_directive = False
        for line in text.splitlines():
            plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', line)
            code, mark, comment = plain.partition("//")
            if in_directive or code.lstrip().startswith("#"):
                in_directive = code.rstrip().endswith("\\")
                code = ""
            self.code.append(code)
            self.has_comment.append(bool(mark))
            self.is_comment.append(bool(mark) and not code.strip())
            self.comments.append(comment if mark else "")

    def block_above(self, number):
        """The comment that ends on the line before `number` (from 0)."""
        first = number
        while first > 0 and self.is_comment[first - 1]:
            first -= 1
        return " ".join(self.comments[first:number])


class Declaration:

    def __init__(self, text, first, last):
        self.text = " ".join(text.split())
        self.first = first
        self.last = last
        self.body = None  # (first character, end) of a class
        self.is_defined = False  # a function with its body
        self.is_documented = False


def declarations_of(lines, begin, end):
    """The declarations between two places (line, column), without what is in their braces."""
    found, text, first, depth, parens = [], "", None, 0, 0
    body_begin = None
    for number in range(begin[0], end[0] + 1):
        code = lines.code[number]
        columns = range(begin[1] if number == begin[0] else 0, end[1] if number == end[0] else len(code))
        for column in columns:
            character = code[column]
            if first is None and not character.isspace() and character not in "};":
                first = number
            if character == "{":
                if depth == 0:
                    body_begin = (number, column + 1)
                    head = " ".join(text.split())
                    if re.match(r"^(inline )?namespace\b", head) or head.startswith('extern ""'):
                        # The content of a namespace is at this level.
                        text, first, body_begin = "", None, None
                        continue
                depth += 1
            elif character == "}":
                if depth == 0:
                    text, first = "", None  # of a namespace
                    continue
                depth -= 1
                if depth == 0:
                    declaration = Declaration(text, first, number)
                    is_type = re.match(r"^(template ?<.*?> ?)?(class|struct|union|enum)\b", declaration.text)
                    if is_type and "(" not in re.sub(r"alignas\([^)]*\)", "", declaration.text):
                        declaration.body = (body_begin, (number, column))
                        found.append(declaration)
                        text, first = "", None
                    elif "(" in declaration.text and "=" not in re.sub(r"operator\S+", "", declaration.text.split("(")[0]):
                        declaration.is_defined = True
                        found.append(declaration)
                        text, first = "", None
                    continue
            elif character == ";" and depth == 0 and parens == 0:
                if text.strip():
                    found.append(Declaration(text, first, number))
                text, first = "", None
                continue
            if depth == 0:
                parens += {"(": 1, ")": -1}.get(character, 0)
                if re.search(r"\b(public|protected|private)\s*$", text) and character == ":":
                    found.append(Declaration(text.strip(), first, number))
                    text, first = "", None
                else:
                    text += character
        text += " "
    return found


def without_templates(text):
    before = None
    while before != text:
        before, text = text, re.sub(r"<[^<>]*>", "", text)
    return text


def name_of(text):
    """("type" or "function", its name), or None for what needs no comment."""
    plain = re.sub(r"\[\[.*?\]\]|alignas\([^)]*\)", "", without_templates(text)).replace("template ", "", 1)
    match = re.match(r"^\s*(?:class|struct|union|enum(?: class| struct)?)\s+(\w+)", plain)
    if match and "(" not in plain:
        return "type", match.group(1)
    if re.match(r"^\s*(friend|using|typedef|static_assert|extern)\b", plain) or "operator" in plain:
        return None
    if re.search(r"\)\s*(?:const\s*)?(?:override|final)\b|=\s*(?:default|delete)\s*$", plain):
        return None
    if re.search(r"\w\(\s*\)\s*const\s*$", plain):
        return None  # an accessor
    head = plain.split("(")[0]
    if "(" not in plain or "=" in head:
        return None
    match = re.search(r"(~?\w+)\s*$", head)
    return ("function", match.group(1)) if match and not match.group(1).startswith("~") else None


def check_scope(lines, declarations, where, told, owner, breaches):
    """`told`: comments that may name what is declared. `owner`: the class, or ""."""
    access = "private" if owner.startswith("class ") else "public"
    previous, seen_type = None, False
    for declaration in declarations:
        if declaration.text in ("public", "protected", "private"):
            access, previous = declaration.text, None
            continue
        named = name_of(declaration.text)
        is_forward = named and named[0] == "type" and declaration.body is None
        declaration.is_documented = (
            any(lines.has_comment[number] for number in range(declaration.first, declaration.last + 1)
                if named is None or named[0] == "function" or number == declaration.first) or
            lines.block_above(declaration.first) != "" or
            (previous is not None and previous.is_documented and declaration.first <= previous.last + 1))
        previous = declaration
        if named is None or is_forward or access != "public":
            continue
        kind, name = named
        if name in EXEMPT or name == owner.split()[-1:][0] if owner else name in EXEMPT:
            continue
        is_first_type = kind == "type" and not owner and not seen_type
        seen_type = seen_type or kind == "type"
        is_told_by_members = (kind == "type" and not declaration.text.startswith("class ") and
                              any(lines.has_comment[number] for number in range(declaration.first, declaration.last + 1)))
        is_short = (kind == "function" and declaration.is_defined and declaration.last - declaration.first < MOST_LINES)
        is_shared = kind == "function" and where.endswith("_args.h")
        values = re.findall(r"\bk([A-Z]\w*)\b", "\n".join(lines.code[declaration.first:declaration.last + 1]))
        is_enum_told = (declaration.text.startswith("enum") and
                        all(value.lower() in told.lower().replace(" ", "") for value in values))
        is_file_s = kind == "type" and name.lower() == os.path.basename(where)[:-2].replace("_", "")
        is_named = re.search(rf"\b{re.escape(name)}\b", told) is not None
        if not (declaration.is_documented or is_first_type or is_named or is_told_by_members or is_short or is_shared or
                is_enum_told or is_file_s):
            breaches.append(f"{where}:{declaration.first + 1}: {owner.split()[-1] + '::' if owner else ''}{name} has no comment")
        if kind == "type" and declaration.body and not declaration.text.startswith("enum"):
            inner = declarations_of(lines, *declaration.body)
            word = "class" if re.match(r"^(template ?<.*?> ?)?class\b", declaration.text) else "struct"
            check_scope(lines, inner, where, told + " " + lines.block_above(declaration.first), f"{word} {name}", breaches)


def check_header(path, text):
    lines = Lines(text)
    breaches = []
    head = 0
    while head < len(lines.is_comment) and lines.is_comment[head]:
        head += 1
    opening = " ".join(lines.comments[:head])
    if len(opening.split()) < 5:
        breaches.append(f"{path}: the header does not begin with a comment that says what it is")
    if lines.code:
        last = len(lines.code) - 1
        check_scope(lines, declarations_of(lines, (head, 0), (last, len(lines.code[last]))), path, opening, "", breaches)
    return breaches


def main():
    parser = argparse.ArgumentParser(description="Looks for what lacks a comment; see the head of this file.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
    parser.add_argument("--list", action="store_true", help="print the public headers")
    options = parser.parse_args()
    root = os.path.normpath(options.root)
    headers = public_headers(root)
    if options.list:
        print("\n".join(headers))
        return 0
    waiting = WAITING if os.path.realpath(root) == os.path.realpath(os.path.join(os.path.dirname(__file__), "../..")) else {}
    breaches = []
    for header in headers:
        found = check_header(header, read(os.path.join(root, header)))
        missing = {breach.split(": ")[1].split(" ")[0] for breach in found}
        breaches += [breach for breach in found if breach.split(": ")[1].split(" ")[0] not in waiting.get(header, set())]
        breaches += [f"{header}: {name} has its comment: take it out of WAITING in tools/ci/docstrings.py"
                     for name in sorted(waiting.get(header, set()) - missing)]
    if breaches:
        print("\n".join(breaches))
    return int(bool(breaches))


if __name__ == "__main__":
    sys.exit(main())
