"""Writes small tokenizers of the published kinds, and what Hugging Face makes of texts with them.

    pip install tokenizers==0.23.3
    python3 make_cases.py FOLDER

FOLDER/<name>.json holds {"tokenizer": the tokenizer.json, "cases": [...], "decoded": [...]}.

Each tokenizer has exactly the parts of the published one; only its vocabulary is small, trained here
on the texts below:

    llama2    Llama 2, Mistral 7B v0.1: a prefix and replaced spaces by normalizers, no pre-tokenizer
    mistral3  Mistral 7B v0.3: the same by Metaspace, before the first word of a text only
    gemma2    Gemma 2: replaced spaces, a split that never cuts, added tokens for white space
    llama3    Llama 3, 4: a pattern, bytes, whole pieces looked up
    qwen2     Qwen 2, 3: NFC, a pattern, bytes, no template
    bart      BART: the pattern of GPT-2, bytes, RoBERTa's template, a mask that takes the space before it
    deepseek2 DeepSeek-V2: a sequence of patterns, single digits, bytes
    bloom     BLOOM: a pattern with a class within a class, bytes, no template

A case is a text, its tokens without the template ("ids"), with it ("template", where it adds any),
with special tokens read as text ("plain", where that differs), and the text of "ids" again. What is
decoded is a list of ids, its text and, where that differs, its text without special tokens.
"""

import json
import random
import sys

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, trainers

CORPUS = """The quick brown fox jumps over the lazy dog. The lazy dog sleeps, and the fox doesn't.
Hello world! Hello, wonderful world; hello again and again and again.
A hacker is a person who enjoys learning the details of computer systems and how to stretch them.
In the beginning was the command line; the command line was without windows, and void.
def main(argc, argv):
    for i in range(100):
        print("hello", i, argv[i])
    return 0
Straße, café, naïve, façade, jalapeño, über, œuvre, Ångström; Москва — столица России.
北京是中国的首都。東京は日本の首都です。서울은 대한민국의 수도입니다.
We've said they're what I'm told you'll do; he'd said it's 12345 or 3.14159, in 2024.
The tokens of the text are the text of the tokens, and the tokens are the text.
"""

TEXTS = [
    "", " ", "  ", "   ", "a", " a", "a ", "  a  b  ", "Hello world!", " Hello world!", "Hello  world",
    "hello\nworld", "\n", "\n\n", " \n \n ", "\t", "a\tb\r\nc", "hello\n\n\n\nworld", "The lazy dog",
    "the the the the", "We've said they're; I'M, he'D, it'S", "12345678901", "3.14159 x 1000000",
    "Straße café naïve", "e\u0301 a\u030a A\u030a \u0041\u030a\u0301", "\u1112\u1161\u11ab \uac00\u11a8 \u1100\u1161",
    "\u212b \u2126 \u0958 \ufb1d \ufb01", "q\u0307\u0323 q\u0323\u0307", "\u0344 \u0f73 \u2adc",
    "Москва — столица", "北京是中国的首都。", "東京は日本の首都です", "서울은 대한민국", "日本語 and English",
    "🙂", "🙂🙃", "a🙂b", " 🙂 ", "👩‍👩‍👧‍👦", "\u1208\u1230\u12cd \u12a0\u121b\u122d\u129b", "\x00", "a\x00b", "\x7f\x80\x9f",
    "\u200b \u00a0 \u2003 \u3000x", "▁", " ▁", "▁▁a▁b", "_ __ ___", "<0x41>", "<0x0A><0xFF>", "<unk>",
    "<s>", "<s>hello", "hello<s>", "hello</s>world", "hello </s> world", " <s> a", "<s> hello", "<s><s>", "</s",
    "<s>hello</s> <s> world </s>", "<pad>", "<mask>", "a <mask> b", "a  <mask>  b", " <mask>", "\u00a0<mask>",
    "<|begin_of_text|>hi<|eot_id|>", "<|im_start|>user\nhello<|im_end|>", "<tool>x", "x <tool> y", "<tool", "a<tool>  b",
    "<start_of_turn>user\nhello<end_of_turn>\n", "    indented\n\tcode()", "aaaaaaaaaaaaaaaaaaaaaaaaa",
    "the" * 20, "\ud7ff\ue000\uffff\U0010ffff", "x" + "\u0301" * 40, "a\u0315\u0300\u05ae\u0300\u0062",
    "！＂＃ ～‘’", "ⅧⅣ ½ ²³ ௧௨", "0\u0660\u0966", "foo.bar(baz)[0] != {1: 'x'}", "http://example.org/a?b=c&d=%20",
    "ſ K ﬃ ǆ", "don't DON'T don\u2019t", " \u2028\u2029 ", "\u0085", "a\u1680b", "\u180e", "<unused1>  <unused2>",
]


def byte_tokens():
    return ["<0x%02X>" % byte for byte in range(256)]


