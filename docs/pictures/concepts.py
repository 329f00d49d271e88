"""The drawings of the concepts. Numbers are those of the pages, which tests/docs computes."""

from svg import Drawing


def whole():
    d = Drawing(920, 444, "The host schedules and sends deltas; the device refills its buffers, replays a graph and samples.")
    d.text(24, 32, "One step: refill, then replay", "ink title")
    d.text(24, 62, "host (C++, no Python)", "soft bold")
    d.text(124, 236, "device, one stream", "soft bold")
    d.rect(16, 72, 888, 128, "muted", 8)
    d.rect(16, 242, 888, 186, "muted", 8)
    # Host.
    d.box(36, 92, 130, 88, ["requests"], "plain", notes=("prompts, sampling,", "priorities, cancels"))
    d.box(216, 92, 190, 88, ["Scheduler"], "host", "ink bold", ("which sequences, which tokens", "//engine:scheduler"))
    d.box(446, 92, 190, 88, ["BlockManager"], "host", "ink bold", ("blocks, prefixes, copies", "//cache/blocks:block_manager"))
    d.box(706, 92, 178, 88, ["token events"], "plain", notes=("text to the caller,", "one step behind"))
    d.path([(166, 136), (216, 136)])
    d.path([(406, 126), (446, 126)])
    d.path([(446, 150), (406, 150)])
    # Device.
    d.box(36, 262, 150, 66, ["refill"], "device", "ink bold", ("applies the delta,", "fills the step's arrays"))
    d.rect(226, 254, 440, 82, "violet", 8)
    d.text(446, 272, "captured graph, fixed number of rows", "soft small", "middle")
    d.box(240, 280, 120, 46, ["metadata"], "plain", notes=("tile schedules, rows",))
    d.box(386, 280, 140, 46, ["forward"], "plain", notes=("your Model, attention",))
    d.box(552, 280, 100, 46, ["logits"], "plain", notes=("of last tokens",))
    d.path([(360, 303), (386, 303)])
    d.path([(526, 303), (552, 303)])
    d.path([(186, 295), (226, 295)])
    d.box(706, 262, 178, 66, ["sample"], "device", "ink bold", ("a token a row,", "by seed and index"))
    d.path([(666, 295), (706, 295)])
    # State.
    d.box(36, 372, 290, 42, ["slots: tables, lengths, last tokens"], "warm")
    d.box(386, 372, 498, 42, ["KV blocks: pages of keys and values, any layout, fp8 too"], "warm")
    d.path([(110, 372), (110, 328)])
    d.path([(456, 372), (456, 326)])
    d.path([(795, 328), (795, 356), (290, 356), (290, 372)])
    d.text(470, 351, "last token: the next step needs no host", "soft small")
    # Between.
    d.path([(310, 180), (310, 218), (111, 218), (111, 262)])
    d.text(322, 222, "StepDelta: joins, leaves, rows, new table entries", "ink small")
    d.path([(795, 262), (795, 180)])
    d.text(785, 224, "tokens, by a ring; Commit()", "ink small", "end")
    return d


