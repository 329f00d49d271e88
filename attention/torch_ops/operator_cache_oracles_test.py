"""Compares torch.ops.reprise with float64 computations of the dequantised values: over caches that
the test writes element by element, over quantised queries, keys and outputs, and over parts of the
keys.

    operator_cache_oracles_test.py LIBRARY [unittest arguments]

docs/operators.md names the conventions, operator_cases.py says what a case is.
"""

import copy
import math

import torch

from operator_cases import (BOUNDS, FP8, OPS, Call, OracleTest, finish, logits, main, masked,
                            run_both, visible)


class OperatorCacheOraclesTest(OracleTest):
    # Caches that the test writes element by element.

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
                    if form == "row and head":  # by this test: a new token has no row
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
                    # The same keys without a cache: as uint8, and in their own dtype.
                    case.k, case.v = ([in_order([t]) for t in side] for side in stored)
                    self.check(name + ", ragged", case, case.attend_ragged(kv_dtype=kv_dtype), want)
                    for cache in case.caches:
                        cache.fill_(0xff)
                    case.write(**({} if form == "row and head" else
                                  dict(k_scale=own[0], v_scale=own[1])))
                    self.check(name + ", copied", case, case.attend(), want)

    def test_k_packed_fp8_cache_of_vllm(self):
        """A uint8 cache with the x of 16-bit elements, 8."""
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

    # Queries, new keys and outputs of a call.

    def test_fp8_outputs_by_pytorchs_cast(self):
        """The float64 result divided by a static scale per tensor, rounded to fp8 like PyTorch,
        with saturation. The error is the distance from the values that round to the same result."""
        for out_dtype, fp8 in FP8.items():
            name = f"{out_dtype} out, static scale"
            for case in self.cases(name, 6):
                number = case.rng.choice([0.002, 0.02, 0.3])  # the first number saturates e4m3
                scale = case.floats([number]) if case.rng.random() < 0.5 else torch.tensor([number])
                want = case.dense(lambda row: finish(row, masked(logits(row), visible(row))))
                case.write()
                self.check(name, case, case.attend(out_dtype=fp8, out_scale=scale), want, scale)
                self.check(name + ", ragged", case,
                           case.attend_ragged(out_dtype=fp8, out_scale=scale), want, scale)

    def test_fp8_outputs_with_a_scale_per_block(self):
        """Each block of columns is divided by its largest value / 448, as in DeepSeek's fp8."""
        name = "fp8_e4m3 out, scales of blocks"
        for case in self.cases(name, 6, dims=(64, 64)):
            block = case.rng.choice([16, 32, 64])
            scales = torch.full((case.num_tokens, case.q_heads, 64 // block), math.nan,
                                device=case.device)
            want = case.dense(lambda row: finish(row, masked(logits(row), visible(row))))
            case.write()
            call = case.attend(out_dtype=FP8["fp8_e4m3"], out_block_scales=scales)
            self.check(name, case, call, want, scales)
            largest = want[0].unflatten(2, (-1, block)).abs().amax(dim=3).clamp(min=1e-10)
            error = (scales.cpu().double() * 448 - largest).abs().max().item()
            self.assertLessEqual(error, BOUNDS[case.dtype][0], str(case))

    def test_fp8_queries_by_the_dequantised_values(self):
        """q = stored * q_scale, per tensor, per kv head, or per sequence and kv head; also with a
        scale per q head."""
        for q_dtype, fp8 in FP8.items():
            for kv_dtype in (None, "fp8_e4m3"):
                name = f"{q_dtype} q, cache of {kv_dtype or 'bfloat16'}"
                for case in self.cases(name, 6, (torch.bfloat16,), kv_dtype=kv_dtype):
                    rows, heads = len(case.lens), case.kv_heads
                    generator = torch.Generator().manual_seed(case.rng.getrandbits(40))
                    shape = case.rng.choice([(1,), (heads,), (rows, heads)])
                    scale = 0.25 + torch.rand(shape, generator=generator)
                    case.layer = dict(q_scale=scale.to(case.device))
                    factors = scale.double().expand(rows, heads).repeat_interleave(
                        case.q_heads // heads, dim=1)  # [rows, q heads]
                    if case.rng.random() < 0.5:
                        own = 0.5 + torch.rand(case.q_heads, generator=generator)
                        case.layer["q_head_scales"] = own.to(case.device)
                        factors = factors * own.double()
                    if kv_dtype is not None:  # values that the cache can represent
                        case.k, case.v = ([t.to(FP8[kv_dtype]).to(case.dtype) for t in side]
                                          for side in (case.k, case.v))
                    stored = case.q.to(fp8)
                    case.q = stored.double()

                    def oracle(row):
                        exact = row._replace(q=row.q * factors[row.index][None, :, None])
                        return finish(exact, masked(logits(exact), visible(row)))

                    want = case.dense(oracle)
                    case.write()
                    self.check(name, case, case.attend(stored), want)

    def test_new_keys_of_the_call(self):
        """A row's last keys come from new_k and new_v, exact even if the cache is quantised. Their
        places in the cache are not read, and the cache's scales do not apply to them."""
        for kv_dtype in (None, "fp8_e4m3"):
            name = f"new keys, cache of {kv_dtype or 'q'}"
            for case in self.cases(name, 6, kv_dtype=kv_dtype):
                new = [torch.cat([t[length - n:] for t, length, n in
                                  zip(side, case.lens, case.query_lens)]) for side in
                       (case.k, case.v)]
                scales = {}
                if kv_dtype is not None:
                    scales = dict(k_scale=case.floats([0.125]), v_scale=case.floats([0.25]))
                    for side, scale in ((case.k, 0.125), (case.v, 0.25)):
                        for t, length, n in zip(side, case.lens, case.query_lens):
                            old = t[:length - n]
                            old.copy_(((old / scale).to(FP8[kv_dtype])).to(case.dtype) * scale)
                case.write(**scales)
                case.layer = scales
                for row, (length, n) in enumerate(zip(case.lens, case.query_lens)):
                    for i in range(length - n, length):
                        for cache in case.caches:
                            cache[case.place(row, i)] = math.nan if kv_dtype is None else 0xff
                unused = lambda t: torch.cat([t, torch.full_like(t[:1], math.nan)])
                call = case.attend(**{key: unused(t).to(case.device)
                                      for key, t in zip(("new_k", "new_v"), new)})
                self.check(name, case, call,
                           case.dense(lambda row: finish(row, masked(logits(row), visible(row)))))

    def test_latent_cache_of_deepseek(self):
        """One head of keys: 512 latent dims, which are also the values, and 64 rotary dims."""
        name = "MLA, absorbed"
        for case in self.cases(name, 4, heads=(8, 1), dims=(576, 512)):
            scale = 192 ** -0.5
            latent = [k[..., :512].contiguous() for k in case.k]
            cache = case.caches[0]
            parts = [torch.cat(latent).to(case.device),
                     torch.cat([k[..., 512:] for k in case.k]).to(case.device)]
            if case.rng.random() < 0.5:  # two caches that are views of one tensor
                run_both(Call(OPS.write_kv, *parts, cache[..., :512], cache[..., 512:],
                              case.slots(), written=[cache]))
            else:
                run_both(Call(OPS.write_latent_kv, *(part[:, 0] for part in parts),
                              cache[:, :, 0], case.slots(), written=[cache]))
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
        """ckv_cache and kpe_cache, with separate dtypes and scales."""
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
                    run_both(Call(
                        OPS.write_latent_kv, *(p.to(case.device) for p in parts), caches[0],
                        case.slots(), scale=on_device[0], rope_cache=caches[1],
                        rope_cache_scale=on_device[1], written=caches))
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
        """Parts over disjoint keys, computed in float64 and merged by the operator."""
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
            call = Call(OPS.merge_states, on_device(outs, case.dtype),
                        on_device(lses, torch.float32), sinks=sinks)
            self.check(name, case, call, case.dense(whole))

    def test_ranks_of_vllms_context_parallel(self):
        """Rank r of `world` has every world-th run of `interleave` keys, with their positions. The
        merged parts of all ranks are the attention over all keys."""
        name = "keys of ranks"
        for case in self.cases(name, 6, heads=(4, 2)):
            rng = case.rng
            world, interleave = rng.choice([(2, 1), (3, 1), (2, 16), (4, 5)])
            left = rng.choice([None, 30])
            slopes = torch.tensor([0.5, 0.25, 0.02, 0.1]) if rng.random() < 0.5 else None

            def part(row, positions, k, v):
                distance = (row.positions[:, None] - positions[None, :]).double()
                own = row._replace(k=k.double(), v=v.double())
                scores = logits(own)
                if slopes is not None:
                    scores = scores - slopes.double()[:, None, None] * distance.abs()
                seen = distance >= 0
                return finish(own, masked(scores, seen if left is None else
                                          seen & (distance <= left)))

            parts = []
            for rank in range(world):
                own = copy.copy(case)
                places = [torch.tensor([p for p in range(length)
                                        if p // interleave % world == rank], dtype=torch.long)
                          for length in case.lens]
                own.k, own.v = ([t[at] for t, at in zip(side, places)]
                                for side in (case.k, case.v))
                own.lens = [len(at) for at in places]
                own.make_cache()
                positions = torch.cat([row.positions for row in case.rows()])
                own.layer = dict(window_left=left, key_positions=[rank, world, interleave],
                                 query_positions=own.ints(positions.tolist()),
                                 alibi_slopes=None if slopes is None else slopes.to(own.device))
                own.write()
                call = own.attend()
                self.check(name, own, call, case.dense(
                    lambda row: part(row, places[row.index], own.k[row.index], own.v[row.index])))
                parts.append(call())
            outs, lses = zip(*parts)
            self.check(name + ", merged", case, Call(OPS.merge_states, outs, lses), case.dense(
                lambda row: part(row, torch.arange(row.k.shape[0]), row.k, row.v)))


if __name__ == "__main__":
    main()
