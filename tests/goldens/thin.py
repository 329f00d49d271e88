"""Keeps 64 logits per position of a golden file, and all other tensors.

    python3 thin.py golden.safetensors thin.safetensors

The hidden states have 16 to 70 elements, so the logits of the whole vocabulary are redundant: 64 logits
distinguish a right hidden state from a wrong one. Each token must be a column of some track, because
each token has a row of the output projection. A file has ten tracks, in the order logits_0,
forced_logits_0, logits_1, ... Track t keeps the logits of tokens t mod s, t mod s + s, ..., where the
stride s is the size of the vocabulary / 64: 4 for 256 tokens, 2 for 128. The bits of these logits do
not change.

The tokens of the columns of logits_i are in logits_tokens_i (int32), those of forced_logits_i in
forced_logits_tokens_i.
"""

import array
import json
import struct
import sys

NUM_PROMPTS = 5
NUM_TOKENS = 64


def read(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    with open(path, "rb") as file:
        data = file.read()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
    return tensors


def write(path, tensors):
    header = {}
    offset = 0
    # The widest first, so that each stands at a multiple of its size.
    order = sorted(tensors, key=lambda name: (-int(tensors[name][0][1:]), name))
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in order:
            file.write(tensors[name][2])


def thin(tensors):
    for track in range(2 * NUM_PROMPTS):
        name = ("forced_logits_" if track % 2 else "logits_") + str(track // 2)
        _, (rows, vocab_size), data = tensors[name]
        stride = vocab_size // NUM_TOKENS
        tokens = array.array("i", range(track % stride, vocab_size, stride))
        logits = array.array("f", data)
        kept = array.array("f")
        for row in range(rows):
            kept.extend(logits[row * vocab_size + token] for token in tokens)
        tensors[name] = ("F32", [rows, len(tokens)], kept.tobytes())
        tokens_name = name.replace("logits_", "logits_tokens_")
        tensors[tokens_name] = ("I32", [len(tokens)], tokens.tobytes())
    return tensors


if __name__ == "__main__":
    write(sys.argv[2], thin(read(sys.argv[1])))
