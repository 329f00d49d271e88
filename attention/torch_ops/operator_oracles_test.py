"""Compares torch.ops.reprise with other implementations of attention: PyTorch's functions, and
float64 formulas of the systems whose conventions the operators follow.

    operator_oracles_test.py LIBRARY [unittest arguments]

docs/operators.md names the conventions, operator_cases.py says what a case is.
"""

import math
import warnings

import torch

from operator_cases import (FP8, OPS, SEED, Call, OracleTest, distances, expand, finish, logits,
                            main, masked, run_both, sdpa, visible)


class OperatorOraclesTest(OracleTest):
    # PyTorch's attention functions.

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

            want = case.dense(lambda row: sdpa(row, visible(row, **seen), scale))
            case.write()
            self.check(name, case, case.attend(), want)
            self.check(name + ", ragged", case, case.attend_ragged(), want)

    def test_wide_heads(self):
        for dims in ((128, 128), (192, 128), (256, 256), (512, 512)):
            name = "SDPA, head_dim " + ("/".join(map(str, dims)) if dims[0] != dims[1] else
                                        str(dims[0]))
            for kv_dtype, dtypes in ((None, (torch.float32, torch.float16, torch.bfloat16)),
                                     ("fp8_e4m3", (torch.bfloat16,))):
                oracle = name if kv_dtype is None else name + ", " + kv_dtype
                for case in self.cases(oracle, 4, dtypes, dims=dims, max_len=300,
                                       kv_dtype=kv_dtype):
                    if kv_dtype is not None:  # values that the cache can represent
                        case.k, case.v = ([t.to(FP8[kv_dtype]).to(case.dtype) for t in side]
                                          for side in (case.k, case.v))
                    left = case.rng.choice([None, 40])
                    case.layer = dict(window_left=left)
                    want = case.dense(lambda row: sdpa(row, visible(row, left=left)))
                    case.write()
                    self.check(oracle, case, case.attend(), want)
                    if kv_dtype is None:
                        self.check(oracle + ", ragged", case, case.attend_ragged(), want)

    def test_wide_heads_of_single_queries(self):
        name = "SDPA, decode of wide heads"
        for dims in ((128, 128), (192, 128), (256, 256), (512, 512)):
            for case in self.cases(f"{name} {dims}", 3, (torch.float32, torch.bfloat16), dims=dims,
                                   max_len=300, decode=True):
                case.write()
                self.check(name, case, case.attend(max_query_len=1),
                           case.dense(lambda row: sdpa(row, visible(row))))

    def flex(self, row, score_mod, mask_mod, scale=None, mask_heads=None):
        """flex_attention without compilation. The functions take (head, query position, key).
        `mask_heads` is the number of heads with separate masks."""
        from torch.nn.attention import flex_attention as flex
        first = int(row.positions[0])
        mask = flex.create_block_mask(lambda b, h, i, j: mask_mod(h, i + first, j), 1,
                                      mask_heads, row.q.shape[0], row.k.shape[0], device="cpu")
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
            starts, lens, tables, key_start = run_both(Call(
                OPS.local_virtual_batches, case.block_table, case.seq_lens, case.query_start_loc,
                chunk_size=chunk, num_tokens=case.num_tokens))
            call = Call(OPS.paged_attention, case.q.to(case.device), *case.caches,
                        case.block_table, lens, starts, table_row=tables, key_start=key_start)
            want = case.dense(lambda row: self.flex(row, lambda s, *_: s, mask_mod))
            self.check(name, case, call, want)

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
                return sdpa(row, mask)

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))

    def test_any_pattern_by_packed_masks(self):
        """Masks in FlashInfer's packed format: query_len * seq_len bits per row, least significant
        first, starting at a new byte for each row. Causal or not, paged and ragged."""
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

    # Conventions of models and other systems.

    def test_scales_and_slopes_of_heads_and_sequences(self):
        """A scale per q head, and FlashAttention's slopes [batch, heads]."""
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
        """Like transformers: slope * position of the key, for any number of heads, added to the
        scaled scores before the causal mask. Differs from a term based on the distance by a
        constant per query, which the softmax cancels and lse does not."""
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
        the mask. A window of W tokens includes W - 1 keys before the query's own key."""
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
        """An additional column of logits, which the softmax includes and the GEMM with V omits."""
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

    def test_rotary_of_llama_and_gpt_neox(self):
        """q * cos + rotate_half(q) * sin over the first dims, with tables of position * theta **
        (-2i / dims); GPT-NeoX and StableLM rotate head_dim * partial_rotary_factor of them."""
        for name, dims, rotary_dim in (("rotary, Llama", (64, 64), 64),
                                       ("rotary, GPT-NeoX (1/4)", (64, 64), 16),
                                       ("rotary, StableLM (1/4 of 80)", (80, 80), 20),
                                       ("rotary, half of the dims", (128, 128), 64)):
            for case in self.cases(name, 5, (torch.float32,), dims=dims):
                theta, factor = case.rng.choice([(1e4, 1.0), (5e5, 4.0)])
                case.layer = dict(rope_theta=theta, rope_scale=factor,
                                  rotary_dim=0 if rotary_dim == dims[0] else rotary_dim)

                def rotate(x, positions):
                    frequency = theta ** (-torch.arange(0, rotary_dim, 2).double() / rotary_dim)
                    angle = positions.double()[:, None] / factor * frequency[None, :]
                    angle = torch.cat([angle, angle], dim=-1)[:, None, :]
                    turned, passed = x[..., :rotary_dim], x[..., rotary_dim:]
                    half = rotary_dim // 2
                    halves = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
                    return torch.cat([turned * angle.cos() + halves * angle.sin(), passed], dim=-1)

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
                size = 6  # not a multiple of the cache's block size; has no effect here
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

            def mask_mod(head, position, key):
                kv_head = head // (case.q_heads // case.kv_heads)
                offset = (rank * case.q_heads + head) * step + 1 if step >= 0 else \
                    (rank * case.kv_heads + kv_head) * -step + 1
                seen = (key // size > position // size - local) | (
                    (key // size + offset) % max(stride, 1) == 0)
                return seen & (key <= position)

            case.write()
            self.check(name, case, case.attend(), case.dense(oracle))
            self.check("block-sparse, flex_attention", case, case.attend(), case.dense(
                lambda row: self.flex(row, lambda s, *_: s, mask_mod, mask_heads=case.q_heads)))


if __name__ == "__main__":
    main()