def paged_batch():
    d = Drawing(860, 398, "Two rows of queries, their block tables, and the blocks that hold their keys.")
    d.text(24, 32, "A paged batch: rows of queries over keys behind a block table (block size 4)", "ink title")
    # Queries.
    d.text(24, 66, "queries, packed", "soft bold")
    d.cells(24, 76, ["t0", "t1", "t2", "t3", "", ""], 36, fills=["host", "device", "device", "device", "muted", "muted"])
    d.text(24, 118, "row 0: a decode of slot 1", "ink small")
    d.text(24, 134, "row 1: 3 tokens of the prompt of slot 0", "ink small")
    d.text(24, 150, "the rest is padding", "soft small")
    # Table.
    d.text(320, 66, "block_table", "soft bold")
    d.text(320, 96, "slot 0", "soft small")
    d.cells(362, 80, [3, 6, 0], 34, fills=["device", "device", "muted"])
    d.text(320, 126, "slot 1", "soft small")
    d.cells(362, 110, [5, 2, 0], 34, fills=["host", "host", "muted"])
    d.text(362, 152, "0: the null block", "soft small")
    # Blocks.
    d.text(530, 66, "KV blocks: position of the key in each place", "soft bold")
    blocks = [(2, "host", [4, 5, "", ""]), (3, "device", [0, 1, 2, 3]), (5, "host", [0, 1, 2, 3]), (6, "device", [4, 5, 6, ""])]
    for i, (block, fill, keys) in enumerate(blocks):
        y = 76 + 28 * i
        d.text(556, y + 16, f"block {block}", "soft small", "middle")
        new = {2: {5}, 6: {4, 5, 6}}.get(block, set())
        d.cells(590, y, keys, 34, fills=["violet" if k in new and k != "" else ("muted" if k == "" else fill) for k in keys])
    d.text(740, 92, "violet: written", "soft small")
    d.text(740, 106, "by this step", "soft small")
    # Arrays.
    d.text(24, 218, "the arrays, padded to 3 rows and 6 tokens", "soft bold")
    rows = [("query_start_loc", [0, 1, 4, 4], "row r has the queries [loc[r], loc[r + 1])"),
            ("seq_lens", [6, 7, 0], "keys that the row's last query sees"),
            ("table_row", [1, 0, 0], "the row's line of block_table"),
            ("positions", [5, 4, 5, 6, 0, 0], "of each new token in its sequence"),
            ("slot_mapping", [9, 24, 25, 26, -1, -1], "block * 4 + offset of its key; -1: not written")]
    for i, (name, values, note) in enumerate(rows):
        y = 232 + 31 * i
        d.text(24, y + 16, name, "ink mono")
        by_row = name in ("seq_lens", "table_row")
        fills = (["host", "device", "muted"] if by_row else
                 ["plain"] * 4 if name == "query_start_loc" else ["host", "device", "device", "device", "muted", "muted"])
        d.cells(150, y, values, 36, fills=fills)
        d.text(390, y + 16, note, "soft small")
    return d


def slots_and_refill():
    d = Drawing(900, 372, "The host's delta changes slots on the device; refill writes the arrays that a captured graph reads.")
    d.text(24, 32, "Slots keep a sequence's state on the device; a delta says what changes", "ink title")
    d.text(24, 66, "StepDelta, from the host", "soft bold")
    d.rect(16, 76, 252, 236, "muted", 8)
    for i, (name, what) in enumerate([("leaves", "slots that become empty"), ("joins", "slot 3: length, sampling"),
                                      ("updates", "(3, column 0) = 7, (3, 1) = 9"), ("rows", "slot 3, 5 tokens"),
                                      ("host_tokens", "11 12 13 14 15")]):
        d.rect(28, 88 + 44 * i, 228, 36, "host")
        d.text(38, 103 + 44 * i, name, "ink mono")
        d.text(38, 118 + 44 * i, what, "soft small")
    d.box(302, 160, 92, 68, ["refill"], "device", "ink bold", ("one launch",))
    d.path([(268, 194), (302, 194)])
    d.text(428, 66, "slots (persistent)", "soft bold")
    d.rect(420, 76, 210, 110, "muted", 8)
    d.text(432, 98, "block_table", "ink mono")
    d.cells(530, 82, [7, 9, 0], 28, fills=["warm", "warm", "muted"])
    d.text(432, 128, "seq_len", "ink mono")
    d.cells(530, 112, [5], 28, fills="warm")
    d.text(432, 158, "last_token", "ink mono")
    d.cells(530, 142, [77], 28, fills="warm")
    d.text(564, 158, "sampled", "soft small")
    d.path([(394, 176), (420, 140)])
    d.text(662, 66, "step arrays (fixed addresses)", "soft bold")
    d.rect(654, 76, 230, 236, "muted", 8)
    arrays = [("token_ids", [11, 12, 13, 14, 15, 0, 0, 0]), ("positions", [0, 1, 2, 3, 4, 0, 0, 0]),
              ("slot_mapping", [28, 29, 30, 31, 36, -1, -1, -1])]
    for i, (name, values) in enumerate(arrays):
        d.text(666, 96 + 52 * i, name, "ink mono")
        d.cells(666, 102 + 52 * i, values, 26, 22, fills=["device"] * 5 + ["muted"] * 3)
    d.text(666, 252, "seq_lens", "ink mono")
    d.cells(666, 258, [5, 0], 26, 22, fills=["device", "muted"])
    d.text(760, 252, "table_row", "ink mono")
    d.cells(760, 258, [3, 0], 26, 22, fills=["device", "muted"])
    d.text(666, 302, "grey: padding, written anew each step", "soft small")
    d.path([(394, 212), (654, 212)])
    d.box(420, 244, 210, 68, ["graph, then sampling"], "violet", "ink bold", ("read slots and step arrays only",))
    d.path([(654, 278), (630, 278)])
    d.path([(525, 244), (525, 186)])
    d.text(533, 232, "sampled token", "soft small")
    d.text(24, 344, "The next step of this sequence sends one row, slot 3, and nothing else: the token 77, position 5 and slot 9 * 4 + 1 = 37",
           "ink small")
    d.text(24, 360, "follow from the slot. The host need not know the token to launch the step.", "ink small")
    return d


