#!/usr/bin/env python3
"""Reports sentences that are not plain technical English. CONTRIBUTING.md has the rules in short.

  prose_lint.py                      every tracked file under the current folder
  prose_lint.py FILE...              these files
  prose_lint.py --base REV           only sentences on lines added since REV (after git add -N for new files)
  prose_lint.py --base REV1..REV2    only sentences on lines that REV2 added to REV1
  prose_lint.py --sample N --seed S  N random sentences as tab-separated values, to be judged by hand
  prose_lint.py --limit FILE         prints one line and ends with 1 if the share of flagged sentences exceeds FILE's number

It reads comments, string literals, test names and Markdown. A sentence scores the sum of the weights of the rules it
matches; at the threshold it is flagged. Output: FILE:LINE: [SCORE RULES] SENTENCE, then flagged / total for each folder.
A match is a hint, not proof: without --limit the exit status is 0. The number in FILE is a percentage. It falls with
each commit that rewrites prose, and never rises. Requires Python 3.8 and git.
"""

import argparse
import bisect
import collections
import os
import random
import re
import subprocess
import sys

# (rule, weight, pattern). A rule counts once per sentence; where a rule has two weights, the heavier one is the later.
# Sentences are lower-cased first, and quoted text and code in backticks are replaced by "x".
RULES = [(name, weight, re.compile(pattern)) for name, weight, pattern in [
    # Sentences without a subject.
    ("of-start", 3, r"(^|^\S+[:,] |; )of (?!course|note)"), ("what-start", 3, r"^what (?!if|about|to do|happens|was).*[^?]$"),
    ("not-start", 3, r"^(nor\b|not (where|so|if|of|with|by|in|here|what|that)\b)"),
    ("relative-start", 1, r"^(which|whose|whom|who|those|that of)\b"), ("same-start", 2, r"^the same(,| (without|over|on|of|as|but)\b)"),
    # Pronouns and genitives in place of nouns.
    ("that-of", 2, r"(?<!^errors: )\b(that|those) of\b(?! course)"),
    ("that-of", 3, r"(?<!^errors: )\b(is|are|was|were|be|as|and|or|than) (that|those) of\b"),
    ("own", 2, r"\bown\b(?=[.,;:)]|$)"), ("own", 3, r"\bof ((its|their|one's|his|my|our|your) own|yours|ours|theirs)\b"),
    ("or-of", 2, r"\b(or|and|but|not|than|also|only|both) of (the|a|an|its|their|each|all|those|one|many|few)\b"),
    ("possessive", 2, r"(?<!it)(?<!(?:th|wh)at)(?<!let)(?<!here)('s|s')(?=[.,;:)]|$| (and|or|are|is|has|do|does|was|in|on|too)\b)"),
    ("no-noun-end", 1, r"\b(of|to|in|for|with|by|than|on|before|after) (one|those|them|it|these|any|none|all|both|each)[.;]?$"),
    ("prep-end", 1, r"\b(of|with|for|from|to|by|on|at|behind|before|after|over)[.;]$"), ("ones", 1, r"(?<!which) ones\b"),
    ("others", 1, r"\b(the|all|any|no|by|to|than|like|of|for) others\b"), ("of-chain", 2, r"\bof (\S+ ){1,3}of (\S+ ){1,3}of\b"),
    ("the-one", 1, r"\b(the|a|each|every|any|last|next|short|long|such|that|second|empty|plain|older|newer|this) one\b(?! (of|more))"),
    # Clauses in place of nouns.
    ("of-which", 2, r"\bof (which|whose|whom)\b|\bwhose\b.*\bwhose\b"),
    ("by-which", 1, r"\b(in|with|by|from|for|at|to|on|under|before|after|until) (which|whose|whom|when)\b"),
    ("of-what", 2, r"\b(of|from|with|than|for|at|to|in|are|over|but|on|by|refuses?|leaves?|keeps?|gives?|takes?|ha[sd]|have|finds?|holds?)"
                   r" what\b(?!'s| (was|is) (expected|got))|\bwhat else\b"),
    ("whatever", 2, r"\b(whatever|whichever) (the|its|their|it|they|is|else|others|wait)\b"),
    ("relative-chain", 1, r"(\b(that|which|whose|who|what)\b.*){3}"), ("long", 1, r"^(\S+\s+){40}"),
    # Quantities without a noun.
    ("so-many", 2, r"\bas (many|few|much) \S+ as\b|\bmany as\b|\bas far as\b"),
    ("so-many", 3, r"\bso (many|few)\b(?! as)|\b(of|as) (many|few)\b(?!( \S+)? (as|of)\b)|\bthat many\b"),
    ("the-most", 3, r"\bthe (most|fewest|least) (?!\w+(ss|ous)\b)(\w+-)?[a-z]+s\b(?! (recent|likely))"),
    ("none", 2, r"\b(is|are|be|has|had|have|gives?) none\b|\bnone (is|are|has|have|does|do|can|may|at)\b|\bnothing (of|comes|goes|that)\b"),
    ("a-for-per", 2, r"(?<!of )(?<!in )\b([\d.,]+ \S+|\d+|one|twice|times|object|line|entry|row|us|ms) an? (token|row|step|layer|sequence"
                     r"|block|call|cta|thread|prompt|launch|rank|column|query|head|slot|page|element|warp|request|draft|batch|group|op)\b"),
    ("unit-of", 2, r"\b(of|types of) \d+(, \d+)* (and|or) (of )?\d+\b|\bof \d+ bits\b"),
    # Words.
    ("archaic", 3, r"\b(besides?|alike|anew|hardly|scarcely|as ever|in vain|speaks? of|ha(s|ve) got|(no|any|some|every)body|whoever)\b"
                   r"|^likewise|likewise[.;]?$|\b(of|for|with|and|to|are|is|by|over|two|from|between|in) unlike\b|^expected that\b"),
    ("is-of", 3, r"\b(is|are|was|were|be) of (?!course|type|length|size|interest|no\b|use\b|the (form|type|same))"),
    ("there", 2, r"\b(is|are|be|was|were) there\b(?!\?| (any|an?)\b)"), ("other-than", 3, r"\b(another|others?) (\S+ ){1,3}than\b"),
    ("come", 3, r"\b((have|has|had|must) come|goes? (on|out)|(must be|is|are) gone)\b(?! (by|from))"),
    ("told", 3, r"\b(brings|brought|told|knew|tells? (?!if|whether|us|you))\b(?! up\b)"),
    ("sees", 1, r"\b(sees?|looks?|(?<!not )knows?|asks?|says?|said)\b(?! (up|if|also|below|above|the comment))"),
    ("stands", 2, r"\b(stands?|stood|lies|lay)\b(?! (for|alone|in for|out|within)\b)"),
    ("behind", 2, r"\bbehind\b(?! the scenes)"), ("alone", 1, r"\balone\b|\bat once\b|\bmeanwhile\b|, too\b"),
    ("in-place-of", 2, r"\bin place of\b|\b(in|takes?|took) (its|their|the) places?( of)?\b"),
    ("own-word", 1, r"\b(of|in|by|with|from|for) (pieces|turns|looks|shares|columns|places)\b|\b(whole|apart)[.;]?$"
                    r"|\b(same|other|its|the) bits\b"),
    # Order of words.
    ("where-if", 1, r"\bwhere (there|they|it|no|a|an|the|all|each|one|this|that|its)\b(?! (is|are) )"),
    ("where-if", 2, r"^where (?!to\b)[^?]*,"), ("else", 1, r"[,;] (or )?else\b|\belse (it|they|the|a|one|at|in)\b"),
    ("as-because", 1, r", as (it|they|there|those|these|its|their|no|each|all|nothing|none|the|a|in|if)\b"),
    ("as-they-are", 2, r"(?<!soon |long )\bas (it|they|\w+s) (is|are|was|were|does|do)\b(?! (not|used|called|defined|needed|read))"),
    ("from-on", 2, r"\bfrom (?!(now|then|here|there) on\b)(\S+ ){1,4}on(?=[,.:;)]| (in|are|is|be|by)\b|$)"),
    ("aux-end", 2, r"\b(than|as|that|what|none|they|it|others|which|\w+s) (does|do|has|have|had|are|would|may|can|were)( not)?[.;]?$"),
]]
TOKEN = re.compile(
    r"""(?P<line>//[^\n]*)|(?P<block>/\*.*?\*/)|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|(?P<text>"(?:\\.|[^"\\\n])*")"""
    r"""|'(?:\\.|[^'\\\n])'|\b\d[\w']*|^[ \t]*\#[ \t]*include[^\n]*"""
    r"""|\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\(\s*\w+,\s*(?P<test>\w+)\s*\)""", re.S | re.M)
