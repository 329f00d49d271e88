"""Random batches for the operators' oracles, the maths that oracles share, and the table of errors.

Every oracle runs on the CPU and, if there is one, on a GPU: there eagerly, and again in a graph that
was captured over other contents of the same tensors. Batches have shuffled blocks, rows without
queries or keys, and NaN in all memory that is not part of a sequence. At the end a table gives the
number of batches and the largest error of each oracle. REPRISE_SEED chooses the batches.
"""

import collections
import math
import os
import random
import sys
import unittest

import torch
import torch.nn.functional as F

OPS = torch.ops.reprise
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SEED = int(os.environ.get("REPRISE_SEED", "20240301"))
FP8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}

# Maximum absolute errors for inputs of unit variance: of out, and of lse, which is always float32.
# The oracle uses the inputs exactly, so the errors come from rounding weights and results.
BOUNDS = {torch.float32: (2e-5, 5e-5), torch.float16: (4e-3, 1e-3), torch.bfloat16: (3e-2, 2e-3)}

# One row of a batch, float64 on the CPU: q [n, q heads, dim], k and v [len, kv heads, dim], the
# positions of the queries [n], and the index of the row.
Row = collections.namedtuple("Row", "q k v positions index")

# (oracle, device, dtype) -> [cases, worst error of out, worst error of lse]
worst = collections.OrderedDict()


def note(oracle, device, dtype, out_error, lse_error):
    entry = worst.setdefault((oracle, device, dtype), [0, 0.0, 0.0])
    entry[0] += 1
    entry[1] = max(entry[1], out_error)
    entry[2] = max(entry[2], lse_error)


def print_table():
    print(f"\n{'oracle':<45} {'device':<6} {'dtype':<9} {'cases':>5}  {'out':>8} {'bound':>8}"
          f"  {'lse':>8} {'bound':>8}")
    for (oracle, device, dtype), (cases, out, lse) in worst.items():
        bounds = BOUNDS[dtype]
        print(f"{oracle:<45} {device:<6} {str(dtype)[6:]:<9} {cases:>5}  {out:8.1e} "
              f"{bounds[0]:8.1e}  {lse:8.1e} {bounds[1]:8.1e}")


class Call:
    """An operator with its arguments. Its results are compared: the tensors in `written`, if given,
    or the return values."""

    def __init__(self, operator, *arguments, written=None, **keywords):
        self.operator, self.arguments, self.keywords = operator, arguments, keywords
        self.written = written

    def __call__(self):
        returned = self.operator(*self.arguments, **self.keywords)
        return returned if self.written is None else self.written

    def inputs(self):
        """Returns the GPU tensors among the arguments, each with its name, or ""."""
        names = [argument.name for argument in self.operator.default._schema.arguments]
        for name, value in [*zip(names, self.arguments), *self.keywords.items()]:
            for tensor in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
                    yield name, tensor

    def replayed(self):
        """Returns the results of a graph that was captured while the tensors held another batch."""
        kept = [(tensor, tensor.clone()) for _, tensor in self.inputs()]
        for (name, tensor), (_, contents) in zip(self.inputs(), kept):
            tensor.copy_(another(name, contents))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self()
        graph.replay()  # over the other batch
        for tensor, contents in kept:
            tensor.copy_(contents)
        graph.replay()
        return results


def run_both(call):
    """Returns the results of the call. A replay must be bitwise identical."""
    before = [tensor.clone() for tensor in call.written or ()]
    results = call()
    if any(tensor.is_cuda for tensor in results):
        eager = [tensor.clone() for tensor in results]
        for tensor, contents in zip(call.written or (), before):
            tensor.copy_(contents)
        for got, expected in zip(call.replayed(), eager):
            assert torch.equal(got.view(torch.uint8), expected.view(torch.uint8)), call.operator
    return results


def another(name, contents):
    """Returns other contents for an argument: rows, tokens, blocks and heads in reverse order."""
    if name.endswith("start_loc"):
        return contents[-1] - contents.flip(0)
    if contents.numel() == 1 and contents.is_floating_point():
        return contents * 2
    if contents.itemsize == 1:  # fp8 tensors cannot be flipped
        return contents.view(torch.uint8).flip(0).view(contents.dtype)
    return contents.flip(0)


