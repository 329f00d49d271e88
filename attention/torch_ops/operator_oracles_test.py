"""torch.ops.reprise against attention computed by other means: PyTorch's own functions, and the
formulas of the systems whose conventions the operators follow, written out in float64.

    operator_oracles_test.py LIBRARY [unittest arguments]

Every oracle runs on the CPU and, if there is one, on a GPU, over random batches: shuffled blocks,
rows without queries or keys, NaN in all memory that is not part of a sequence. At the end a table
gives the number of batches and the largest error of each oracle. REPRISE_SEED chooses the batches.
docs/operators.md names the conventions.
"""

import collections
import math
import os
import random
import sys
import unittest
import warnings

import torch
import torch.nn.functional as F

OPS = torch.ops.reprise
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SEED = int(os.environ.get("REPRISE_SEED", "20240301"))
FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}

# Largest absolute errors for inputs of unit variance: of out, and of lse, which is float32 always.
# The inputs are exact in the oracle, so what remains is the rounding of weights and results.
BOUNDS = {torch.float32: (2e-5, 5e-5), torch.float16: (4e-3, 1e-3), torch.bfloat16: (3e-2, 2e-3)}

# One row of a batch, float64 on the CPU: q [n, q heads, dim], k and v [len, kv heads, dim], the
# positions of the queries [n], and the number of the row.
Row = collections.namedtuple("Row", "q k v positions index")

# (oracle, device, dtype) -> [cases, worst error of out, worst error of lse]
worst = collections.OrderedDict()


def note(oracle, device, dtype, out_error, lse_error):
    entry = worst.setdefault((oracle, device, dtype), [0, 0.0, 0.0])
    entry[0] += 1
    entry[1] = max(entry[1], out_error)
    entry[2] = max(entry[2], lse_error)


def print_table():
    print(f"\n{'oracle':<41} {'device':<6} {'dtype':<9} {'cases':>5}  {'out':>8} {'bound':>8}"
          f"  {'lse':>8} {'bound':>8}")
    for (oracle, device, dtype), (cases, out, lse) in worst.items():
        bounds = BOUNDS[dtype]
        print(f"{oracle:<41} {device:<6} {str(dtype)[6:]:<9} {cases:>5}  {out:8.1e} "
              f"{bounds[0]:8.1e}  {lse:8.1e} {bounds[1]:8.1e}")


