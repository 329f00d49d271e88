#include "tests/benchmarks/device/attention_grid.h"

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"

namespace reprise {
namespace {

struct Heads {
  int q = 32;
  int kv = 8;
  int dim = 128;
};

// Rows that all have `query_len` queries at the end of their keys.
AttentionCase Rows(std::string name, const Heads& heads, std::vector<int> lens, int query_len,
                   std::optional<double> peer_us = {}, std::optional<double> target_us = {}) {
  AttentionCase c = {.name = std::move(name),
                     .num_q_heads = heads.q,
                     .num_kv_heads = heads.kv,
                     .head_dim_qk = heads.dim,
                     .head_dim_v = heads.dim,
                     .peer_us = peer_us,
                     .target_us = target_us};
  c.query_lens.assign(lens.size(), query_len);
  c.lens = std::move(lens);
  return c;
}

AttentionCase Uniform(std::string name, const Heads& heads, int batch, int len,
                      std::optional<double> peer_us = {}, std::optional<double> target_us = {}) {
  return Rows(std::move(name), heads, std::vector<int>(batch, len), 1, peer_us, target_us);
}

AttentionCase With(AttentionCase c, int block_size) {
  c.block_size = block_size;
  return c;
}

AttentionCase With(AttentionCase c, DType kv_dtype) {
  c.kv_dtype = kv_dtype;
  return c;
}

std::vector<int> LongFirst() {
  std::vector<int> lens(32, 4096);
  lens.front() = 131072;
  return lens;
}

std::vector<int> LongLast() {
  std::vector<int> lens(32, 4096);
  lens.back() = 131072;
  return lens;
}

// From 128 to 32768 in a geometric series.
std::vector<int> Geometric() {
  std::vector<int> lens(64);
  for (int i = 0; i < 64; ++i) {
    lens[i] = static_cast<int>(std::lround(128 * std::pow(256.0, i / 63.0)));
  }
  return lens;
}

// `num_rows` decodes over `len` keys each, and a prompt of `new_tokens` after `before` keys.
AttentionCase DecodesAnd(const Heads& heads, int num_rows, int len, int new_tokens, int before) {
  AttentionCase c = {.name = absl::StrFormat("%d/%d d%d %d of %d + %d on %d", heads.q, heads.kv,
                                             heads.dim, num_rows, len, new_tokens, before),
                     .num_q_heads = heads.q,
                     .num_kv_heads = heads.kv,
                     .head_dim_qk = heads.dim,
                     .head_dim_v = heads.dim};
  c.lens.assign(num_rows, len);
  c.query_lens.assign(num_rows, 1);
  c.lens.push_back(before + new_tokens);
  c.query_lens.push_back(new_tokens);
  return c;
}

// Decodes over 4096 keys each, and 1024 new tokens of a sequence of `len`.
AttentionCase Mixed(std::string name, int len, double peer_us, double target_us) {
  AttentionCase c = Uniform(std::move(name), {}, 64, 4096, peer_us, target_us);
  c.lens.push_back(len);
  c.query_lens.push_back(1024);
  return c;
}

}  // namespace

std::vector<AttentionCase> DecodeGrid() {
  const Heads wide = {};
  return {
      Uniform("b1 kv1024", wide, 1, 1024, 8.3, 6.5),
      Uniform("b4 kv1024", wide, 4, 1024, 10.3, 8.5),
      Uniform("b8 kv1024", wide, 8, 1024, 14.8, 11.5),
      Uniform("b16 kv1024", wide, 16, 1024, 21.5, 18.5),
      Uniform("b32 kv1024", wide, 32, 1024, 38.5, 34),
      Uniform("b64 kv1024", wide, 64, 1024, 70.4, 64),
      Uniform("b128 kv1024", wide, 128, 1024, 132.6, 125),
      Uniform("b256 kv1024", wide, 256, 1024, 253.8, 247),
      Uniform("b1 kv4096", wide, 1, 4096, 12.1, 9.5),
      Uniform("b4 kv4096", wide, 4, 4096, 23.8, 19.5),
      Uniform("b8 kv4096", wide, 8, 4096, 40.0, 34.5),
      Uniform("b16 kv4096", wide, 16, 4096, 68.2, 64),
      Uniform("b32 kv4096", wide, 32, 4096, 128.9, 124),
      Uniform("b64 kv4096", wide, 64, 4096, 250.8, 246),
      Uniform("b128 kv4096", wide, 128, 4096, 491, 488),
      Uniform("b256 kv4096", wide, 256, 4096, 971, 968),
      Uniform("b1 kv16384", wide, 1, 16384, 25.0, 20.5),
      Uniform("b1 kv65536", wide, 1, 65536, 71.9, 65),
      With(Uniform("64/8 b1 kv8192 block 32", {64, 8, 128}, 1, 8192, 15.8, 12.5), 32),
      Uniform("d64 b1 kv2048", {32, 8, 64}, 1, 2048, 7.3, 6.3),
      Uniform("d64 b32 kv2048", {32, 8, 64}, 32, 2048, 36.8, 33),
      Uniform("d64 b128 kv2048", {32, 8, 64}, 128, 2048, 136.8, 126),
      Uniform("8/1 b1 kv8192", {8, 1, 128}, 1, 8192, 10.0, 7.5),
      Uniform("8/1 b64 kv8192", {8, 1, 128}, 64, 8192, 71.6, 63),
      Uniform("28/4 b32 kv4096", {28, 4, 128}, 32, 4096, 69.8, 64),
      Uniform("32/32 b16 kv2048", {32, 32, 128}, 16, 2048, 125.0, 123),
      Rows("skew long first", wide, LongFirst(), 1, 247.9, 243),
      Rows("skew long last", wide, LongLast(), 1, 278.7, 243),
      Rows("skew geometric", wide, Geometric(), 1, 413, 370),
      Rows("8/1 skew long first", {8, 1, 128}, LongFirst(), 1, 43.6, 34),
      With(Uniform("fp8 b32 kv4096", wide, 32, 4096, 101, 70), DType::kFp8E4M3),
      With(Uniform("fp8 b128 kv4096", wide, 128, 4096, 379, 258), DType::kFp8E4M3),
      With(Uniform("fp8 64/8 b128 kv2048", {64, 8, 128}, 128, 2048, 209, 133), DType::kFp8E4M3),
      // Rows that end within a step of keys, as most do.
      Uniform("b1 kv1023", wide, 1, 1023),
      Uniform("b8 kv1023", wide, 8, 1023),
      Uniform("b64 kv1000", wide, 64, 1000),
      Uniform("24/6 d64 b56 kv380", {24, 6, 64}, 56, 380),
      Rows("verify b8 q4 kv1000", wide, std::vector<int>(8, 1000), 4),
      Rows("verify b1 q4 kv4096", wide, {4096}, 4, 13.3, 10.5),
      Rows("verify b32 q4 kv4096", wide, std::vector<int>(32, 4096), 4, 129.2, 125),
      Rows("verify b128 q4 kv4096", wide, std::vector<int>(128, 4096), 4, 498.5, 490),
  };
}

std::vector<AttentionCase> PrefillGrid() {
  const Heads wide = {};
  return {
      Rows("prefill 2048", wide, {2048}, 2048, 73, 80),
      Rows("prefill 4096", wide, {4096}, 4096, 235, 258),
      Rows("prefill 8192", wide, {8192}, 8192, 951, 1046),
      Rows("prefill 16384", wide, {16384}, 16384, 3881, 4269),
      Rows("prefill 512 on 8192", wide, {8704}, 512, 126, 138),
      Rows("prefill 4 x 2048", wide, std::vector<int>(4, 2048), 2048, 268, 290),
  };
}

std::vector<AttentionCase> MixedGrid() {
  const Heads wide = {};
  return {
      Mixed("64 decodes + 1024 on 0", 1024, 282, 275),
      Mixed("64 decodes + 1024 on 3072", 4096, 374, 365),
      DecodesAnd(wide, 64, 256, 512, 0),
      DecodesAnd(wide, 128, 512, 256, 1024),
      DecodesAnd(wide, 128, 2048, 256, 2048),
      DecodesAnd(wide, 32, 1024, 2048, 0),
      DecodesAnd({8, 1, 128}, 32, 4096, 512, 0),
      DecodesAnd({48, 6, 128}, 15, 1500, 780, 0),
      DecodesAnd({24, 8, 128}, 46, 3263, 115, 7940),
      DecodesAnd({32, 8, 64}, 32, 4096, 256, 1792),
      DecodesAnd({36, 6, 64}, 2, 2000, 3608, 0),
      DecodesAnd(wide, 64, 4096, 17, 0),
  };
}

}  // namespace reprise