def graphs():
    d = Drawing(880, 330, "A step's shape is padded to the next captured size, or runs eagerly for a named reason.")
    d.text(24, 32, "A graph set chooses the graph of a step, or says why there is none", "ink title")
    d.box(24, 70, 190, 92, ["StepShape"], "host", "ink bold", ("13 sequences, 13 tokens,", "longest sequence 900"))
    d.box(270, 70, 150, 92, ["GraphSet", "Decide()"], "plain", "ink bold")
    d.path([(214, 116), (270, 116)])
    d.path([(420, 100), (474, 100)])
    d.path([(360, 162), (360, 262), (474, 262)])
    d.rect(474, 54, 390, 150, "muted", 8)
    d.text(486, 74, "captured, largest first, in one pool of memory", "soft small")
    for i, rows in enumerate([16, 8, 4, 2, 1]):
        chosen = rows == 16
        d.rect(486, 82 + 23 * i, 16 * 13, 19, "muted", 3, dashed=True)
        d.rect(486, 82 + 23 * i, rows * 13, 19, "violet" if chosen else "plain", 3)
        if chosen:
            d.rect(486, 82, 13 * 13, 19, "device", 3)
        d.text(706, 96 + 23 * i, f"{rows} seqs x 1" + (": replayed" if chosen else ""), "ink small" if chosen else "soft small")
    d.rect(474, 222, 390, 84, "muted", 8)
    d.text(486, 242, "kEager, with a reason that is counted and reported", "soft small")
    d.text(486, 262, "17 sequences: too many sequences", "ink small")
    d.text(486, 279, "a prompt of 8 tokens, no mixed graphs: query too long", "ink small")
    d.text(486, 296, "memory_budget_bytes is used up: over memory budget", "ink small")
    d.rect(24, 196, 16, 16, "device", 2)
    d.text(48, 208, "13 live rows", "ink small")
    d.rect(24, 220, 16, 16, "violet", 2)
    d.text(48, 232, "3 padded rows: seq_len 0, slot -1,", "ink small")
    d.text(48, 247, "output 0, nothing written", "ink small")
    d.text(24, 280, "With graphs switched off a step is padded", "soft small")
    d.text(24, 295, "in the same way, and computes the same bits.", "soft small")
    return d