SPLIT = re.compile(r"""(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)(?<=[.!?])["')\]]*\s+(?=[A-Z0-9`"'(\[])""")
CAMEL = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
WORD = re.compile(r"(?<![\w/.:%])[A-Za-z][a-z'-]*(?![\w/])")


def paragraphs(lines):
    """[(number, text without comment marker)] -> [("comment", [(number, text)])], without code, drawings, blank lines."""
    done, current, item = [], [], 0
    for number, text in lines:
        body, indent = text.strip(), len(text) - len(text.lstrip())
        marker = re.match(r"(?:[-*+]|\d+\.)\s+", body)
        is_code = indent > 2 and not marker and not (item and current)
        if not body or marker or is_code or (item and indent < item):
            done.append(("comment", current))
            current, item = [], 0
        if marker:
            item, body = indent + 1, body[marker.end():]
        if WORD.search(body) and not is_code:
            current.append((number, body))
    return [part for part in done + [("comment", current)] if part[1]]


def comment_parts(comments):
    """[(line, column, alone on its line, text)]: joins the lines of each comment."""
    block = []
    for comment in comments + [(0, 0, False, "")]:
        if block and (not comment[2] or comment[:2] != (block[-1][0] + 1, block[-1][1])):
            yield from paragraphs([(line, text) for line, _, _, text in block])
            block = []
        block.append(comment)