class Case:
    """A random paged batch on `device`. `layout` is the layout of the cache tensors."""

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
        self.layer = {}  # arguments of the operator other than the batch
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
        """Returns the block and the offset of a row's key i."""
        return self.table[row][i // self.block_size], i % self.block_size

    def slots(self):
        places = [self.place(row, i) for row in range(len(self.lens))
                  for i in range(self.lens[row])]
        slots = [block * self.block_size + offset for block, offset in places]
        return torch.tensor(slots, dtype=torch.int64, device=self.device)

    def write(self, **scales):
        run_both(Call(OPS.write_kv, torch.cat(self.k).to(self.device),
                      torch.cat(self.v).to(self.device), *self.caches, self.slots(),
                      **self.cache_arguments(), **scales, written=self.caches))

    def attend(self, q=None, **keywords):
        q = self.q if q is None else q
        return Call(OPS.paged_attention, q.to(self.device), *self.caches, self.block_table,
                    self.seq_lens, self.query_start_loc, **self.cache_arguments(), **self.layer,
                    **keywords)

    def attend_ragged(self, **keywords):
        starts = self.ints([sum(self.lens[:i]) for i in range(len(self.lens) + 1)])
        return Call(OPS.ragged_attention, self.q.to(self.device), torch.cat(self.k).to(self.device),
                    torch.cat(self.v).to(self.device), self.query_start_loc, starts, **self.layer,
                    **keywords)

    def rows(self):
        first = 0
        for i, (length, query_len) in enumerate(zip(self.lens, self.query_lens)):
            q = self.q[first:first + query_len].double()
            first += query_len
            yield Row(q, self.k[i].double(), self.v[i].double(),
                      torch.arange(length - query_len, length), i)

    def dense(self, attend):
        """Returns out [tokens, q heads, dim_v] and lse: attend(row) for each row with queries."""
        results = [attend(row) for row in self.rows() if row.q.shape[0] > 0]
        return tuple(torch.cat(parts) for parts in zip(*results))


def expand(kv, q_heads):
    """[len, kv heads, dim] as [q heads, len, dim]."""
    return kv.repeat_interleave(q_heads // kv.shape[1], dim=1).transpose(0, 1)


def visible(row, *, causal=True, left=None, right=None):
    """Returns [n, len] bool: the keys that each query attends."""
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
    """Returns [n, len]: the key's position minus the query's position."""
    return (torch.arange(row.k.shape[0])[None, :] - row.positions[:, None]).double()


def logits(row, scale=None):
    """[q heads, n, len], scaled."""
    k = expand(row.k, row.q.shape[1])
    return row.q.transpose(0, 1) @ k.transpose(1, 2) * (scale or row.q.shape[2] ** -0.5)


def finish(row, scores):
    """Softmax over scores [q heads, n, len] by torch.softmax, lse by torch.logsumexp."""
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.softmax(scores, dim=-1).nan_to_num(0.0)  # NaN: a query that attends no key
    out = weights @ expand(row.v, row.q.shape[1])
    return out.transpose(0, 1), lse.transpose(0, 1)


def masked(scores, seen):
    return scores.masked_fill(~seen, -math.inf)


def sdpa(row, seen, scale=None):
    """scaled_dot_product_attention over the keys in the mask `seen`, [n, len], and its lse."""
    heads_first = [t.transpose(0, 1)[None] for t in (row.q, row.k, row.v)]
    out = F.scaled_dot_product_attention(*heads_first, attn_mask=seen[None, None], scale=scale,
                                         enable_gqa=True)
    lse = torch.logsumexp(masked(logits(row, scale), seen), dim=-1)
    return out[0].transpose(0, 1), lse.transpose(0, 1)


def distance_to_rounding(result, exact):
    """Returns the distance of each exact value from the values that round to the fp8 result, to
    nearest and with saturation: 0 if the exact value rounds to the result."""
    codes = torch.arange(256, dtype=torch.uint8).view(result.dtype).double()
    values = codes[codes.isfinite()].unique()  # ascending
    borders = (values[1:] + values[:-1]) / 2
    infinity = torch.tensor([math.inf], dtype=torch.float64)
    index = torch.searchsorted(values, result.double())
    low, high = torch.cat([-infinity, borders])[index], torch.cat([borders, infinity])[index]
    return torch.maximum(low - exact, exact - high).clamp(min=0)


class OracleTest(unittest.TestCase):
    def check(self, oracle, case, call, want, out_scale=None):
        """Compares out and lse of the call, and on a GPU also of a replay. `out_scale` divides
        fp8 results: one number or [tokens, heads, blocks of columns]."""
        self.compare(oracle, case, case.device, call(), want, out_scale)
        if case.device == "cuda":
            self.compare(oracle, case, "graph", call.replayed(), want, out_scale)

    def compare(self, oracle, case, device, got, want, out_scale):
        errors = []
        for result, expected, bound in zip(got, want, BOUNDS[case.dtype]):
            self.assertEqual(tuple(result.shape), tuple(expected.shape))
            result, expected = result.cpu(), expected.double()
            self.assertFalse(result.double().isnan().any().item(), f"NaN, {device}: {case}")
            if result.dtype in FP8.values():
                scale = out_scale.cpu().double()
                if scale.dim() == 3:
                    scale = scale.repeat_interleave(result.shape[2] // scale.shape[2], dim=2)
                difference = distance_to_rounding(result, expected / scale) * scale
            else:
                result = result.double()
                difference = (result - expected).abs().masked_fill(result == expected, 0)
            errors.append(difference.max().item() if difference.numel() else 0.0)
            self.assertLessEqual(errors[-1], bound, f"{device}: {case}")
        note(oracle, device, case.dtype, *errors)

    def cases(self, oracle, count, dtypes=(torch.float32, torch.bfloat16), **options):
        """Yields `count` cases for each device and dtype."""
        for device in DEVICES:
            for dtype in dtypes:
                for i in range(count):
                    yield Case(f"{oracle} {i}", device, dtype, **options)


def main():
    torch.ops.load_library(sys.argv.pop(1))
    print("seed", SEED)
    program = unittest.main(exit=False)
    print_table()
    sys.exit(not program.result.wasSuccessful())