class Case:
    """A random paged batch on `device`. `layout` is that of the cache's tensors."""

    def __init__(self, seed, device, dtype=torch.float32, *, layout="NHD", kv_dtype=None,
                 heads=None, dims=None, block_size=None, max_len=150, max_query_len=7,
                 decode=False, x=None):
        rng = random.Random(f"{SEED} {seed}")
        generator = torch.Generator().manual_seed(rng.getrandbits(40))
        self.seed, self.rng, self.device, self.dtype, self.layout = seed, rng, device, dtype, layout
        self.kv_dtype, self.x = kv_dtype, x
        self.q_heads, self.kv_heads = heads or rng.choice([(4, 2), (5, 1), (3, 3), (8, 2)])
        self.dim_qk, self.dim_v = dims or rng.choice([(32, 32), (64, 64), (80, 80), (64, 32)])
        self.block_size = block_size or rng.choice([1, 4, 16])
        rows = rng.randint(1, 5)
        self.lens = [rng.choice([0, 1, self.block_size, rng.randint(2, max_len)])
                     for _ in range(rows)]
        self.lens[0] = rng.randint(max_len // 2, max_len)
        self.query_lens = [min(length, 1 if decode else rng.randint(0, max_query_len))
                           for length in self.lens]
        self.query_lens[0] = max(self.query_lens[0], 1)
        self.num_tokens = sum(self.query_lens)
        draw = lambda *shape: torch.randn(*shape, generator=generator,
                                          dtype=torch.float64).to(dtype)
        self.q = draw(self.num_tokens, self.q_heads, self.dim_qk)
        self.k = [draw(length, self.kv_heads, self.dim_qk) for length in self.lens]
        self.v = [draw(length, self.kv_heads, self.dim_v) for length in self.lens]
        self.draw = draw
        self.layer = {}  # what the operator is called with, beside the batch
        self.make_cache()

    def make_cache(self):
        widths = [math.ceil(length / self.block_size) for length in self.lens]
        self.num_blocks = 2 + sum(widths)
        free = list(range(1, self.num_blocks))
        self.rng.shuffle(free)
        width = max(widths)
        self.table = [[free.pop() for _ in range(w)] + [0] * (width - w) for w in widths]
        n, t, h = self.num_blocks, self.block_size, self.kv_heads
        storage = self.dtype if self.kv_dtype is None else torch.uint8
        x = self.x or 16 // storage.itemsize
        shapes = {
            "NHD": [(n, t, h, self.dim_qk), (n, t, h, self.dim_v)],
            "HND": [(n, h, t, self.dim_qk), (n, h, t, self.dim_v)],
            "K-packed": [(n, h, self.dim_qk // x, t, x), (n, h, self.dim_v, t)],
        }[self.layout]
        fill = math.nan if self.kv_dtype is None else 0xff  # NaN in both fp8 types
        self.caches = [torch.full(shape, fill, dtype=storage, device=self.device)
                       for shape in shapes]
        self.block_table = self.ints(self.table)
        self.seq_lens = self.ints(self.lens)
        starts = [0]
        for query_len in self.query_lens:
            starts.append(starts[-1] + query_len)
        self.query_start_loc = self.ints(starts)

    def __str__(self):
        return (f"case {self.seed} of REPRISE_SEED={SEED} on {self.device}: {self.dtype}, lens "
                f"{self.lens}, query lens {self.query_lens}, heads {self.q_heads}/{self.kv_heads}, "
                f"dims {self.dim_qk}/{self.dim_v}, blocks of {self.block_size}, {self.layer}")

    def ints(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def floats(self, values):
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def cache_arguments(self):
        return dict(layout=self.layout, kv_dtype=self.kv_dtype)

    def place(self, row, i):
        """Block and offset of a row's key i."""
        return self.table[row][i // self.block_size], i % self.block_size

    def slots(self):
        places = [self.place(row, i) for row in range(len(self.lens))
                  for i in range(self.lens[row])]
        slots = [block * self.block_size + offset for block, offset in places]
        return torch.tensor(slots, dtype=torch.int64, device=self.device)

    def write(self, **scales):
        OPS.write_kv(torch.cat(self.k).to(self.device), torch.cat(self.v).to(self.device),
                     *self.caches, self.slots(), **self.cache_arguments(), **scales)

    def attend(self, **keywords):
        return OPS.paged_attention(self.q.to(self.device), *self.caches, self.block_table,
                                   self.seq_lens, self.query_start_loc, **self.cache_arguments(),
                                   **self.layer, **keywords)

    def attend_ragged(self, **keywords):
        starts = self.ints([sum(self.lens[:i]) for i in range(len(self.lens) + 1)])
        return OPS.ragged_attention(self.q.to(self.device), torch.cat(self.k).to(self.device),
                                    torch.cat(self.v).to(self.device), self.query_start_loc,
                                    starts, **self.layer, **keywords)

    def rows(self):
        first = 0
        for i, (length, query_len) in enumerate(zip(self.lens, self.query_lens)):
            q = self.q[first:first + query_len].double()
            first += query_len
            yield Row(q, self.k[i].double(), self.v[i].double(),
                      torch.arange(length - query_len, length), i)

    def dense(self, attend):
        """out [tokens, q heads, dim_v] and lse: attend(row) of every row that has queries."""
        results = [attend(row) for row in self.rows() if row.q.shape[0] > 0]
        return tuple(torch.cat(parts) for parts in zip(*results))


def expand(kv, q_heads):
    """[len, kv heads, dim] as [q heads, len, dim]."""
    return kv.repeat_interleave(q_heads // kv.shape[1], dim=1).transpose(0, 1)


def visible(row, *, causal=True, left=None, right=None):
    """[n, len] bool: which keys each query sees."""
    key, position = torch.arange(row.k.shape[0])[None, :], row.positions[:, None]
    seen = torch.ones(len(row.positions), row.k.shape[0], dtype=torch.bool)
    if causal:
        seen &= key <= position
    if left is not None:
        seen &= key >= position - left
    if right is not None:
        seen &= key <= position + right
    return seen


def distances(row):
    """[n, len]: position of the key minus that of the query."""
    return (torch.arange(row.k.shape[0])[None, :] - row.positions[:, None]).double()


def logits(row, scale=None):
    """[q heads, n, len], scaled."""
    k = expand(row.k, row.q.shape[1])
    return row.q.transpose(0, 1) @ k.transpose(1, 2) * (scale or row.q.shape[2] ** -0.5)


def finish(row, scores):
    """Softmax over scores [q heads, n, len] by torch.softmax, lse by torch.logsumexp."""
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # NaN: a query that sees no key
    out = weights @ expand(row.v, row.q.shape[1])
    return out.transpose(0, 1), lse.transpose(0, 1)


def masked(scores, seen):
    return scores.masked_fill(~seen, -math.inf)


class OracleTest(unittest.TestCase):
    def check(self, oracle, case, got, want):
        errors = []
        for result, expected, bound in zip(got, want, BOUNDS[case.dtype]):
            self.assertEqual(tuple(result.shape), tuple(expected.shape))
            result, expected = result.double().cpu(), expected.double()
            difference = (result - expected).abs().masked_fill(result == expected, 0)
            self.assertFalse(difference.isnan().any().item(), f"NaN: {case}")
            errors.append(difference.max().item() if difference.numel() else 0.0)
            self.assertLessEqual(errors[-1], bound, str(case))
        note(oracle, case.device, case.dtype, *errors)

    def cases(self, oracle, count, dtypes=(torch.float32, torch.bfloat16), **options):
        """Yields `count` cases for each device and dtype."""
        for device in DEVICES:
            for dtype in dtypes:
                for i in range(count):
                    yield Case(f"{oracle} {i}", device, dtype, **options)

    # PyTorch's own attention.

    def test_scaled_dot_product_attention(self):
        name = "scaled_dot_product_attention"
        for case in self.cases(name, 12, (torch.float32, torch.float16, torch.bfloat16)):
            rng = case.rng
            scale = rng.choice([None, 0.3])
            seen = dict(causal=rng.random() < 0.6, left=rng.choice([None, 0, 5, 40]))
            if not seen["causal"]:
                seen["right"] = rng.choice([None, 0, 3, 30])
            case.layer = dict(causal=seen["causal"], window_left=seen["left"], scale=scale,
                              window_right=seen.get("right"))

            def oracle(row):
                mask = visible(row, **seen)
                heads_first = [t.transpose(0, 1)[None] for t in (row.q, row.k, row.v)]
                out = F.scaled_dot_product_attention(*heads_first, attn_mask=mask[None, None],
                                                     scale=scale, enable_gqa=True)
                lse = torch.logsumexp(masked(logits(row, scale), mask), dim=-1)
                return out[0].transpose(0, 1), lse.transpose(0, 1)

            want = case.dense(oracle)
            case.write()
            self.check(name, case, case.attend(), want)
            self.check(name + ", ragged", case, case.attend_ragged(), want)

    def flex(self, row, score_mod, mask_mod, scale=None):
        """flex_attention without compilation; the functions take (head, query position, key)."""
        from torch.nn.attention import flex_attention as flex
        first = int(row.positions[0])
        mask = flex.create_block_mask(lambda b, h, i, j: mask_mod(h, i + first, j), 1, None,
                                      row.q.shape[0], row.k.shape[0], device="cpu")
        heads_first = [t.transpose(0, 1)[None].contiguous() for t in (row.q, row.k, row.v)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out, aux = flex.flex_attention(
                *heads_first, score_mod=lambda s, b, h, i, j: score_mod(s, h, i + first, j),
                block_mask=mask, scale=scale, enable_gqa=True,
                return_aux=flex.AuxRequest(lse=True))
        return out[0].transpose(0, 1), aux.lse[0].transpose(0, 1)

    def test_flex_attention(self):
        name = "flex_attention"
        for case in self.cases(name, 8, heads=(4, 2)):
            rng = case.rng
            cap, left = rng.choice([None, 0.0, 2.0, 30.0]), rng.choice([None, 0, 11])
            causal = rng.random() < 0.5
            slopes = torch.tensor([0.5, 0.25, 0.02, 1.0]) if rng.random() < 0.5 else None
            case.layer = dict(softcap=cap, window_left=left, causal=causal,
                              alibi_slopes=None if slopes is None else slopes.to(case.device))
            wide = None if slopes is None else slopes.double()

            def score_mod(score, head, position, key):
                if cap:
                    score = cap * torch.tanh(score / cap)
                return score if wide is None else score - wide[head] * (position - key).abs()

            def mask_mod(head, position, key):
                seen = key >= position - (1 << 30 if left is None else left)
                return seen & (key <= position) if causal else seen

            case.write()
            self.check(name, case, case.attend(),
                       case.dense(lambda row: self.flex(row, score_mod, mask_mod)))

    def test_flex_attention_of_chunks(self):
        name = "flex_attention, local chunks"
        for case in self.cases(name, 5, block_size=4):
            chunk = case.rng.choice([4, 16, 64])
            mask_mod = lambda head, position, key: (key <= position) & (
                position // chunk == key // chunk)
            case.write()
            starts, lens, tables, key_start = OPS.local_virtual_batches(
                case.block_table, case.seq_lens, case.query_start_loc, chunk_size=chunk,
                num_tokens=case.num_tokens)
            got = OPS.paged_attention(case.q.to(case.device), *case.caches, case.block_table, lens,
                                      starts, table_row=tables, key_start=key_start)
            want = case.dense(lambda row: self.flex(row, lambda s, *_: s, mask_mod))
            self.check(name, case, got, want)

    def test_a_tree_by_an_explicit_mask(self):
        name = "SDPA, token trees"
        for case in self.cases(name, 6):
            tail_len, words = [], []
            parents = {}
            for row in case.rows():
                n = row.q.shape[0]
                tail_len.append(n)
                seen = torch.eye(n, dtype=torch.bool)
                for i in range(1, n):
                    parent = case.rng.randint(-1, i - 1)
                    if parent >= 0:
                        seen[i] |= seen[parent]
                parents[row.index] = seen
                words += [sum(1 << j for j in range(n) if seen[i, j]) for i in range(n)]
            case.layer = dict(tail_len=case.ints(tail_len),
                              tail_mask=torch.tensor(words, dtype=torch.int64, device=case.device))

            def oracle(row):
                mask = torch.ones(row.q.shape[0], row.k.shape[0], dtype=torch.bool)
                mask[:, row.k.shape[0] - row.q.shape[0]:] = parents[row.index]
                heads_first = [t.transpose(0, 1)[None] for t in (row.q, row.k, row.v)]
                out = F.scaled_dot_product_attention(*heads_first, attn_mask=mask[None, None],
                                                     enable_gqa=True)
                return (out[0].transpose(0, 1),
                        torch.logsumexp(masked(logits(row), mask), dim=-1).transpose(0, 1))

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_any_pattern_by_packed_masks(self):
        """Masks as FlashInfer packs them: query_len * seq_len bits a row, least significant first,
        each row's from a byte of its own; causal or not, paged and ragged."""
        name = "SDPA, packed masks"
        for case in self.cases(name, 8):
            masks, packed, offsets = {}, [], []
            for row in range(len(case.lens)):
                shape = (case.query_lens[row], case.lens[row])
                chance = case.rng.choice([0.02, 0.5, 0.9])
                mask = torch.rand(shape, generator=torch.Generator().manual_seed(
                    case.rng.getrandbits(40))) < chance
                offsets.append(len(packed))
                masks[row] = mask
                bits = mask.flatten().tolist()
                packed += [sum(bit << i for i, bit in enumerate(bits[at:at + 8]))
                           for at in range(0, len(bits), 8)]
            unmasked = case.rng.randrange(-1, len(case.lens))  # -1: all rows have a mask
            if unmasked >= 0:
                offsets[unmasked] = -1
            case.layer = dict(
                causal=case.rng.random() < 0.5,
                custom_mask=torch.tensor(packed + [255], dtype=torch.uint8, device=case.device),
                custom_mask_offset=torch.tensor(offsets, dtype=torch.int64, device=case.device))

            def oracle(row):
                mask = masks[row.index]
                if row.index == unmasked:
                    mask = visible(row, causal=case.layer["causal"])
                return finish(row, masked(logits(row), mask))

            want = case.dense(oracle)
            case.write()
            self.check(name, case, case.attend(), want)
            self.check(name + ", ragged", case, case.attend_ragged(), want)

    # Conventions of models and of other systems.

    def test_scales_and_slopes_of_heads_and_sequences(self):
        """A scale of each q head, and FlashAttention's slopes of [batch, heads]."""
        name = "scales per head, slopes per sequence"
        for case in self.cases(name, 8, heads=(4, 2)):
            generator = torch.Generator().manual_seed(case.rng.getrandbits(40))
            slopes = torch.rand(len(case.lens), 4 + case.rng.choice([0, 3]),
                                generator=generator)[:, :4]
            scales = 0.25 + torch.rand(4, generator=generator)
            case.layer = dict(alibi_slopes=slopes.to(case.device),
                              q_head_scales=scales.to(case.device))

            def oracle(row):
                scores = logits(row) * scales.double()[:, None, None]
                scores -= slopes[row.index].double()[:, None, None] * distances(row).abs()
                return finish(row, masked(scores, visible(row)))

            want = case.dense(oracle)
            case.write()
            self.check(name, case, case.attend(), want)
            self.check(name + ", ragged", case, case.attend_ragged(), want)

    def test_alibi_of_bloom(self):
        """As transformers builds it: slope * position of the key, for any number of heads, added
        to the scaled scores before the causal mask. It differs from a term by distance by a
        constant of the query, which the softmax cancels and lse does not."""
        name = "ALiBi, Bloom"
        for case in self.cases(name, 8, heads=None):
            heads = case.q_heads
            power = 2 ** math.floor(math.log2(heads))
            base = 2 ** -(2 ** -(math.log2(power) - 3))
            slopes = [base ** i for i in range(1, power + 1)]
            extra = 2 ** -(2 ** -(math.log2(2 * power) - 3))
            slopes += [extra ** i for i in range(1, 2 * (heads - power) + 1, 2)]
            slopes = torch.tensor(slopes, dtype=torch.float32)
            case.layer = dict(alibi_slopes=slopes.to(case.device))

            def oracle(row):
                key = torch.arange(row.k.shape[0]).double()
                alibi = slopes.double()[:, None, None] * key[None, None, :]
                scores = logits(row) + alibi
                out, lse = finish(row, masked(scores, visible(row)))
                return out, lse - row.positions.double()[:, None] * slopes.double()[None, :]

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_alibi_of_flash_attention(self):
        """-slope * |distance|, causal or not, added after the soft cap."""
        name = "ALiBi, FlashAttention"
        for case in self.cases(name, 10, heads=(4, 2)):
            rng = case.rng
            slopes = torch.tensor([rng.uniform(-0.1, 0.5) for _ in range(4)])
            cap = rng.choice([None, 1.5, 20.0])
            causal, left = rng.random() < 0.4, rng.choice([None, 20])
            case.layer = dict(alibi_slopes=slopes.to(case.device), causal=causal, softcap=cap,
                              window_left=left)

            def oracle(row):
                scores = logits(row)
                if cap:
                    scores = torch.tanh(scores / cap) * cap
                scores = masked(scores, visible(row, causal=causal, left=left))
                return finish(row, scores - slopes.double()[:, None, None] * distances(row).abs())

            want = case.dense(oracle)
            case.write()
            self.check(name, case, case.attend(), want)
            self.check(name + ", ragged", case, case.attend_ragged(), want)

    def test_softcap_of_gemma_2(self):
        """Scores times query_pre_attn_scalar ** -0.5, divided by the cap, tanh, times the cap, then
        the mask. A window of W tokens sees W - 1 keys before the query's own."""
        name = "softcap and window, Gemma 2"
        for case in self.cases(name, 8):
            scalar, cap, window = case.rng.choice([(256, 50.0, 16), (32, 5.0, None), (7, 1.0, 1)])
            case.layer = dict(scale=scalar ** -0.5, softcap=cap,
                              window_left=-1 if window is None else window - 1)

            def oracle(row):
                scores = logits(row, scalar ** -0.5) / cap
                scores = torch.tanh(scores) * cap
                seen = visible(row) if window is None else \
                    (distances(row) <= 0) & (-distances(row) < window)
                return finish(row, masked(scores, seen))

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_sinks_of_gpt_oss(self):
        """One more column of logits, of which the softmax knows and the product with V does not."""
        name = "sinks, gpt-oss"
        for case in self.cases(name, 8):
            sinks = torch.randn(case.q_heads, generator=torch.Generator().manual_seed(SEED)) * 3
            window = case.rng.choice([None, 12])
            case.layer = dict(sinks=sinks.to(case.device), window_left=window)

            def oracle(row):
                scores = masked(logits(row), visible(row, left=window))
                column = sinks.double()[:, None, None].expand(-1, row.q.shape[0], 1)
                combined = torch.cat([scores, column], dim=-1)
                combined = combined - combined.max(dim=-1, keepdim=True).values
                weights = torch.softmax(combined, dim=-1)[..., :-1]
                out = weights @ expand(row.v, row.q.shape[1])
                lse = torch.logsumexp(torch.cat([scores, column], dim=-1), dim=-1)
                return out.transpose(0, 1), lse.transpose(0, 1)

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_rotary_of_llama(self):
        """q * cos + rotate_half(q) * sin, with tables of position * theta ** (-2i / dim)."""
        name = "rotary, Llama"
        for case in self.cases(name, 5, (torch.float32,), dims=(64, 64)):
            theta, factor = case.rng.choice([(1e4, 1.0), (5e5, 4.0)])
            case.layer = dict(rope_theta=theta, rope_scale=factor)

            def rotate(x, positions):
                frequency = theta ** (-torch.arange(0, 64, 2).double() / 64)
                angle = positions.double()[:, None] / factor * frequency[None, :]
                angle = torch.cat([angle, angle], dim=-1)[:, None, :]
                halves = torch.cat([-x[..., 32:], x[..., :32]], dim=-1)
                return x * angle.cos() + halves * angle.sin()

            def oracle(row):
                k = rotate(row.k, torch.arange(row.k.shape[0]))
                turned = row._replace(q=rotate(row.q, row.positions), k=k)
                return finish(row, masked(logits(turned), visible(row)))

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_block_sparse_of_paged_attention(self):
        """vLLM's rule for the sparse block kb of a key and qb of the query: local if
        kb > qb - local_blocks, remote if (kb + offset) % vertical_stride == 0."""
        name = "block-sparse, vLLM"
        for case in self.cases(name, 12, decode=True, max_len=400, block_size=4):
            rng = case.rng
            local, stride = rng.randint(0, 4), rng.choice([0, 1, 2, 3, 8])
            size, step = rng.choice([4, 16, 64]), rng.choice([0, 1, 2, -1, -3])
            rank = rng.randint(0, 2)
            if stride <= 1:
                size = 6  # no multiple of the cache's; nothing depends on it
            case.layer = dict(block_sparse=[local, stride, size, step, rank])

            def oracle(row):
                seen = torch.zeros(case.q_heads, row.q.shape[0], row.k.shape[0], dtype=torch.bool)
                block = torch.arange(row.k.shape[0]) // size
                for h in range(case.q_heads):
                    kv_head = h // (case.q_heads // case.kv_heads)
                    offset = (rank * case.q_heads + h) * step + 1 if step >= 0 else \
                        (rank * case.kv_heads + kv_head) * -step + 1
                    for i, position in enumerate(row.positions.tolist()):
                        is_local = block > position // size - local
                        is_remote = (block + offset) % max(stride, 1) == 0
                        seen[h, i] = is_local | is_remote
                        seen[h, i, position + 1:] = False
                return finish(row, masked(logits(row), seen))

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    # Caches, written here element by element.

    def test_k_packed_cache_of_vllm(self):
        """split_kv_cache: [2, num_blocks, block_size * heads * dim] viewed as keys [num_blocks,
        heads, dim / x, block_size, x], x = 16 / element size, and values [num_blocks, heads, dim,
        block_size]."""
        name = "K-packed, vLLM's view"
        for case in self.cases(name, 6, layout="K-packed", dims=(64, 64)):
            x = 16 // case.dtype.itemsize
            flat = torch.full((2, case.num_blocks, case.block_size * case.kv_heads * 64), math.nan,
                              dtype=case.dtype)
            key = flat[0].view(case.num_blocks, case.kv_heads, 64 // x, -1, x)
            value = flat[1].view(case.num_blocks, case.kv_heads, 64, -1)
            for row in range(len(case.lens)):
                for i in range(case.lens[row]):
                    block, offset = case.place(row, i)
                    key[block, :, :, offset, :] = case.k[row][i].view(case.kv_heads, 64 // x, x)
                    value[block, :, :, offset] = case.v[row][i]
            want = case.dense(lambda row: finish(row, masked(logits(row), visible(row))))
            case.write()
            for got, expected in zip(case.caches, (key, value)):
                self.assertTrue(torch.equal(got.cpu().nan_to_num(7.0), expected.nan_to_num(7.0)))
            case.caches = [key.to(case.device), value.to(case.device)]
            self.check(name, case, case.attend(), want)

    def scales(self, case, form):
        """The scales of k and v as the operator takes them, and as [rows, kv heads] in float64."""
        rows, heads = len(case.lens), case.kv_heads
        if form == "host":
            own = [torch.tensor([0.02]), torch.tensor([0.5])]
        elif form == "head":
            own = [case.floats([0.02 * (h + 1) for h in range(heads)]),
                   case.floats([0.5 / (h + 1) for h in range(heads)])]
        else:
            own = [case.floats([[0.01 * (r + h + 1)] * 1 for h in range(heads) for r in range(rows)]
                               ).view(heads, rows).t() * f for f in (1.0, 4.0)]
        wide = [(s.cpu().double() if s.dim() == 2 else
                 s.cpu().double().expand(heads)[None].expand(rows, heads)) for s in own]
        return own, wide

    def test_fp8_by_the_dequantised_values(self):
        for kv_dtype, fp8 in FP8.items():
            for form in ("host", "head", "row and head"):
                name = f"{kv_dtype}, a scale by {form}"
                for case in self.cases(name, 4, kv_dtype=kv_dtype):
                    own, wide = self.scales(case, form)
                    case.layer = dict(k_scale=own[0], v_scale=own[1])
                    most = torch.finfo(fp8).max
                    stored = []
                    for tensors, scale in zip((case.k, case.v), wide):
                        stored.append([
                            (t.float() / s.float()[None, :, None]).clamp(-most, most).to(fp8)
                            for t, s in zip(tensors, scale)])
                    in_order = lambda side: torch.cat(side).view(torch.uint8)
                    if form == "row and head":  # written by the caller: a new token has no row
                        for row in range(len(case.lens)):
                            for i in range(case.lens[row]):
                                block, offset = case.place(row, i)
                                for cache, side in zip(case.caches, stored):
                                    cache[block, offset] = side[row][i].view(torch.uint8).to(
                                        case.device)
                    else:
                        case.write(k_scale=own[0], v_scale=own[1])
                        slots = case.slots().cpu()
                        for cache, side in zip(case.caches, stored):
                            bits = cache.view(-1, *cache.shape[2:]).cpu()[slots]
                            self.assertTrue(torch.equal(bits, in_order(side)))

                    def oracle(row):
                        k, v = (side[row.index].double() * scale[row.index][None, :, None]
                                for side, scale in zip(stored, wide))
                        dequantised = row._replace(k=k, v=v)
                        return finish(dequantised, masked(logits(dequantised), visible(row)))

                    want = case.dense(oracle)
                    self.check(name, case, case.attend(), want)
                    # The same keys without a cache, as bytes; and written as they are.
                    case.k, case.v = ([in_order([t]) for t in side] for side in stored)
                    self.check(name + ", ragged", case, case.attend_ragged(kv_dtype=kv_dtype), want)
                    for cache in case.caches:
                        cache.fill_(0xff)
                    case.write(**({} if form == "row and head" else
                                  dict(k_scale=own[0], v_scale=own[1])))
                    self.check(name + ", copied", case, case.attend(), want)

    def test_k_packed_fp8_cache_of_vllm(self):
        """vLLM takes x from the model's type, so it is 8 in a cache of bytes."""
        name = "K-packed fp8, x = 8"
        for case in self.cases(name, 4, (torch.bfloat16, torch.float32), layout="K-packed",
                               dims=(72, 64), kv_dtype="fp8_e4m3", x=8):
            key, value = (torch.full_like(cache, 0xff, device="cpu") for cache in case.caches)
            stored = [[t.to(FP8["fp8_e4m3"]) for t in side] for side in (case.k, case.v)]
            for row in range(len(case.lens)):
                for i in range(case.lens[row]):
                    block, offset = case.place(row, i)
                    k, v = (side[row][i].view(torch.uint8) for side in stored)
                    key[block, :, :, offset, :] = k.view(case.kv_heads, 9, 8)
                    value[block, :, :, offset] = v
            case.write()
            for got, expected in zip(case.caches, (key, value)):
                self.assertTrue(torch.equal(got.cpu(), expected))

            def oracle(row):
                exact = row._replace(k=stored[0][row.index].double(),
                                     v=stored[1][row.index].double())
                return finish(exact, masked(logits(exact), visible(row)))

            self.check(name, case, case.attend(), case.dense(oracle))

    def test_latent_cache_of_deepseek(self):
        """One head of keys: 512 latent dims, which are the values too, and 64 rotary ones."""
        name = "MLA, absorbed"
        for case in self.cases(name, 4, heads=(8, 1), dims=(576, 512)):
            scale = 192 ** -0.5
            latent = [k[..., :512].contiguous() for k in case.k]
            cache = case.caches[0]
            parts = [torch.cat(latent).to(case.device),
                     torch.cat([k[..., 512:] for k in case.k]).to(case.device)]
            if case.rng.random() < 0.5:  # two caches that are parts of one tensor
                OPS.write_kv(*parts, cache[..., :512], cache[..., 512:], case.slots())
            else:
                OPS.write_latent_kv(*(part[:, 0] for part in parts), cache[:, :, 0], case.slots())
            case.caches = [cache, cache[..., :512]]
            case.v = latent
            case.layer = dict(scale=scale)

            def oracle(row):
                key = torch.arange(row.k.shape[0])
                nope = torch.einsum("nhd,ld->hnl", row.q[..., :512], row.k[:, 0, :512])
                rope = torch.einsum("nhd,ld->hnl", row.q[..., 512:], row.k[:, 0, 512:])
                scores = masked((nope + rope) * scale, key[None, :] <= row.positions[:, None])
                return finish(row, scores)

            self.check(name, case, case.attend(), case.dense(oracle))

    def test_latent_and_rope_in_two_tensors_of_flashinfer(self):
        """ckv_cache and kpe_cache, each with a dtype and a scale of its own."""
        name = "MLA, two tensors"
        scale = 192 ** -0.5
        for rope_type in ("same", "fp8"):
            for kv_dtype in (None, "fp8_e4m3"):
                for case in self.cases(name, 3, heads=(8, 1), dims=(576, 512), kv_dtype=kv_dtype):
                    keys = torch.cat(case.k)[:, 0]
                    stored_types = [FP8["fp8_e4m3"] if kv_dtype else case.dtype,
                                    FP8["fp8_e4m3"] if rope_type == "fp8" else case.dtype]
                    parts, scales = [keys[:, :512], keys[:, 512:]], [0.25, 0.0625]
                    scales = [s if t != case.dtype else 1.0 for s, t in zip(scales, stored_types)]
                    stored = [(p.float() / s).clamp(-448, 448).to(t) if t != case.dtype else p
                              for p, s, t in zip(parts, scales, stored_types)]
                    shape = case.caches[0].shape[:2]
                    caches = [torch.full((*shape, p.shape[1]), 0xff, dtype=torch.uint8,
                                         device=case.device).repeat_interleave(
                                             t.itemsize, dim=2).view(t)
                              for p, t in zip(parts, stored_types)]
                    on_device = [case.floats([s]) for s in scales]
                    OPS.write_latent_kv(
                        *(p.to(case.device) for p in parts), caches[0], case.slots(),
                        scale=on_device[0], rope_cache=caches[1], rope_cache_scale=on_device[1])
                    exact = torch.cat([p.double() * s for p, s in zip(stored, scales)], dim=1)
                    lens = [k.shape[0] for k in case.k]
                    rows = list(exact.split(lens))
                    latent = caches[0].unsqueeze(2)
                    case.caches = [latent, latent]
                    case.layer = dict(scale=scale, k_scale=on_device[0], v_scale=on_device[0],
                                      rope_cache=caches[1].unsqueeze(2),
                                      rope_cache_scale=on_device[1])
                    case.v = [row[:, None, :512] for row in rows]

                    def oracle(row):
                        k = rows[row.index]
                        key = torch.arange(k.shape[0])
                        scores = torch.einsum("nhd,ld->hnl", row.q, k) * scale
                        own = row._replace(v=k[:, None, :512])
                        return finish(own, masked(scores, key[None, :] <= row.positions[:, None]))

                    self.check(name, case, case.attend(), case.dense(oracle))

    def test_merged_parts_by_one_softmax(self):
        """Parts over disjoint keys, each by float64, merged by the operator."""
        name = "merge of parts, one softmax"
        for case in self.cases(name, 6, (torch.float32, torch.bfloat16)):
            count = case.rng.choice([1, 2, 5, 64, 65])
            sinks = case.floats([0.5 * h for h in range(case.q_heads)])
            cuts = [[sorted(case.rng.randint(0, n) for _ in range(count - 1))] for n in case.lens]

            def parts_of(row):
                borders = [0] + cuts[row.index][0] + [row.k.shape[0]]
                scores = masked(logits(row), visible(row))
                results = []
                for begin, end in zip(borders, borders[1:]):
                    own = row._replace(v=row.v[begin:end])
                    results.append(finish(own, scores[..., begin:end]))
                return tuple(torch.stack(result, dim=1) for result in zip(*results))

            def whole(row):
                scores = masked(logits(row), visible(row))
                column = sinks.cpu().double()[:, None, None].expand(-1, row.q.shape[0], 1)
                out, _ = finish(row, scores)
                all_lse = torch.logsumexp(torch.cat([scores, column], dim=-1), dim=-1)
                share = torch.exp(torch.logsumexp(scores, dim=-1) - all_lse)
                return out * share.transpose(0, 1)[..., None], all_lse.transpose(0, 1)

            outs, lses = case.dense(parts_of)
            on_device = lambda parts, dtype: [part.to(dtype).to(case.device).contiguous()
                                              for part in parts.unbind(dim=1)]
            got = OPS.merge_states(on_device(outs, case.dtype), on_device(lses, torch.float32),
                                   sinks=sinks)
            self.check(name, case, got, case.dense(whole))


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    print("seed", SEED)
    program = unittest.main(exit=False)
    print_table()
    sys.exit(not program.result.wasSuccessful())
