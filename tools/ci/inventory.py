#!/usr/bin/env python3
"""Prints an inventory of the project, sorted, one line per item. `tools/ci/inventory.sh` compares two of them.

    tools/ci/inventory.py [--root DIR]

Each line begins with a kind:

    class, struct, enum NAME     a type of a public header (tools/install/public_targets.bzl), nested ones as A::B
    value E::kA                  an enumerator
    function F, method C::F      overloads share a line; constructors and operators have none
    field S::x, constant K, alias A, macro M
    option S::x = DEFAULT        a field of a struct whose name ends in Options, Policy, Limits, Costs or Arguments,
                                 of any header but those of tests
    flag --NAME: HELP            of examples/decode
    error CODE: TEXT             the literals of an absl::CODEError(...), with {} for each expression between them
    argument NAME                an argument that a call of a Check...() or Refuse...() names; if the call has more
                                 text, also error check: TEXT
    feature ROW: WORDS           a row of docs/features.txt, and each of its cells that claims something
    test SUITE.CASE              of TEST, TEST_F, TEST_P and TYPED_TEST; instance PREFIX/SUITE: of INSTANTIATE_...
    script //FOLDER:NAME         an sh_test

Lines contain no paths, so moving code does not change them. Needs Python 3.8 and nothing else.
"""

import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
import docs  # noqa: E402
import docstrings  # noqa: E402
import features  # noqa: E402

OPTION_STRUCT = re.compile(r"^ *struct (\w*(?:Options|Policy|Limits|Costs|Arguments)) {", re.M)
ERROR_CALL = re.compile(r"\babsl::(\w+)Error\(")
CHECK_CALL = re.compile(r"\b(?:Check|Refuse)[A-Za-z]*\(")
# A call, or an element of a table, that begins with the name of a flag.
FLAG = re.compile(r'[({]\s*"([a-z][a-z0-9_]+)",')
TOKEN = re.compile(r'R"(?P<mark>\w*)\((?P<raw>.*?)\)(?P=mark)"|"(?P<text>(?:[^"\\\n]|\\.)*)"|//[^\n]*|/\*.*?\*/'
                   r"|'(?:[^'\\]|\\.)+'|(?P<open>[({\[])|(?P<close>[)}\]])|(?P<code>[^\"'/(){}\[\]]+|.)", re.S)
# Names in a message's expression that stand for no part of the message.
NO_PART = re.compile(r"\b(?:absl::(?:StrCat|StrFormat|string_view)|std::(?:string|string_view)|R)\b")


def call_tokens(text, begin):
    """Yields (is_literal, text) of the tokens between the bracket at `begin` and its closing bracket."""
    depth = 0
    for match in TOKEN.finditer(text, begin):
        if match.lastgroup == "open":
            depth += 1
        elif match.lastgroup == "close":
            depth -= 1
            if depth == 0:
                return
        elif match.lastgroup in ("text", "raw"):
            yield True, match.group(match.lastgroup)
        elif match.lastgroup == "code":
            yield False, match.group()


def message_of(tokens):
    """The literals as one text, with {} for each expression between them; "" without a literal."""
    message, gap, has_literal = "", "", False
    for is_literal, text in [*tokens, (True, "")]:
        if not is_literal:
            gap += text
            continue
        if re.search(r"\w", NO_PART.sub("", gap)):
            message += "{}"
        message, gap, has_literal = message + text, "", has_literal or text != ""
    return message if has_literal else ""


def literals_of(tokens):
    """The literals; adjacent literals are joined, as the compiler joins them."""
    literals, is_joined = [], False
    for is_literal, part in tokens:
        if is_literal and is_joined:
            literals[-1] += part
        elif is_literal:
            literals.append(part)
        is_joined = is_literal or (is_joined and not part.strip())
    return literals


# ---- Headers.


def name_of_field(text):
    """The name of a variable's declaration, or None."""
    head = re.split(r"[={\[]|(?<!:):(?!:)", docstrings.without_templates(text))[0]
    match = re.search(r"\w[\s&*>]+(\w+)\s*$", head)
    return match.group(1) if match and "(" not in head else None


def lines_of_type(lines, declaration, kind, name):
    """The lines of a class, struct or enum and of its public members; none for a forward declaration."""
    found = [f"{kind} {name}"]
    if declaration.body is None:
        return []
    if kind == "enum":
        (first, column), (last, end) = declaration.body
        code = list(lines.code[first:last + 1])
        code[-1] = code[-1][:end]
        code[0] = code[0][column:]
        values = re.sub(r"=[^,]*", "", "\n".join(code)).split(",")
        return found + [f"value {name}::{value.strip()}" for value in values if value.strip()]
    return found + lines_of_scope(lines, docstrings.declarations_of(lines, *declaration.body), name,
                                  is_public=kind != "class")