def cpp_parts(text):
    starts = [0] + [match.end() for match in re.finditer("\n", text)]
    comments, literal, end = [], [], 0
    for match in TOKEN.finditer(text):
        line = bisect.bisect_right(starts, match.start())
        begin, kind = starts[line - 1], match.lastgroup
        if literal and (kind != "text" or text[end:match.start()].strip()):
            yield "string", literal
            literal = []
        if kind == "line":
            before = text[begin:match.start()]
            comments.append((line, len(before), not before.strip(), match.group()[2:].lstrip("/!")))
        elif kind == "block":
            body = enumerate(match.group()[2:-2].split("\n"), line)
            yield from paragraphs([(number, re.sub(r"^\s*\* ?", "", text_line)) for number, text_line in body])
        elif kind == "text":
            literal.append((line, re.sub(r"\\[nt]", " ", match.group()[1:-1])))
            end = match.end()
        elif kind == "test":
            yield "test", [(line, " ".join(CAMEL.findall(match.group("test"))))]
    if literal:
        yield "string", literal
    yield from comment_parts(comments)


def hash_parts(text):
    comments = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"(\s*)#(?!!)(.*)$", line) or re.match(r"(.*\S\s{2,})# (.*)$", line)
        if match:
            comments.append((number, len(match.group(1)), not match.group(1).strip(), match.group(2)))
    yield from comment_parts(comments)
    for match in re.finditer(r'"""(.*?)"""', text, re.S):
        body = enumerate(match.group(1).split("\n"), text.count("\n", 0, match.start()) + 1)
        yield from paragraphs([(number, re.sub(r"^    ", "", line)) for number, line in body])


def markdown_parts(text):
    is_fenced, current = False, []
    for number, line in enumerate(text.split("\n") + [""], 1):
        body = line.strip()
        marker = re.match(r"(?:[-*+]|\d+\.|#+|>)\s+", body)
        is_fence, is_cell = body.startswith("```"), body.startswith("|")
        is_fenced ^= is_fence
        is_code = is_fenced or is_fence or (line.startswith("    ") and not current)
        if current and (not body or marker or is_cell or is_code or current[0][1].startswith("#")):
            yield "markdown", current
            current = []
        if is_cell and not is_fenced:
            yield from (("markdown", [(number, cell.strip())]) for cell in body.strip("|").split("|"))
        elif body and not is_code:
            current.append((number, body[marker.end():] if marker and body[0] != "#" else body))


