"""torch.ops.reprise from Python: compares results with PyTorch in float64, and tests errors.

    operators_test.py LIBRARY [unittest arguments]

Every case runs on the CPU and, if there is one, on a GPU. Random cases print their seed.
"""

import math
import os
import random
import sys
import unittest

import torch

OPS = torch.ops.reprise
DEVICES = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
SEED = int(os.environ.get("REPRISE_SEED", "20240229"))


def ints(values, device):
    return torch.tensor(values, dtype=torch.int32, device=device)


class Batch:
    """Sequences with queries over a shuffled cache whose unused elements are NaN."""

    def __init__(self, lens, query_lens, device, *, heads=(4, 2), dims=(32, 32), block_size=4,
                 dtype=torch.float32, seed=0):
        generator = torch.Generator().manual_seed(SEED + seed)
        self.lens, self.query_lens = lens, query_lens
        self.block_size, self.device, self.dtype = block_size, device, dtype
        (self.q_heads, self.kv_heads), (self.dim_qk, self.dim_v) = heads, dims
        widths = [math.ceil(length / block_size) for length in lens]
        num_blocks = 1 + sum(widths)
        free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
        self.max_blocks = max(widths + [1])
        self.table = [[free.pop() for _ in range(width)] + [0] * (self.max_blocks - width)
                      for width in widths]
        draw = lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float64)
        self.keys = [draw(length, self.kv_heads, self.dim_qk).to(dtype) for length in lens]
        self.values = [draw(length, self.kv_heads, self.dim_v).to(dtype) for length in lens]
        self.q = draw(sum(query_lens), self.q_heads, self.dim_qk).to(dtype).to(device)
        shape = (num_blocks, block_size, self.kv_heads)
        self.k_cache = torch.full(shape + (self.dim_qk,), math.nan, dtype=dtype, device=device)
        self.v_cache = torch.full(shape + (self.dim_v,), math.nan, dtype=dtype, device=device)
        self.block_table = ints(self.table, device)
        self.seq_lens = ints(lens, device)
        starts = [0]
        for query_len in query_lens:
            starts.append(starts[-1] + query_len)
        self.query_start_loc = ints(starts, device)

    def slots(self):
        """Returns the slots of all keys, sequence by sequence."""
        slots = [row[i // self.block_size] * self.block_size + i % self.block_size
                 for row, length in zip(self.table, self.lens) for i in range(length)]
        return torch.tensor(slots, dtype=torch.int64, device=self.device)

    def write(self):
        if sum(self.lens) == 0:
            return
        OPS.write_kv(torch.cat(self.keys).to(self.device), torch.cat(self.values).to(self.device),
                     self.k_cache, self.v_cache, self.slots())

    def arguments(self):
        return (self.q, self.k_cache, self.v_cache, self.block_table, self.seq_lens,
                self.query_start_loc)

    def expected(self, window_left=None, causal=True):
        """Returns out [tokens, heads, dim_v] and lse in float64."""
        outs, lses, first = [], [], 0
        group = self.q_heads // self.kv_heads
        for keys, values, length, query_len in zip(self.keys, self.values, self.lens,
                                                   self.query_lens):
            q = self.q[first:first + query_len].double().cpu()
            first += query_len
            k = keys.double().repeat_interleave(group, dim=1)
            v = values.double().repeat_interleave(group, dim=1)
            scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(self.dim_qk)
            position = torch.arange(length - query_len, length)[:, None]
            key = torch.arange(length)[None, :]
            visible = torch.ones(query_len, length, dtype=torch.bool)
            if causal:
                visible &= key <= position
            if window_left is not None:
                visible &= key >= position - window_left
            scores = scores.masked_fill(~visible, -math.inf)
            lse = torch.logsumexp(scores, dim=-1)
            weights = torch.exp(scores - lse.clamp(min=-1e300)[..., None])
            outs.append(torch.einsum("hqk,khd->qhd", weights, v))
            lses.append(lse.transpose(0, 1))
        return torch.cat(outs), torch.cat(lses)


class OperatorsTest(unittest.TestCase):
    def close(self, got, want, tolerance):
        self.assertEqual(tuple(got.shape), tuple(want.shape))
        difference = (got.double().cpu() - want.double().cpu()).abs()
        same_infinity = got.double().cpu() == want.double().cpu()
        worst = difference.masked_fill(same_infinity, 0).max().item() if got.numel() else 0.0
        self.assertLessEqual(worst, tolerance)

    def test_paged_attention_is_attention(self):
        rng = random.Random(SEED)
        for device in DEVICES:
            for case in range(24):
                with self.subTest(device=device, case=case, seed=SEED):
                    rows = rng.randint(1, 5)
                    lens = [rng.randint(0, 70) for _ in range(rows)]
                    query_lens = [rng.randint(0, min(length, 6)) for length in lens]
                    if sum(query_lens) == 0:
                        continue
                    batch = Batch(lens, query_lens, device, seed=case,
                                  block_size=rng.choice([1, 4, 16]),
                                  heads=rng.choice([(4, 2), (5, 1), (3, 3)]))
                    batch.write()
                    window = rng.choice([None, 0, 9])
                    out, lse = OPS.paged_attention(*batch.arguments(), window_left=window)
                    want, want_lse = batch.expected(window_left=window)
                    self.close(out, want, 2e-5)
                    self.close(lse, want_lse, 2e-5)

    def test_out_form_fills_the_callers_tensors(self):
        for device in DEVICES:
            batch = Batch([9, 17], [2, 3], device)
            batch.write()
            out, lse = OPS.paged_attention(*batch.arguments())
            own, own_lse = torch.empty_like(out), torch.empty_like(lse)
            result = OPS.paged_attention.out(*batch.arguments(), out=own, lse=own_lse)
            self.assertEqual(result.data_ptr(), own.data_ptr())
            self.assertTrue(torch.equal(own, out))
            self.assertTrue(torch.equal(own_lse, lse))

    def test_hnd_and_packed_caches_are_views(self):
        for device in DEVICES:
            batch = Batch([9, 17], [1, 1], device)
            batch.write()
            want, _ = OPS.paged_attention(*batch.arguments())
            packed = torch.stack([batch.k_cache, batch.v_cache], dim=1)
            got, _ = OPS.paged_attention(batch.q, packed[:, 0], packed[:, 1],
                                         *batch.arguments()[3:])
            self.assertTrue(torch.equal(got, want))
            hnd = [cache.transpose(1, 2).contiguous() for cache in (batch.k_cache, batch.v_cache)]
            got, _ = OPS.paged_attention(batch.q, *hnd, *batch.arguments()[3:], layout="HND")
            self.assertTrue(torch.equal(got, want))

    def test_one_tile_schedule_serves_all_layers(self):
        for device in DEVICES:
            batch = Batch([300, 17, 0, 900], [1, 1, 0, 1], device)
            batch.write()
            want, want_lse = OPS.paged_attention(*batch.arguments(), max_query_len=1)
            plan = OPS.tile_schedule_plan(num_q_heads=4, num_kv_heads=2, head_dim_qk=32, head_dim_v=32,
                                     max_rows=4, max_tokens=3, max_query_len=1, max_seq_len=1024,
                                     dtype=torch.float32, device=device)
            workspace = OPS.tile_schedule(*batch.arguments()[3:], plan)
            self.assertGreaterEqual(workspace.numel(), plan[0].item())
            for _ in range(2):
                out, lse = OPS.paged_attention(*batch.arguments(), max_query_len=1,
                                               max_seq_len=1024, plan=plan, workspace=workspace)
                self.close(out, want, 2e-6)
                self.close(lse, want_lse, 2e-6)

    def test_ragged_attention_is_attention(self):
        for device in DEVICES:
            batch = Batch([9, 4], [9, 4], device, seed=7)
            k, v = torch.cat(batch.keys).to(device), torch.cat(batch.values).to(device)
            for causal in (True, False):
                out, lse = OPS.ragged_attention(batch.q, k, v, batch.query_start_loc,
                                                batch.query_start_loc, causal=causal)
                want, want_lse = batch.expected(causal=causal)
                self.close(out, want, 2e-5)
                self.close(lse, want_lse, 2e-5)

    def test_slots_of_minus_one_are_not_written(self):
        for device in DEVICES:
            cache = torch.full((3, 4, 2, 32), math.nan, device=device)
            k = torch.ones(2, 2, 32, device=device)
            slots = torch.tensor([5, -1], dtype=torch.int64, device=device)
            OPS.write_kv(k, 2 * k, cache, cache.clone(), slots)
            self.assertEqual(torch.isfinite(cache).sum().item(), 64)
            self.assertTrue(torch.equal(cache[1, 1], k[0]))

    def test_errors_are_exceptions_with_the_text_of_the_status(self):
        for device in DEVICES:
            batch = Batch([9, 17], [1, 1], device)
            q, k, v, table, lens, starts = batch.arguments()
            call = OPS.paged_attention
            cases = [
                (lambda: call(q[0], k, v, table, lens, starts), "q must be"),
                (lambda: call(q.double(), k, v, table, lens, starts), "q has the wrong dtype"),
                (lambda: call(q[..., ::2], k[..., ::2], v, table, lens, starts), "stride 1"),
                (lambda: call(q, k, v, table.long(), lens, starts), "block_table must be"),
                (lambda: call(q, k, v, table, lens[:1], starts), "expected [2], got [1]"),
                (lambda: call(q, k, v[:, :, :1], table, lens, starts), "v_cache must be"),
                (lambda: call(q, k, v, table, lens, starts, layout="DHN"), "DHN"),
                (lambda: call(q, k, v, table, lens, starts, softcap=-1.0), "softcap"),
                (lambda: call(q, k, v, table, lens, starts, window_left=-2), "window_left"),
                (lambda: call(q, k, v, table, lens, starts, window_left=1 << 40), "window_left"),
                (lambda: call(q, k, v, table, lens, starts, max_seq_len=-1), "max_seq_len"),
                (lambda: call(q, k, v, table, lens, starts, key_positions=[1]), "key_positions"),
                (lambda: call(q[:, :3], k, v, table, lens, starts), "num_q_heads"),
                (lambda: call(q, k, v, table, lens, starts, plan=lens), "plan and workspace"),
                (lambda: OPS.write_kv(q, q, k, v, lens), "slot_mapping"),
                (lambda: call(q, k.half(), v, table, lens, starts), "v_cache has the wrong dtype"),
                (lambda: call(q, k, v[..., ::2], table, lens, starts), "stride 1"),
                (lambda: call(q, k, v, table.t(), lens, starts), "block_table"),
                (lambda: call(q, k, v, table, lens, starts.float()), "query_start_loc must be"),
                (lambda: call(q, k, v, table, lens, starts, sinks=q[0, :, 0].half()), "sinks"),
                (lambda: call(q, k, v, table, lens, starts, sinks=torch.zeros(3, device=device)),
                 "sinks must be [num_q_heads] float32: expected [4], got [3]"),
                (lambda: call(q, k, v, table, lens, starts, tail_len=lens), "tail_mask"),
                (lambda: call(q, k, v, table, lens, starts, kv_dtype="fp8"), "kv_dtype"),
                (lambda: call(q, k, v, table, lens, starts, new_k=q), "new_k and new_v"),
                (lambda: call(q, k, v, table, lens, starts, out_scale=torch.ones(2)), "out_scale"),
                (lambda: call(q, k, v, table, lens, starts, products=torch.int32), "products"),
                (lambda: call(q, k, v, table, lens, starts, out_dtype=torch.float64),
                 "out has the wrong dtype"),
                (lambda: call(q, k, v, table, lens, starts, max_tier=-1), "max_tier"),
                (lambda: OPS.ragged_attention(q, q, q[:1], starts, starts), "v must be"),
                (lambda: OPS.merge_states([q], [q[..., 0].half()]), "lses"),
                (lambda: OPS.read_kv(k, v, starts, dtype=torch.float32), "slot_mapping"),
                (lambda: OPS.paged_attention.out(q, k, v, table, lens, starts, out=q[:1]), "out"),
                (lambda: OPS.paged_attention.out(q, k, v, table, lens, starts,
                                                 out=torch.empty_like(q).cpu().double()), "out"),
            ]
            if device == "cuda":
                cases.append((lambda: call(q, k, v, table.cpu(), lens, starts), "wrong device"))
                cases.append((lambda: call(q, k.cpu(), v.cpu(), table, lens, starts),
                              "k_cache has the wrong device"))
            for run, text in cases:
                with self.subTest(device=device, text=text):
                    with self.assertRaises(ValueError) as raised:
                        run()
                    self.assertIn(text, str(raised.exception))

    def test_tile_schedules_are_not_made_of_batches_that_lack_something(self):
        for device in DEVICES:
            batch = Batch([9, 17], [1, 1], device)
            plan = OPS.tile_schedule_plan(num_q_heads=4, num_kv_heads=2, head_dim_qk=32, head_dim_v=32,
                                     max_rows=2, max_tokens=2, max_query_len=1, max_seq_len=64,
                                     dtype=torch.float32, device=device)
            table, lens, starts = batch.arguments()[3:]
            cases = [(dict(tail_len=lens), "tail_mask, with tail_len"),
                     (dict(key_positions=[0, 0, 1]), "key_positions.world"),
                     (dict(key_positions=[0, 2, 1]), "query_positions, under context parallelism"),
                     (dict(max_seq_len=65), "max_seq_len of the batch must not exceed"),
                     (dict(num_tokens=3), "num_tokens of the batch must not exceed")]
            for keywords, text in cases:
                with self.subTest(device=device, text=text):
                    with self.assertRaises(ValueError) as raised:
                        OPS.tile_schedule(table, lens, starts, plan, **keywords)
                    self.assertIn(text, str(raised.exception))

    def test_what_was_written_is_read_back(self):
        for device in DEVICES:
            batch = Batch([9, 17], [1, 1], device)
            batch.write()
            slots = batch.slots().flip(0).contiguous()
            slots[3] = -1
            k, v = OPS.read_kv(batch.k_cache, batch.v_cache, slots, dtype=torch.float32)
            want_k, want_v = torch.cat(batch.keys).flip(0), torch.cat(batch.values).flip(0)
            want_k[3], want_v[3] = 0, 0
            self.assertTrue(torch.equal(k.cpu(), want_k))
            self.assertTrue(torch.equal(v.cpu(), want_v))
            own_k, own_v = torch.zeros_like(k), torch.zeros_like(v)
            OPS.read_kv.out(batch.k_cache, batch.v_cache, slots, k=own_k, v=own_v)
            self.assertTrue(torch.equal(own_k, k) and torch.equal(own_v, v))

    def test_blocks_are_copied_in_all_caches(self):
        for device in DEVICES:
            caches = [torch.randn(6, 4, 2, 8, device=device) for _ in range(3)]
            before = [cache.clone() for cache in caches]
            OPS.copy_blocks(caches, ints([[1, 4], [1, 5], [-1, 2], [2, 99]], device))
            for cache, old in zip(caches, before):
                self.assertTrue(torch.equal(cache[4], old[1]) and torch.equal(cache[5], old[1]))
                self.assertTrue(torch.equal(cache[:4], old[:4]))
            with self.assertRaises(ValueError) as raised:
                OPS.copy_blocks([caches[0], caches[1][:3]], ints([[1, 4]], device))
            self.assertIn("tensors[1] must have one row per block: expected 6, got 3",
                          str(raised.exception))

    def test_blocks_go_to_the_host_and_come_back(self):
        for device in DEVICES:
            cache = torch.randn(6, 4, 2, 8, device=device)
            host = torch.zeros(3, 4, 2, 8, pin_memory=device == "cuda")
            before = cache.clone()
            OPS.swap_blocks([cache], [host], ints([[1, 2], [5, 0]], "cpu"))
            if device == "cuda":
                torch.cuda.synchronize()
            self.assertTrue(torch.equal(host[2], before[1].cpu()))
            cache.fill_(math.nan)
            OPS.swap_blocks([host], [cache], ints([[2, 1], [0, 5]], "cpu"))
            self.assertTrue(torch.equal(cache[1], before[1]) and torch.equal(cache[5], before[5]))
            with self.assertRaises(ValueError) as raised:
                OPS.swap_blocks([cache], [host], ints([[1, 3]], "cpu"))
            self.assertIn("expected less than 6 and 3, got 1 and 3", str(raised.exception))

    def test_parts_of_the_keys_merge_to_the_whole(self):
        for device in DEVICES:
            batch = Batch([40], [3], device)
            k, v = batch.keys[0].to(device), batch.values[0].to(device)
            loc = batch.query_start_loc
            whole, whole_lse = OPS.ragged_attention(batch.q, k, v, loc, ints([0, 40], device),
                                                    causal=False)
            parts = [OPS.ragged_attention(batch.q, k[a:b].contiguous(), v[a:b].contiguous(), loc,
                                          ints([0, b - a], device), causal=False)
                     for a, b in ((0, 7), (7, 7), (7, 40))]
            out, lse = OPS.merge_states([part[0] for part in parts], [part[1] for part in parts])
            self.close(out, whole, 2e-6)
            self.close(lse, whole_lse, 2e-6)
            with self.assertRaises(ValueError):
                OPS.merge_states([whole], [whole_lse, whole_lse])

    def test_more_parts_than_a_launch_takes_are_merged(self):
        for device in DEVICES:
            for count in (64, 65, 130):
                outs = [torch.randn(3, 2, 8, device=device) for _ in range(count)]
                lses = [torch.randn(3, 2, device=device) for _ in range(count)]
                sinks = torch.randn(2, device=device)
                column = sinks.expand(1, 3, 2)
                want_lse = torch.logsumexp(torch.cat([torch.stack(lses), column]).double(), dim=0)
                weights = torch.exp(torch.stack(lses).double() - want_lse)
                want = (weights[..., None] * torch.stack(outs).double()).sum(dim=0)
                out, lse = OPS.merge_states(outs, lses, sinks=sinks)
                self.close(out, want, 2e-6)
                self.close(lse, want_lse, 2e-6)
                OPS.merge_states.out(outs, lses, sinks=sinks, out=outs[0], lse=lses[0])
                self.assertTrue(torch.equal(outs[0], out) and torch.equal(lses[0], lse))
            for odd in (outs[1].half(), outs[1].cpu().double(), outs[1][:2]):
                with self.assertRaises(ValueError):
                    OPS.merge_states(outs[:64] + [odd], lses[:65])
            with self.assertRaises(ValueError) as raised:
                OPS.merge_states([outs[1]] * 4097, [lses[1]] * 4097)
            self.assertIn("1 to 4096", str(raised.exception))

    def test_a_cache_may_have_no_blocks_if_no_row_has_keys(self):
        for device in DEVICES:
            for layout, shape in (("NHD", (0, 4, 2, 32)), ("HND", (0, 2, 4, 32))):
                cache = torch.zeros(shape, device=device)
                q, table = torch.randn(3, 4, 32, device=device), ints([[0], [0]], device)
                call = lambda lens: OPS.paged_attention(q, cache, cache, table, ints(lens, device),
                                                        ints([0, 1, 3], device), layout=layout)
                out, lse = call([0, 0])
                self.assertTrue(torch.equal(out, torch.zeros_like(out)))
                self.assertTrue(torch.equal(lse, torch.full_like(lse, -math.inf)))
                nowhere = torch.tensor([-1, -1, -1], dtype=torch.int64, device=device)
                OPS.write_kv(q[:, :2], q[:, :2], cache, cache, nowhere, layout=layout)
                if device == "cpu":
                    with self.assertRaises(ValueError) as raised:
                        call([0, 2])
                    self.assertIn("block_table[1]", str(raised.exception))

    def test_the_off_values_of_other_systems_are_off(self):
        for device in DEVICES:
            batch = Batch([90, 17], [1, 1], device)
            batch.write()
            want, want_lse = OPS.paged_attention(*batch.arguments())
            out, lse = OPS.paged_attention(*batch.arguments(), softcap=0.0, window_left=-1,
                                           window_right=-1, block_sparse=[0, 0, 7])
            self.assertTrue(torch.equal(out, want) and torch.equal(lse, want_lse))
            plan = OPS.tile_schedule_plan(num_q_heads=4, num_kv_heads=2, head_dim_qk=32, head_dim_v=32,
                                     max_rows=2, max_tokens=2, max_seq_len=96,
                                     dtype=torch.float32, device=device)
            map_of = lambda **window: OPS.tile_schedule(*batch.arguments()[3:], plan, num_tokens=2,
                                                   **window)
            out, _ = OPS.paged_attention(*batch.arguments(), max_query_len=1, max_seq_len=96,
                                         plan=plan, workspace=map_of(window_left=-1))
            self.close(out, want, 2e-6)
            with self.assertRaises(ValueError):
                map_of(window_left=-2)

    def test_the_caller_says_how_often_a_row_is_split(self):
        for device in DEVICES:
            batch = Batch([3000, 17], [1, 1], device)
            batch.write()
            want, want_lse = batch.expected()
            sizes = dict(num_q_heads=4, num_kv_heads=2, head_dim_qk=32, head_dim_v=32, max_rows=2,
                         max_tokens=2, max_seq_len=4096, dtype=torch.float32, device=device)
            needed = []
            for max_splits in (1, 2, 16):
                plan = OPS.tile_schedule_plan(**sizes, max_splits=max_splits)
                needed.append(plan[0].item())
                workspace = OPS.tile_schedule(*batch.arguments()[3:], plan)
                out, lse = OPS.paged_attention(*batch.arguments(), max_query_len=1,
                                               max_seq_len=4096, plan=plan, workspace=workspace)
                self.close(out, want, 2e-5)
                self.close(lse, want_lse, 2e-5)
            self.assertEqual(needed, sorted(set(needed)))  # room for more partial results
            for wrong in (0, 17):
                with self.assertRaises(ValueError) as raised:
                    OPS.tile_schedule_plan(**sizes, max_splits=wrong)
                self.assertIn("max_splits", str(raised.exception))

    def test_latents_are_written_from_their_two_parts(self):
        for device in DEVICES:
            for kv_dtype in (None, "fp8"):
                storage = torch.uint8 if kv_dtype else torch.bfloat16
                cache = torch.zeros(4, 8, 576, dtype=storage, device=device)
                fused = torch.randn(5, 600, device=device, dtype=torch.bfloat16)
                latent, rope = fused[:, :512], fused[:, 520:584]
                slots = torch.tensor([9, -1, 8, 31, 0], dtype=torch.int64, device=device)
                scale = torch.tensor([0.5], device=device) if kv_dtype else None
                OPS.write_latent_kv(latent, rope, cache, slots, kv_dtype=kv_dtype, scale=scale)
                want = torch.zeros(32, 576, dtype=storage, device=device)
                for token, slot in enumerate(slots.tolist()):
                    if slot < 0:
                        continue
                    key = torch.cat([latent[token], rope[token]])
                    want[slot] = key if not kv_dtype else \
                        (key.float() / 0.5).to(torch.float8_e4m3fn).view(torch.uint8)
                self.assertTrue(torch.equal(cache.view(32, 576), want))
            with self.assertRaises(ValueError) as raised:
                OPS.write_latent_kv(latent, rope[:, :60], cache, slots)
            self.assertIn("cache must be", str(raised.exception))

    def test_latents_and_rope_parts_are_written_to_tensors_of_their_own(self):
        for device in DEVICES:
            for types in ((torch.bfloat16, torch.bfloat16), (torch.uint8, torch.bfloat16),
                          (torch.uint8, torch.uint8)):
                cache = torch.zeros(4, 8, 512, dtype=types[0], device=device)
                rope_cache = torch.zeros(4, 8, 64, dtype=types[1], device=device)
                fused = torch.randn(5, 600, device=device, dtype=torch.bfloat16)
                latent, rope = fused[:, :512], fused[:, 520:584]
                slots = torch.tensor([9, -1, 8, 31, 0], dtype=torch.int64, device=device)
                scales = [torch.tensor([s], device=device) for s in (0.5, 0.125)]
                OPS.write_latent_kv(
                    latent, rope, cache, slots, kv_dtype="fp8" if types[0] == torch.uint8 else None,
                    scale=scales[0], rope_cache=rope_cache, rope_cache_scale=scales[1])
                for got, part, scale in ((cache, latent, 0.5), (rope_cache, rope, 0.125)):
                    want = torch.zeros_like(got).view(32, -1)
                    for token, slot in enumerate(slots.tolist()):
                        if slot < 0:
                            continue
                        key = part[token].float() / scale
                        want[slot] = key if got.dtype != torch.uint8 else \
                            key.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
                    self.assertTrue(torch.equal(got.view(32, -1), want))
            for wrong, message in ((dict(rope_cache=rope_cache[:, :, :60]), "rope_cache must be"),
                                   (dict(rope_cache=rope_cache[:3]), "rope_cache must be"),
                                   (dict(rope_cache_scale=scales[1]), "cache must be")):
                with self.assertRaises(ValueError) as raised:
                    OPS.write_latent_kv(latent, rope, cache, slots, kv_dtype="fp8", **wrong)
                self.assertIn(message, str(raised.exception))

    def test_rope_caches_that_do_not_fit_are_refused(self):
        for device in DEVICES:
            batch = Batch([5], [1], device, heads=(4, 1), dims=(48, 32))
            q, _, latent, table, lens, starts = batch.arguments()
            rope = torch.zeros(*latent.shape[:3], 16, device=device)
            attend = lambda latent=latent, v=None, **others: OPS.paged_attention(
                q, latent, latent if v is None else v, table, lens, starts, **others)
            for call, message in (
                    (lambda: attend(rope_cache=rope[:-1]), "rope_cache must be"),
                    (lambda: attend(rope_cache=rope[..., :8]), "q must be"),
                    (lambda: attend(rope_cache=rope.to(torch.int32)), "rope_cache has the wrong"),
                    (lambda: attend(rope_cache=rope, v=latent.clone()), "kv.v: expected kv.k"),
                    (lambda: attend(rope_cache=rope, rope_theta=1e4), "rotary: expected none"),
                    (lambda: attend(rope_cache=rope, new_k=q[:, :1], new_v=q[:, :1, :32]),
                     "new_k and new_v: expected none"),
                    (lambda: attend(rope_cache_scale=torch.ones(1)), "without rope_cache")):
                with self.assertRaises(ValueError) as raised:
                    call()
                self.assertIn(message, str(raised.exception))

    def test_chunks_become_virtual_rows(self):
        for device in DEVICES:
            table = torch.zeros(3, 9, dtype=torch.int32, device=device)
            rows = OPS.local_virtual_batches(table, ints([6, 17, 9], device),
                                             ints([0, 4, 14, 19], device), chunk_size=4,
                                             num_tokens=19)
            query_start_loc, seq_lens, table_row, key_start = [row.tolist() for row in rows]
            self.assertEqual(query_start_loc[:9], [0, 2, 4, 5, 9, 13, 14, 18, 19])
            self.assertEqual(seq_lens[:8], [4, 2, 4, 4, 4, 1, 4, 1])
            self.assertEqual(table_row[:8], [0, 0, 1, 1, 1, 1, 2, 2])
            self.assertEqual(key_start[:8], [0, 4, 4, 8, 12, 16, 4, 8])
            self.assertEqual(set(seq_lens[8:]), {0} if len(seq_lens) > 8 else set())
            with self.assertRaises(ValueError) as raised:
                OPS.local_virtual_batches(table, ints([6, 17, 9], device),
                                          ints([0, 4, 14, 19], device), chunk_size=0,
                                          num_tokens=19)
            self.assertIn("chunk_size", str(raised.exception))

    def test_a_step_advances_in_place(self):
        for device in DEVICES:
            table = ints([[7, 3], [5, 0]], device)
            seq_lens, table_row = ints([18, 5, 0], device), ints([0, 1, 0], device)
            starts, faults = ints([0, 1, 6, 6], device), ints([9, 9, 9], device)
            tokens, positions = torch.full((2, 6), 99, dtype=torch.int32, device=device)
            slots = torch.full((6,), 99, dtype=torch.int64, device=device)
            OPS.advance_step(ints([70, 71, 3], device), table, seq_lens, table_row, starts, tokens,
                             positions, slots, faults, block_size=16, num_blocks=8,
                             max_context_len=32)
            self.assertEqual(tokens.tolist(), [70, 71, 0, 0, 0, 0])
            self.assertEqual(positions.tolist(), [18, 5, 0, 0, 0, 0])
            self.assertEqual(slots.tolist(), [3 * 16 + 2, 5 * 16 + 5, -1, -1, -1, -1])
            self.assertEqual(seq_lens.tolist(), [19, 6, 0])
            self.assertEqual(starts.tolist(), [0, 1, 2, 2])
            self.assertEqual(faults.tolist(), [0, 0, 0])

    def test_a_packed_table_grows_with_the_rows(self):
        for device in DEVICES:
            table = ints([[7, 3], [5, 0], [6, 2]], device)
            seq_lens, table_row = ints([16, 5, 0, 30], device), ints([0, 1, 0, 2], device)
            starts, faults = ints([0, 1, 2, 2, 3], device), ints([0, 0, 0, 0], device)
            tokens, positions = torch.zeros((2, 4), dtype=torch.int32, device=device)
            slots = torch.zeros(4, dtype=torch.int64, device=device)
            indptr, indices, last = (torch.full((n,), 99, dtype=torch.int32, device=device)
                                     for n in (5, 7, 4))
            packed = dict(block_indptr=indptr, block_indices=indices, last_block_len=last)

            def advance(sampled, **packed):
                OPS.advance_step(ints(sampled, device), table, seq_lens, table_row, starts, tokens,
                                 positions, slots, faults, block_size=16, num_blocks=8,
                                 max_context_len=32, **packed)

            # Four rows: one begins a new block, one stays within its block, one is padded, and one
            # continues.
            advance([70, 71, 3, 72], **packed)
            self.assertEqual(seq_lens.tolist(), [17, 6, 0, 31])
            self.assertEqual(indptr.tolist(), [0, 2, 3, 3, 5])
            self.assertEqual(indices.tolist(), [7, 3, 5, 6, 2, 99, 99])
            self.assertEqual(last.tolist(), [1, 6, 0, 15])
            self.assertEqual(faults.tolist(), [0, 0, 0, 0])
            for _ in range(2):  # the last row reaches the end of its context
                advance([73, 74, 3, 75], **packed)
            self.assertEqual(seq_lens.tolist(), [19, 8, 0, 0])
            self.assertEqual(indptr.tolist(), [0, 2, 3, 3, 3])
            self.assertEqual(last.tolist(), [3, 8, 0, 0])
            self.assertNotEqual(faults.tolist()[3], 0)
            for name in packed:
                with self.assertRaises(Exception) as raised:
                    advance([73, 74, 3, 75], **{name: packed[name]})
                self.assertIn("must be given together", str(raised.exception))
                wrong = dict(packed, **{name: packed[name].long()})
                with self.assertRaises(Exception) as raised:
                    advance([73, 74, 3, 75], **wrong)
                self.assertIn(name, str(raised.exception))

    def test_new_keys_and_quantised_outputs_are_those_of_the_call(self):
        for device in DEVICES:
            batch = Batch([9, 17], [2, 3], device, dims=(32, 32))
            batch.write()
            want, want_lse = OPS.paged_attention(*batch.arguments())
            # The rows' new keys come from tensors; their positions in the cache are not read.
            new_k = torch.cat([keys[-n:] for keys, n in zip(batch.keys, batch.query_lens)])
            new_v = torch.cat([values[-n:] for values, n in zip(batch.values, batch.query_lens)])
            slots = batch.slots()
            for end, n in ((9, 2), (26, 3)):
                for slot in slots[end - n:end].tolist():
                    batch.k_cache.view(-1, 2, 32)[slot] = math.nan
                    batch.v_cache.view(-1, 2, 32)[slot] = math.nan
            out, lse = OPS.paged_attention(*batch.arguments(), new_k=new_k.to(device),
                                           new_v=new_v.to(device))
            self.close(out, want, 2e-6)
            self.close(lse, want_lse, 2e-6)
            batch.write()
            # The scale is a number on the host, or in device memory.
            for scale in (torch.tensor([0.02]), torch.tensor([0.05]).to(device)):
                out, _ = OPS.paged_attention(*batch.arguments(), out_scale=scale,
                                             out_dtype=torch.float8_e4m3fn)
                self.assertEqual(out.dtype, torch.float8_e4m3fn)
                # Half a unit in the last of three mantissa bits, for values of at most about 4.
                self.close(out.float() * scale.item(), want, 4 * 2**-4)
            scales = torch.full((5, 4, 2), math.nan, device=device)
            out, _ = OPS.paged_attention(*batch.arguments(), out_block_scales=scales,
                                         out_dtype=torch.float8_e4m3fn)
            self.close(out.float() * scales.repeat_interleave(16, dim=2), want, 4 * 2**-4)

    def test_products_and_shared_prefixes_are_planned(self):
        for device in DEVICES:
            batch = Batch([300, 170], [1, 1], device, dtype=torch.bfloat16, dims=(64, 64))
            batch.write()
            batch.block_table[1, :32] = batch.block_table[0, :32]  # 128 keys
            want, want_lse = OPS.paged_attention(*batch.arguments(), max_query_len=1)
            sizes = dict(num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64, max_rows=2,
                         max_tokens=2, max_query_len=1, max_seq_len=300, dtype=torch.bfloat16,
                         device=device)
            plan = OPS.tile_schedule_plan(**sizes, shared_prefix=True)
            prefix = dict(common_prefix_len=ints([128], device))
            workspace = OPS.tile_schedule(*batch.arguments()[3:], plan, **prefix)
            out, lse = OPS.paged_attention(*batch.arguments(), max_query_len=1, max_seq_len=300,
                                           plan=plan, workspace=workspace, **prefix)
            self.close(out, want, 1e-2)
            self.close(lse, want_lse, 1e-4)
            out, lse = OPS.paged_attention(*batch.arguments(), max_query_len=1,
                                           products=torch.float32, max_tier=1)
            self.close(out, want, 1e-2)
            self.close(lse, want_lse, 1e-4)

    def samples(self, device):
        """Returns calls of each operator: operator, arguments, keywords."""
        batch = Batch([9, 17], [2, 3], device)
        batch.write()
        k, v = torch.cat(batch.keys).to(device), torch.cat(batch.values).to(device)
        loc = batch.query_start_loc
        ragged = (batch.q, k, v, loc, ints([0, 9, 26], device))
        out, lse = OPS.paged_attention(*batch.arguments())
        pair = ints([[1, 2]], device)
        table, lens = ints([[7, 3], [5, 0]], device), ints([18, 5], device)
        steps = [torch.zeros(6, dtype=torch.int32, device=device) for _ in range(2)]
        return [
            (OPS.paged_attention.default, batch.arguments(), {}),
            (OPS.paged_attention.default, batch.arguments(),
             dict(window_left=4, softcap=9.0, sinks=torch.zeros(4, device=device),
                  out_dtype=torch.float8_e5m2)),
            (OPS.paged_attention.out, batch.arguments(), dict(out=out.clone(), lse=lse.clone())),
            (OPS.ragged_attention.default, ragged, dict(causal=False)),
            (OPS.ragged_attention.out, ragged, dict(out=out.clone())),
            (OPS.write_kv.default, (k, v, batch.k_cache, batch.v_cache, batch.slots()), {}),
            (OPS.write_latent_kv.default,
             (k[:, 0], v[:, 0], torch.zeros(8, 8, 64, device=device), batch.slots()), {}),
            (OPS.read_kv.default, (batch.k_cache, batch.v_cache, batch.slots()),
             dict(dtype=torch.float32)),
            (OPS.copy_blocks.default, ([batch.k_cache, batch.v_cache], pair), {}),
            (OPS.swap_blocks.default, ([batch.k_cache], [batch.v_cache], pair.cpu()), {}),
            (OPS.merge_states.default, ([out, out.clone()], [lse, lse.clone()]), {}),
            (OPS.local_virtual_batches.default, batch.arguments()[3:],
             dict(chunk_size=4, num_tokens=5)),
            (OPS.advance_step.default,
             (ints([70, 71], device), table, lens, ints([0, 1], device), ints([0, 1, 2], device),
              *steps, torch.zeros(6, dtype=torch.int64, device=device), ints([0, 0], device)),
             dict(block_size=16, num_blocks=8, max_context_len=32)),
            (OPS.advance_step.default,
             (ints([70, 71], device), table, lens.clone(), ints([0, 1], device),
              ints([0, 1, 2], device), *(step.clone() for step in steps),
              torch.zeros(6, dtype=torch.int64, device=device), ints([0, 0], device)),
             dict(block_size=16, num_blocks=8, max_context_len=32,
                  block_indptr=ints([0, 0, 0], device), block_indices=ints([0] * 4, device),
                  last_block_len=ints([0, 0], device))),
        ]

    def test_traces_make_what_the_operators_make(self):
        from torch._subclasses.fake_tensor import FakeTensorMode
        flatten = lambda result: [] if result is None else \
            [result] if isinstance(result, torch.Tensor) else list(result)
        for device in DEVICES:
            for operator, arguments, keywords in self.samples(device):
                with self.subTest(device=device, operator=str(operator)):
                    real = flatten(operator(*arguments, **keywords))
                    with FakeTensorMode(allow_non_fake_inputs=False) as mode:
                        fake = torch.utils._pytree.tree_map_only(
                            torch.Tensor, mode.from_tensor, (arguments, keywords))
                        traced = flatten(operator(*fake[0], **fake[1]))
                    self.assertEqual([(t.shape, t.dtype, t.device) for t in traced],
                                     [(t.shape, t.dtype, t.device) for t in real])

    def test_pytorchs_own_check_of_operators_passes(self):
        for device in DEVICES:
            for operator, arguments, keywords in self.samples(device):
                if any(a.alias_info for a in operator._schema.returns):
                    continue  # opcheck does not support out= forms
                with self.subTest(device=device, operator=str(operator)):
                    torch.library.opcheck(operator, arguments, keywords,
                                          test_utils=("test_schema", "test_autograd_registration",
                                                      "test_faketensor"))

    def test_a_step_is_traced_with_symbolic_sizes(self):
        from torch.fx.experimental.proxy_tensor import make_fx

        def step(q, k, v, k_cache, v_cache, table, lens, starts, slots):
            OPS.write_kv(k, v, k_cache, v_cache, slots)
            out, lse = OPS.paged_attention(q, k_cache, v_cache, table, lens, starts)
            return out * 2, lse

        for device in DEVICES:
            def inputs(lens, query_lens, seed):
                batch = Batch(lens, query_lens, device, seed=seed)
                return (batch.q, torch.cat(batch.keys).to(device),
                        torch.cat(batch.values).to(device), *batch.arguments()[1:], batch.slots())

            graph = make_fx(step, tracing_mode="symbolic")(*inputs([9, 17], [2, 3], 1))
            self.assertIn("reprise.paged_attention", graph.code)
            for seed, shape in enumerate((([9, 17], [2, 3]), ([30, 5, 8], [1, 5, 2]))):
                arguments = inputs(*shape, seed)
                # The operators write to the caches, so each call gets a copy.
                own = [a.clone() for a in arguments]
                for got, want in zip(graph(*arguments), step(*own)):
                    self.assertTrue(torch.equal(got, want))

    def test_a_step_is_compiled_as_one_graph(self):
        def step(q, k, v, k_cache, v_cache, table, lens, starts, slots):
            OPS.write_kv(k, v, k_cache, v_cache, slots)
            out, lse = OPS.paged_attention(q, k_cache, v_cache, table, lens, starts)
            return OPS.merge_states([out, out], [lse, lse])[0] + out

        compiled = torch.compile(step, backend="aot_eager", fullgraph=True, dynamic=True)
        for device in DEVICES:
            for seed, shape in enumerate((([9, 17], [2, 3]), ([30, 5, 8], [1, 5, 2]))):
                batch = Batch(*shape, device, seed=seed)
                arguments = (batch.q, torch.cat(batch.keys).to(device),
                             torch.cat(batch.values).to(device), *batch.arguments()[1:],
                             batch.slots())
                own = [a.clone() for a in arguments]
                self.assertTrue(torch.equal(compiled(*arguments), step(*own)))
                self.assertTrue(torch.equal(batch.k_cache.nan_to_num(), own[3].nan_to_num()))

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_no_out_form_allocates_eagerly_or_in_a_graph(self):
        for mode in ("", "deterministic", "shared", "ragged", "fp8"):
            with self.subTest(mode=mode):
                self.allocates_nothing(mode)

    def allocates_nothing(self, mode):
        batch = Batch([300, 170], [1, 2], "cuda", dtype=torch.bfloat16, dims=(64, 64))
        batch.write()
        slots = batch.slots()
        k, v = torch.cat(batch.keys).cuda(), torch.cat(batch.values).cuda()
        k_cache, v_cache, cache = batch.k_cache, batch.v_cache, {}
        if mode == "fp8":
            k_cache, v_cache = (torch.zeros_like(c, dtype=torch.uint8)
                                for c in (batch.k_cache, batch.v_cache))
            cache = dict(kv_dtype="fp8_e4m3")
        bounds = dict(max_query_len=2, max_seq_len=512)
        plan = OPS.tile_schedule_plan(num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64,
                                 max_rows=2, max_tokens=3, **bounds, dtype=torch.bfloat16,
                                 deterministic=mode == "deterministic",
                                 shared_prefix=mode == "shared")
        key_start = ints([0, 300, 470], "cuda")
        rows = (batch.query_start_loc, key_start)
        build = OPS.ragged_tile_schedule if mode == "ragged" else OPS.tile_schedule
        arrays = rows if mode == "ragged" else batch.arguments()[3:]
        workspace = build(*arrays, plan)
        out, lse = torch.empty_like(batch.q), torch.empty(3, 4, device="cuda")
        merged, merged_lse = torch.empty_like(out), torch.empty_like(lse)
        read = torch.empty(470, 2, 64, dtype=torch.bfloat16, device="cuda")
        read_v = torch.empty_like(read)

        def step():
            OPS.write_kv(k, v, k_cache, v_cache, slots, **cache)
            OPS.read_kv.out(k_cache, v_cache, slots, **cache, k=read, v=read_v)
            build.out(*arrays, plan, workspace=workspace)
            keywords = dict(**bounds, plan=plan, workspace=workspace, out=out, lse=lse)
            if mode == "ragged":
                OPS.ragged_attention.out(batch.q, k, v, *rows, **keywords)
            else:
                OPS.paged_attention.out(batch.q, k_cache, v_cache, *arrays, **cache, **keywords)
            OPS.merge_states.out([out, out], [lse, lse], out=merged, lse=merged_lse)

        def counts():
            stats = torch.cuda.memory_stats()
            return [stats[key] for key in ("allocation.all.allocated", "segment.all.allocated",
                                           "num_alloc_retries")]

        step()
        torch.cuda.synchronize()
        want, before = [out.clone(), lse.clone(), merged.clone()], counts()
        before = counts()
        step()
        self.assertEqual(counts(), before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            before = counts()
            step()
            self.assertEqual(counts(), before)
        for tensor in (out, lse, merged):
            tensor.fill_(math.nan)
        graph.replay()
        self.assertEqual(counts(), before)
        for got, expected in zip((out, lse, merged), want):
            self.assertTrue(torch.equal(got, expected))
        self.close(merged, out, 1e-2)  # merges the same keys twice

    @unittest.skipUnless(torch.cuda.is_available(), "needs a GPU")
    def test_out_forms_are_captured_and_allocate_nothing(self):
        batch = Batch([300, 17], [1, 1], "cuda", dtype=torch.bfloat16, dims=(64, 64))
        batch.write()
        plan = OPS.tile_schedule_plan(num_q_heads=4, num_kv_heads=2, head_dim_qk=64, head_dim_v=64,
                                 max_rows=2, max_tokens=2, max_query_len=1, max_seq_len=512,
                                 dtype=torch.bfloat16)
        workspace = OPS.tile_schedule(*batch.arguments()[3:], plan)
        out = torch.empty_like(batch.q)

        def step():
            OPS.tile_schedule.out(*batch.arguments()[3:], plan, workspace=workspace)
            OPS.paged_attention.out(*batch.arguments(), max_query_len=1, max_seq_len=512,
                                    plan=plan, workspace=workspace, out=out)

        step()
        torch.cuda.synchronize()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        step()
        self.assertEqual(torch.cuda.memory_stats()["allocation.all.allocated"], before)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        for lens in ([300, 17], [5, 1], [299, 0]):
            batch.seq_lens.copy_(ints(lens, "cuda"))
            out.fill_(math.nan)
            graph.replay()
            want, _ = OPS.paged_attention(*batch.arguments())
            self.close(out, want, 1e-2)


if __name__ == "__main__":
    torch.ops.load_library(sys.argv.pop(1))
    print("seed", SEED)
    unittest.main()