def cache():
    d = Drawing(880, 364, "Two sequences share two blocks of a common prefix; a block is free, used or cached.")
    d.text(24, 32, "Blocks are shared by content, and kept until they are needed", "ink title")
    d.text(24, 64, "slot 0: tokens 1 .. 9", "soft bold")
    d.cells(24, 74, ["1 2 3 4", "5 6 7 8", "9"], 92, 28, fills=["violet", "violet", "host"])
    d.text(24, 220, "slot 1: tokens 1 .. 8, 20, 21", "soft bold")
    d.cells(24, 174, ["1 2 3 4", "5 6 7 8", "20 21"], 92, 28, fills=["violet", "violet", "device"])
    d.text(360, 64, "the pool (block size 4)", "soft bold")
    d.cells(360, 120, [0, 1, 2, 3, 4, 5, 6, 7], 58, 34, fills=["muted", "violet", "violet", "host", "device", "plain", "plain", "plain"])
    d.lines(389, 170, ["null"], "soft small", "middle")
    d.text(447, 170, "2 refs", "soft small", "middle")
    d.text(505, 170, "2 refs", "soft small", "middle")
    d.text(563, 170, "1", "soft small", "middle")
    d.text(621, 170, "1", "soft small", "middle")
    d.text(737, 170, "free", "soft small", "middle")
    for x0, x1 in ((70, 440), (162, 498), (254, 556)):
        d.path([(x0, 102), (x0, 110), (x1, 110), (x1, 120)], arrow=False)
    for x0, x1 in ((254, 628),):
        d.path([(x0, 174), (x0, 164), (348, 164), (348, 182), (x1, 182), (x1, 174)], arrow=False)
    d.text(360, 204, "slot 1 computes two tokens: 8 of its 10 were found (PromptHits)", "ink small")
    # States.
    d.text(24, 262, "states of a block", "soft bold")
    for x, name, note in ((24, "free", "no content"), (244, "used", "1 or more references"), (500, "cached", "unused, can be found")):
        d.box(x, 288, 132 if x != 500 else 150, 58, [name], {"free": "plain", "used": "host", "cached": "violet"}[name],
              "ink bold", (note,))
    d.path([(156, 306), (244, 306)])
    d.text(200, 299, "Allocate", "soft small", "middle")
    d.path([(244, 330), (156, 330)])
    d.text(200, 345, "Release", "soft small", "middle")
    d.path([(376, 306), (500, 306)])
    d.text(438, 299, "Release, committed", "soft small", "middle")
    d.path([(500, 330), (376, 330)])
    d.text(438, 345, "a hit, Allocate", "soft small", "middle")
    for i, line in enumerate(("A copy on another stream holds a", "reference. Its release waits beside", "the pool until the copy has ended.")):
        d.text(664, 308 + 15 * i, line, "soft small")
    d.text(160, 262, "if none is free, Allocate takes the cached block that was unused longest, and forgets its content", "soft small")
    return d