def lines_of_scope(lines, declarations, owner, is_public):
    found, prefix = [], owner + "::" if owner else ""
    for declaration in declarations:
        text = re.sub(r"(\[\[.*?\]\]|alignas\([^)]*\)) ?", "", declaration.text)
        if text in ("public", "protected", "private"):
            is_public = text == "public"
        plain = re.sub(r"^(template ?)+", "", docstrings.without_templates(text)).strip()
        if not is_public or re.match(r"(friend|static_assert|extern|typedef)\b", plain) or "operator" in plain:
            continue
        named = re.match(r"(class|struct|enum)(?: class| struct)? (\w+)(?!.*\()", plain)
        function = re.search(r"(~?\w+)\s*$", plain.split("(")[0]) if "(" in plain else None
        if named:
            found += lines_of_type(lines, declaration, named.group(1), prefix + named.group(2))
        elif plain.startswith("using ") and "=" in plain:
            found.append(f"alias {prefix}{plain.split()[1]}")
        elif function and "=" not in plain.split("(")[0]:
            name = function.group(1)
            if not name.startswith("~") and name != owner.rpartition("::")[2]:
                found.append(f"{'method' if owner else 'function'} {prefix}{name}")
        elif name_of_field(text):
            found.append(f"{'field' if owner else 'constant'} {prefix}{name_of_field(text)}")
    return found


def lines_of_header(text):
    lines = docstrings.Lines(text)
    if not lines.code:
        return []
    last = len(lines.code) - 1
    scope = docstrings.declarations_of(lines, (0, 0), (last, len(lines.code[last])))
    # A name that ends in "_" is an include guard or of the implementation.
    macros = re.findall(r"^#define (\w*[^\W_])\b", text, re.M)
    return lines_of_scope(lines, scope, "", is_public=True) + [f"macro {name}" for name in macros]


def lines_of_options(text):
    text = re.sub(r"\balignas\([^)]*\) ", "", text)
    return [f"option {name}::{field} = {default or '{}'}"
            for name in OPTION_STRUCT.findall(text)
            for field, default in docs.fields_of(docs.body_of(text, name) or "").items()]


# ---- Sources.


def lines_of_errors(text):
    found = []
    for match in ERROR_CALL.finditer(text):
        message = message_of(call_tokens(text, match.end() - 1))
        if message:
            found.append(f"error {match.group(1)}: {message}")
    for match in CHECK_CALL.finditer(text):
        literals = literals_of(call_tokens(text, match.end() - 1))
        found += [f"argument {part}" for part in literals if re.fullmatch(r"[\w.\[\]-]*[A-Za-z][\w.\[\]-]*", part)]
        if any(" " in part for part in literals):
            found.append(f"error check: {' | '.join(literals)}")
    return found


def lines_of_flags(text):
    found = []
    for match in FLAG.finditer(text):
        help_text = max(literals_of(call_tokens(text, match.start())), key=len)
        if " " in help_text:
            found.append(f"flag --{match.group(1)}: {help_text}")
    return found


def lines_of_tests(text):
    return ([f"test {suite}.{case}" for _, suite, case in features._CASE.findall(text)] +
            [f"instance {prefix}/{suite}" for _, prefix, suite in features._INSTANCE.findall(text)])


def lines_of_features(text):
    found = []
    for section in features.read_features(text)[1]:
        for row in section.rows:
            found.append(f"feature {row.name}: {row.feature}")
            found += [f"feature {row.name} {cell}: {row.texts[cell]}" for cell in features.CELLS if row.claims(cell)]
    return found


def sources(root):
    """Paths of all C++ and CUDA files."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith((".", "bazel-"))]
        for name in names:
            if name.endswith((".h", ".cuh", ".cc", ".cu")):
                yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def is_of_tests(path):
    return path.startswith("tests/") or "/testing/" in path or re.search(r"_(test|suite)\.\w+$", path)


def inventory(root):
    """All lines of the project in the folder `root`."""
    found = set()
    for path in docstrings.public_headers(root):
        found.update(lines_of_header(docstrings.read(os.path.join(root, path))))
    for path in sources(root):
        text = docstrings.read(os.path.join(root, path))
        found.update(lines_of_tests(text))
        if is_of_tests(path):
            continue
        found.update(lines_of_errors(text))
        if path.endswith(".h"):
            found.update(lines_of_options(text))
        if path.startswith("examples/decode/") and "flags" in os.path.basename(path):
            found.update(lines_of_flags(text))
    path = os.path.join(root, features.DATA)
    if os.path.exists(path):
        found.update(lines_of_features(docstrings.read(path)))
    found.update(f"script {label}" for label, target in features.read_targets(root).items()
                 if target.rule == "sh_test")
    return sorted(found)


def main():
    parser = argparse.ArgumentParser(description="Prints an inventory of the project; see the head of this file.")
    parser.add_argument("--root", default=os.path.join(os.path.dirname(os.path.realpath(__file__)), "../.."))
    print("\n".join(inventory(os.path.normpath(parser.parse_args().root))))


if __name__ == "__main__":
    main()
