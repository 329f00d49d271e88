// How balanced a schedule in balanced mode is: for realistic workloads, in queues or round-robin,
// the maximum number of keys per CTA is at most 1.1 times the mean over the CTAs that have keys. In
// clusters, which save a combine through global memory, the maximum may also be up to one KV tile
// above the mean.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "reprise/attention/paged_batch.h"
#include "reprise/attention/testing/host_tile_schedule.h"
#include "reprise/attention/tile_schedule/cta_units.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/attention/tile_schedule/tile_schedule_build.h"
#include "reprise/attention/tile_schedule/tile_schedule_plan.h"

namespace reprise {
namespace {

struct Workload {
  std::string name;
  std::vector<int32_t> lens;
  std::vector<int32_t> query_lens;
  int num_q_heads = 32;
  int num_kv_heads = 8;
  int head_dim = 128;
};

Workload Rows(std::string name, std::vector<int32_t> lens, int query_len = 1) {
  Workload w = {.name = std::move(name), .lens = std::move(lens), .query_lens = {}};
  w.query_lens.assign(w.lens.size(), query_len);
  return w;
}

Workload WithHeads(Workload w, int num_q_heads, int num_kv_heads, int head_dim) {
  w.num_q_heads = num_q_heads;
  w.num_kv_heads = num_kv_heads;
  w.head_dim = head_dim;
  return w;
}

std::vector<int32_t> Uniform(int rows, int len) { return std::vector<int32_t>(rows, len); }

std::vector<int32_t> Skewed(int place) {
  std::vector<int32_t> lens = Uniform(32, 4096);
  lens[place] = 131072;
  return lens;
}

std::vector<int32_t> Geometric() {
  std::vector<int32_t> lens(64);
  for (int i = 0; i < 64; ++i) {
    lens[i] = static_cast<int32_t>(std::lround(128 * std::pow(256.0, i / 63.0)));
  }
  return lens;
}

std::vector<int32_t> WithEmptyRows(std::vector<int32_t> lens) {
  std::vector<int32_t> mixed;
  for (const int32_t len : lens) {
    mixed.push_back(len);
    mixed.push_back(0);
  }
  return mixed;
}

std::vector<Workload> Workloads() {
  std::vector<Workload> all;
  for (const int rows : {1, 4, 8, 16, 32, 64, 128, 256}) {
    for (const int len : {1024, 4096}) {
      all.push_back(
          Rows("decode " + std::to_string(rows) + " x " + std::to_string(len), Uniform(rows, len)));
    }
  }
  all.push_back(Rows("decode 1 x 16384", {16384}));
  all.push_back(Rows("decode 1 x 65536", {65536}));
  all.push_back(WithHeads(Rows("64/8 1 x 8192", {8192}), 64, 8, 128));
  all.push_back(WithHeads(Rows("d64 32 x 2048", Uniform(32, 2048)), 32, 8, 64));
  all.push_back(WithHeads(Rows("8/1 1 x 8192", {8192}), 8, 1, 128));
  all.push_back(WithHeads(Rows("8/1 64 x 8192", Uniform(64, 8192)), 8, 1, 128));
  all.push_back(WithHeads(Rows("28/4 32 x 4096", Uniform(32, 4096)), 28, 4, 128));
  all.push_back(WithHeads(Rows("32/32 16 x 2048", Uniform(16, 2048)), 32, 32, 128));
  all.push_back(Rows("skew, long row first", Skewed(0)));
  all.push_back(Rows("skew, long row last", Skewed(31)));
  all.push_back(Rows("skew, empty rows between", WithEmptyRows(Skewed(15))));
  all.push_back(Rows("skew, geometric", Geometric()));
  all.push_back(WithHeads(Rows("8/1 skew", Skewed(0)), 8, 1, 128));
  all.push_back(Rows("verify 32 x 4096", Uniform(32, 4096), 4));
  all.push_back(Rows("prefill 2048", {2048}, 2048));
  all.push_back(Rows("prefill 8192", {8192}, 8192));
  all.push_back(Rows("prefill 512 on 8192", {8704}, 512));
  all.push_back(Rows("prefill 4 x 2048", Uniform(4, 2048), 2048));
  Workload mixed = Rows("64 decodes and 1024 new", Uniform(64, 4096));
  mixed.lens.push_back(4096);
  mixed.query_lens.push_back(1024);
  all.push_back(mixed);
  return all;
}

// Keys of each CTA that has keys.
std::vector<int64_t> KeysOfCtas(const KernelSchedule& schedule) {
  std::vector<int64_t> keys;
  for (int cta = 0; cta < schedule.num_ctas; ++cta) {
    const CtaUnits units(schedule, cta);
    int64_t sum = 0;
    for (int n = 0; n < units.count(); ++n) {
      const WorkItem& item = schedule.items[units.ItemOf(n)];
      sum += item.key_end - item.key_begin;
    }
    if (sum > 0) keys.push_back(sum);
  }
  return keys;
}

void ExpectEven(const std::string& name, const KernelSchedule& schedule) {
  const std::vector<int64_t> keys = KeysOfCtas(schedule);
  if (keys.empty()) return;  // all rows belong to the other schedule
  const double mean = static_cast<double>(std::accumulate(keys.begin(), keys.end(), int64_t{0})) /
                      static_cast<double>(keys.size());
  const double most = static_cast<double>(*std::max_element(keys.begin(), keys.end()));
  const double max_expected =
      schedule.counts[4] == 0 ? 1.1 * mean : std::max(1.1 * mean, mean + kWorkStepKeys);
  EXPECT_LE(most, max_expected) << name << ": " << most / mean << " in " << keys.size() << " CTAs";
}

TEST(TileScheduleEvennessTest, LargestCtaExceedsTheMeanByAtMostTenPercent) {
  for (const Workload& w : Workloads()) {
    std::vector<int32_t> query_start_loc = {0};
    for (const int32_t query_len : w.query_lens) {
      query_start_loc.push_back(query_start_loc.back() + query_len);
    }
    // Rows without keys have no queries.
    for (size_t r = 0, shift = 0; r < w.lens.size(); ++r) {
      if (w.lens[r] == 0) shift += w.query_lens[r];
      query_start_loc[r + 1] -= static_cast<int32_t>(shift);
    }
    const PagedBatch batch = {
        .query_start_loc = query_start_loc.data(),
        .seq_lens = w.lens.data(),
        .num_rows = static_cast<int>(w.lens.size()),
        .num_tokens = query_start_loc.back(),
        .max_query_len = *std::max_element(w.query_lens.begin(), w.query_lens.end()),
        .max_seq_len = *std::max_element(w.lens.begin(), w.lens.end())};
    HostTileSchedule work({.num_q_heads = w.num_q_heads,
                           .num_kv_heads = w.num_kv_heads,
                           .head_dim_qk = w.head_dim,
                           .head_dim_v = w.head_dim,
                           .max_rows = batch.num_rows,
                           .max_tokens = batch.num_tokens,
                           .max_query_len = batch.max_query_len,
                           .max_seq_len = batch.max_seq_len});
    ASSERT_TRUE(TileScheduleOnHost(batch, {}, work.schedule()).ok()) << w.name;
    ExpectEven(w.name, work.schedule().main);
    if (work.schedule().has_short_rows())
      ExpectEven(w.name + ", short rows", work.schedule().short_rows);
  }
}

}  // namespace
}  // namespace reprise
