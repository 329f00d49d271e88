"""Writes composition_tables.cc from Python's copy of the Unicode character database.

    pip install tokenizers==0.23.3
    python3 make_composition_tables.py > composition_tables.cc

What Unicode says of a character that exists never changes. Hugging Face's library has an older database
than Python (Unicode 10, it seems): characters that it does not know are left out, as the same tokens
shall come out.
"""

import sys
import textwrap
import unicodedata

from tokenizers import normalizers

NFC = normalizers.NFC().normalize_str
HANGUL = range(0xAC00, 0xD7A4)  # by arithmetic


def decompositions():
    """(character, first, second or 0, whether the two compose to it again), by character."""
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        parts = unicodedata.decomposition(character)
        if not parts or parts.startswith("<") or code in HANGUL:
            continue
        first, second = ([int(part, 16) for part in parts.split()] + [0])[:2]
        if second and NFC(chr(first) + chr(second)) != unicodedata.normalize("NFC", character):
            continue
        yield code, first, second, unicodedata.normalize("NFC", character) == character


def combining_ranges():
    """(first, last, combining class) of characters that are no starters."""
    ranges = []
    for code in range(sys.maxunicode + 1):
        combining = unicodedata.combining(chr(code))
        # One of the two comes before it, if it is known to be a mark.
        marks = [chr(code) + mark for mark in "\u0345\u0334"]
        if not combining or any(NFC(m) != unicodedata.normalize("NFC", m) for m in marks):
            continue
        if ranges and ranges[-1][1] == code - 1 and ranges[-1][2] == combining:
            ranges[-1][1] = code
        else:
            ranges.append([code, code, combining])
    return ranges


def table(kind, name, rows):
    print("const %s %s[] = {" % (kind, name))
    print(textwrap.fill(" ".join("{%s}," % ",".join(row) for row in rows), 98))
    print("};")
    print("const int kNum%s = %d;\n" % (name[1:], len(rows)))


if __name__ == "__main__":
    print("// Made by make_composition_tables.py from version %s of the Unicode character\n// database, without characters that Hugging Face's tokenizers 0.23 does not know.\n"
          % unicodedata.unidata_version)
    print('#include "examples/tokenizer/composition_tables.h"\n')
    print("namespace reprise {\n\n// clang-format off")
    every = list(decompositions())
    for name, composes in (("kPairs", True), ("kOneWay", False)):
        table("Decomposition", name,
              [["0x%x" % code for code in row[:3]] for row in every if row[3] == composes])
    table("CombiningRange", "kCombining",
          [["0x%x" % first, "0x%x" % last, str(combining)] for first, last, combining in combining_ranges()])
    print("// clang-format on\n\n}  // namespace reprise")