def sentences(path, text):
    """Yields (first line, last line, kind, sentence)."""
    parts = (cpp_parts(text) if re.search(r"\.(h|cc|cu|cuh|inc)$", path) else markdown_parts(text) if path.endswith(".md") else
             hash_parts(text) if re.search(r"\.(py|sh|bzl|bazelrc)$|\b(BUILD|WORKSPACE)(\.bazel)?$", path) else [])
    for kind, lines in parts:
        joined, offsets, begin = "", [], 0
        for _, body in lines:
            offsets.append(len(joined))
            joined += body + ("" if kind == "string" else " ")
        for end in [match.start() for match in SPLIT.finditer(joined)] + [len(joined)]:
            first, last = (lines[bisect.bisect_right(offsets, at) - 1][0] for at in (begin and begin + 1, max(end - 1, 0)))
            sentence, begin = joined[begin:end].strip(" \"')]#"), end
            if kind == "markdown":
                sentence = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", sentence).replace("**", "")
            is_prose = len(WORD.findall(re.sub(r"`[^`]*`", " ", sentence))) >= (3 if kind == "test" else 4)
            if is_prose and not (kind == "string" and re.search(r"%\d|[{};]|\\|=.*=", sentence)):  # assembly, JSON, formats
                yield first, last, kind, sentence


def score(sentence, kind):
    """Returns (score, names of the rules that match). Short sentences score 1 more, test names 2: they have less context."""
    plain = re.sub(r"`[^`]*`|\"[^\"]*\"", "x", sentence).lower()
    found = {name: weight for name, weight, pattern in RULES if pattern.search(plain)}
    bonus = 2 if kind == "test" and found.keys() - {"ones", "the-one"} else int(len(sentence.split()) <= 12)
    return sum(found.values()) + bonus * bool(found), ",".join(found)


def git(*arguments):
    return subprocess.run(("git",) + arguments, stdout=subprocess.PIPE, check=True).stdout.decode("utf8", "replace")


def added_lines(base, files):
    """{file: numbers of the lines added since `base`}."""
    added, path = collections.defaultdict(set), ""
    for line in git("diff", "-U0", "--no-color", "--no-ext-diff", "--dst-prefix=b/", "--relative", base, "--", *files).split("\n"):
        hunk = re.match(r"@@ -\S+ \+(\d+)(?:,(\d+))? @@", line)
        if line.startswith("+++ b/"):
            path = line[6:]
        elif hunk:
            added[path].update(range(int(hunk.group(1)), int(hunk.group(1)) + int(hunk.group(2) or 1)))
    return added


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--base")
    parser.add_argument("--limit", metavar="FILE")
    for flag, default in ("--max", 10), ("--threshold", 3), ("--sample", 0), ("--seed", 1):
        parser.add_argument(flag, type=int, default=default, help="default: %(default)s")
    options = parser.parse_args()
    added = added_lines(options.base, options.files) if options.base else {}
    revision = options.base.split("..")[-1].lstrip(".") if options.base and ".." in options.base else None
    total, flagged, sample = collections.Counter(), collections.Counter(), []
    for path in sorted(added) if options.base else options.files or git("ls-files").split("\n"):
        try:
            text = git("show", f"{revision}:./{path}") if revision else open(path, encoding="utf8").read()
        except (OSError, UnicodeDecodeError, subprocess.CalledProcessError):
            continue
        hits = []
        for first, last, kind, sentence in sentences(path, text):
            if not options.base or not added[path].isdisjoint(range(first, last + 1)):
                points, rules = score(sentence, kind)
                sample.append((path, first, kind, sentence))
                total.update([os.path.dirname(path).split("/")[0] or ".", "all"])
                if points >= options.threshold:
                    flagged.update([os.path.dirname(path).split("/")[0] or ".", "all"])
                    hits.append(f"{path}:{first}: [{points} {rules}] {sentence}")
        if hits and options.max and not options.sample and not options.limit:
            print("\n".join(hits[:options.max] + [f"{path}: {len(hits) - options.max} more"] * (len(hits) > options.max)))
    if options.limit:
        with open(options.limit, encoding="utf8") as file:
            limit = float(file.read())
        share = 100 * flagged["all"] / max(1, total["all"])
        # Rounded as FILE's number is, so that FILE can have the share that was printed.
        if round(share, 1) > limit:
            print(f"{flagged['all']} of {total['all']} sentences are flagged, {share:.1f} %: {options.limit} allows {limit} %")
            return 1
        return 0
    if options.sample:
        for entry in random.Random(options.seed).sample(sample, min(options.sample, len(sample))):
            print(*entry, sep="\t")
    else:
        for folder in sorted(total, key=lambda name: (name == "all", name)):
            print(f"{folder}: {flagged[folder]} / {total[folder]} = {flagged[folder] / total[folder]:.1%}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
    except BrokenPipeError:
        os._exit(0)