def trained(pre_tokenizer, size, **arguments):
    """The merges that training on CORPUS finds, and their alphabet."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, **arguments)
    tokenizer.train_from_iterator(CORPUS.splitlines(keepends=True) * 2, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    order = sorted(model["vocab"], key=model["vocab"].get)
    return order, [tuple(merge) for merge in model["merges"]]


def sentence_piece(first_tokens, size):
    """Vocabulary and merges as they are converted from SentencePiece: special tokens, bytes, pieces, and last
    the single characters; of every piece, each pair of tokens that makes it is a merge."""
    order, merges = trained(pre_tokenizers.Metaspace(prepend_scheme="always"), size)
    pieces = [left + right for left, right in merges]
    letters = [token for token in order if len(token) == 1]
    tokens = first_tokens + byte_tokens() + [t for t in pieces + letters if t not in first_tokens]
    assert len(set(tokens)) == len(tokens)
    vocab = {token: i for i, token in enumerate(tokens)}
    all_merges = []
    for piece in pieces:
        pairs = [(piece[:i], piece[i:]) for i in range(1, len(piece))]
        pairs = [pair for pair in pairs if pair[0] in vocab and pair[1] in vocab]
        all_merges += sorted(pairs, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))
    return vocab, [" ".join(pair) for pair in all_merges]


def byte_level(size, pattern=None):
    """Vocabulary and merges of byte-level tokenizers: the bytes come first."""
    steps = pre_tokenizers.ByteLevel(add_prefix_space=False)
    order, merges = trained(steps, size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    return {token: i for i, token in enumerate(order)}, merges


def added(token_id, content, special=True, **flags):
    entry = {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": special}
    entry.update(flags)
    return entry


def bpe(vocab, merges, **members):
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
             "vocab": vocab, "merges": merges}
    model.update(members)
    return model


def template(token, token_id):
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    pair = {"SpecialToken": {"id": token, "type_id": 1}}
    return {"type": "TemplateProcessing",
            "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}, pair, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}}}


def split(pattern, behavior="Isolated", kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": False}


def to_bytes(use_regex=False, **members):
    return dict({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}, **members)


def whole(**members):
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
                 "pre_tokenizer": None, "post_processor": None, "decoder": None, "model": None}
    tokenizer.update(members)
    return tokenizer


SPACES_BACK = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
BYTES_DECODER = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def llama2():
    vocab, merges = sentence_piece(["<unk>", "<s>", "</s>"], 290)
    return whole(
        added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        normalizer={"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        post_processor=template("<s>", 1),
        decoder={"type": "Sequence", "decoders": [SPACES_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
        model=bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def mistral3():
    vocab, merges = sentence_piece(["<unk>", "<s>", "</s>", "[INST]", "[/INST]"], 250)
    return whole(
        added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>"), added(3, "[INST]"), added(4, "[/INST]"),
                      added(len(vocab), "<tool>", special=False, rstrip=True, normalized=True)],
        pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False},
        post_processor=template("<s>", 1),
        decoder={"type": "Sequence", "decoders": [SPACES_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}, STRIP]},
        model=bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


def gemma2():
    first = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused1>", "<start_of_turn>", "<end_of_turn>",
             "\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "\t"]
    vocab, merges = sentence_piece(first, 250)
    special = {"<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"}
    return whole(
        added_tokens=[added(i, token, special=token in special) for i, token in enumerate(first)],
        normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        pre_tokenizer=split(" ", "MergedWithPrevious", "String"),
        post_processor=template("<bos>", 2),
        decoder={"type": "Sequence", "decoders": [SPACES_BACK, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        model=bpe(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))


LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                  r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_PATTERN = LLAMA3_PATTERN.replace("{1,3}", "")


def llama3():
    vocab, merges = byte_level(340)
    n = len(vocab)
    return whole(
        added_tokens=[added(n, "<|begin_of_text|>"), added(n + 1, "<|end_of_text|>"), added(n + 2, "<|eot_id|>")],
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split(LLAMA3_PATTERN), to_bytes()]},
        post_processor={"type": "Sequence", "processors": [
            to_bytes(True, add_prefix_space=True, trim_offsets=False), template("<|begin_of_text|>", n)]},
        decoder=BYTES_DECODER,
        model=bpe(vocab, [" ".join(merge) for merge in merges], ignore_merges=True))


def qwen2():
    vocab, merges = byte_level(340)
    n = len(vocab)
    return whole(
        added_tokens=[added(n, "<|endoftext|>"), added(n + 1, "<|im_start|>"), added(n + 2, "<|im_end|>"),
                      added(n + 3, "<tool>", special=False)],
        normalizer={"type": "NFC"},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [split(QWEN2_PATTERN), to_bytes(trim_offsets=False)]},
        post_processor=to_bytes(trim_offsets=False),
        decoder=dict(BYTES_DECODER, add_prefix_space=False, trim_offsets=False, use_regex=False),
        model=bpe(vocab, merges, continuing_subword_prefix="", end_of_word_suffix=""))


def bart():
    vocab, merges = byte_level(320)
    # The first ids are those of special tokens, and <mask> is the last.
    vocab = {token: i for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>"] + sorted(vocab, key=vocab.get))}
    vocab["<mask>"] = len(vocab)
    specials = [added(i, token, normalized=True) for i, token in enumerate(["<s>", "<pad>", "</s>", "<unk>"])]
    model = bpe(vocab, [" ".join(merge) for merge in merges], continuing_subword_prefix="", end_of_word_suffix="")
    for name in ("type", "byte_fallback", "ignore_merges"):  # the file is older than these
        del model[name]
    steps = to_bytes()
    del steps["use_regex"]
    return whole(
        added_tokens=specials + [added(vocab["<mask>"], "<mask>", lstrip=True)],
        pre_tokenizer=steps,
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True,
                        "add_prefix_space": False},
        decoder={"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        model=model)


def deepseek2():
    vocab, merges = byte_level(320)
    n = len(vocab)
    letters = ("A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ")
    return whole(
        added_tokens=[added(n, "<｜begin▁of▁sentence｜>", normalized=True), added(n + 1, "<｜end▁of▁sentence｜>", normalized=True),
                      added(n + 2, "<tool>", special=False, normalized=True)],
        normalizer={"type": "Sequence", "normalizers": []},
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            split(r"[\r\n]"), split(r"\s?[" + letters + "]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
            split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True}, to_bytes()]},
        post_processor=template("<｜begin▁of▁sentence｜>", n),
        decoder=BYTES_DECODER,
        model=bpe(vocab, [" ".join(merge) for merge in merges]))


def bloom():
    vocab, merges = byte_level(320)
    first = ["<unk>", "<s>", "</s>", "<pad>"]
    vocab = {token: i for i, token in enumerate(first + sorted(vocab, key=vocab.get))}
    return whole(
        added_tokens=[added(i, token) for i, token in enumerate(first)],
        pre_tokenizer={"type": "Sequence", "pretokenizers": [
            split(r" ?[^(\s|[.,!?…。，、।۔،])]+"), to_bytes()]},
        post_processor=to_bytes(add_prefix_space=True, trim_offsets=False),
        decoder=BYTES_DECODER,
        model=bpe(vocab, [" ".join(merge) for merge in merges]))


def decoded_lists(tokenizer, name):
    """Lists of ids: bytes that are text and bytes that are none, special tokens between them, ids without a token."""
    generator = random.Random(name)
    size = tokenizer.get_vocab_size()
    byte_ids = [tokenizer.token_to_id(token) for token in byte_tokens()]
    if byte_ids[0] is None:
        order = {c: i for i, c in enumerate(byte_characters())}
        byte_ids = [tokenizer.token_to_id(c) for c in sorted(order, key=order.get)]
    lists = [[], [size - 1], [size + 5], [0, 1, 2], [2, 1, 0]]
    for text in ("é", "🙂", "日本", "a🙂"):
        ids = [byte_ids[byte] for byte in text.encode()]
        lists += [ids, ids[:-1], ids[1:], ids[:-1] + [0] + ids[-1:], ids + ids[:1], ids * 2]
    for _ in range(25):
        ids = []
        for _ in range(generator.randrange(1, 9)):
            kind = generator.randrange(4)
            if kind == 0:
                ids.append(byte_ids[generator.randrange(256)])
            elif kind == 1:
                ids += [byte_ids[byte] for byte in generator.choice("é日🙂ñ").encode()]
            else:
                ids.append(generator.randrange(size))
        lists.append(ids)
    return lists


def byte_characters():
    kept = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    others = [byte for byte in range(256) if byte not in kept]
    return [chr(byte) if byte in kept else chr(256 + others.index(byte)) for byte in range(256)]


def write(path, tokenizer_json, name):
    text = json.dumps(tokenizer_json, ensure_ascii=False)
    tokenizer = Tokenizer.from_str(text)
    cases = []
    for text_case in TEXTS:
        text_case = text_case.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        ids = tokenizer.encode(text_case, add_special_tokens=False).ids
        case = {"text": text_case, "ids": ids}
        with_template = tokenizer.encode(text_case).ids
        if with_template != ids:
            case["template"] = with_template
        tokenizer.encode_special_tokens = True
        plain = tokenizer.encode(text_case, add_special_tokens=False).ids
        tokenizer.encode_special_tokens = False
        if plain != ids:
            case["plain"] = plain
        case["back"] = tokenizer.decode(ids, skip_special_tokens=False)
        if case["back"] == text_case:
            del case["back"]
        cases.append(case)
    decoded = []
    for ids in decoded_lists(tokenizer, name):
        case = {"ids": ids, "text": tokenizer.decode(ids, skip_special_tokens=False)}
        without = tokenizer.decode(ids, skip_special_tokens=True)
        if without != case["text"]:
            case["without"] = without
        decoded.append(case)
    dump = lambda value: json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    lines = lambda values: "[\n" + ",\n".join(dump(value) for value in values) + "\n]"
    with open(path, "w") as file:
        file.write('{"tokenizer":%s,\n"cases":%s,\n"decoded":%s}\n' % (dump(tokenizer_json), lines(cases), lines(decoded)))


if __name__ == "__main__":
    for make in (llama2, mistral3, gemma2, llama3, qwen2, bart, deepseek2, bloom):
        write("%s/%s.json" % (sys.argv[1], make.__name__), make(), make.__name__)