def scheduling():
    d = Drawing(880, 352, "A prompt is computed in chunks beside decodes; the host runs a step behind the device.")
    d.text(24, 32, "Every step holds all decodes, and as much of prompts as the budget allows", "ink title")
    x0, width = 130, 168
    for i in range(4):
        d.text(x0 + (i + 0.5) * width, 66, f"step {i + 1}", "soft bold", "middle")
    d.text(24, 98, "slot 0", "ink")
    d.text(24, 113, "prompt of 10", "soft small")
    d.text(24, 144, "slot 1", "ink")
    d.text(24, 159, "prompt of 3", "soft small")

    def row(step, slot, tokens, samples, fill):
        x, y = x0 + step * width + 6, 80 + 46 * slot
        d.cells(x, y, tokens, 30, 30, fill)
        if samples:
            d.text(x + 30 * len(tokens) + 8, y + 20, "token", "accent small")

    row(0, 0, [1, 2, 3, 4], False, "host")
    row(0, 1, [11, 12, 13], True, "device")
    row(1, 0, [5, 6, 7, 8], False, "host")
    row(1, 1, [7], True, "device")
    row(2, 0, [9, 10], True, "host")
    row(2, 1, [7], True, "device")
    row(3, 0, [7], True, "host")
    d.text(x0 + 3 * width + 6, 144, "slot 1 is free:", "soft small")
    d.text(x0 + 3 * width + 6, 158, "the next one joins", "soft small")
    d.text(24, 200, "prefill_chunk = 4, max_num_tokens = 8. Slot 1 decodes in steps 2 and 3 and does not wait for the long prompt.", "soft small")
    # In flight.
    d.text(24, 240, "two steps in flight (a GPU's default)", "soft bold")
    d.text(24, 268, "host", "ink")
    d.text(24, 312, "device", "ink")
    for i in range(5):
        d.box(130 + 150 * i, 252, 66, 26, [f"launch {i + 1}"], "host", "ink small")
        if i >= 1:
            d.box(198 + 150 * i - 2, 252, 70, 26, [f"await {i}"], "plain", "ink small")
        if i < 4:
            d.box(196 + 150 * i + 20, 298, 146, 26, [f"step {i + 1}"], "device", "ink small")
            d.path([(163 + 150 * i, 278), (163 + 150 * i, 311), (216 + 150 * i, 311)] if i == 0 else
                   [(163 + 150 * i, 278), (230 + 150 * i, 298)])
    d.text(130, 342, "The host plans step i + 1 while the device computes step i: the last token comes from the slot, not from the host.", "soft small")
    return d


def speculation():
    d = Drawing(900, 362, "One step proposes, computes, chooses and verifies four drafts, and gives one to five tokens.")
    d.text(24, 32, "A step with four drafts: the sequence has t10; t11, t12 and t13 come out right", "ink title")
    stages = [("refill", "last token, room", "device"), ("draft", "4 passes or n-grams", "violet"), ("metadata", "row of 5 tokens", "violet"),
              ("forward", "5 rows of logits", "violet"), ("sample", "each place its token", "violet"), ("verify", "how many agree", "violet")]
    d.rect(160, 56, 728, 74, "muted", 8)
    d.text(172, 72, "one captured graph", "soft small")
    for i, (name, note, fill) in enumerate(stages):
        x = 24 + 146 * i
        d.box(x, 78, 122, 44, [name], fill, "ink bold", (note,))
        if i + 1 < len(stages):
            d.path([(x + 122, 100), (x + 146, 100)])
    names = ["position", "fed to the model", "chosen there", "accepted"]
    rows = [[10, 11, 12, 13, 14], ["t10", "d11", "d12", "d13", "d14"], ["t11", "t12", "t13", "t14", "x"], ["", "yes", "yes", "yes", "no"]]
    fills = [["plain"] * 5, ["host"] + ["violet"] * 4, ["device"] * 4 + ["muted"], ["plain"] + ["device"] * 3 + ["muted"]]
    for i, (name, values, fill) in enumerate(zip(names, rows, fills)):
        y = 158 + 32 * i
        d.text(24, y + 17, name, "ink")
        d.cells(160, y, values, 76, 26, fill)
    for i in range(3):
        d.path([(198 + 76 * i + 20, 248), (274 + 76 * i - 14, 254)], style="mark")
    d.text(570, 174, "d11 equals t11, so the logits behind it are right,", "ink small")
    d.text(570, 190, "and so on; d14 is not t14. The step gives t11 to t14:", "ink small")
    d.text(570, 206, "what plain decoding would have chosen.", "ink small")
    d.text(570, 238, "The key of d14 is beyond the end of the sequence;", "soft small")
    d.text(570, 253, "the next step writes t14's there.", "soft small")
    d.text(24, 312, "host", "ink")
    d.box(160, 296, 200, 26, ["step i: length 10 known"], "host", "ink small")
    d.box(372, 296, 250, 26, ["launch i + 1: between 11 and 15 known"], "host", "ink small")
    d.box(634, 296, 250, 26, ["await i: length is 14"], "plain", "ink small")
    d.text(160, 346, "Blocks are there for the longest outcome, so nothing waits for the host.", "soft small")
    return d
