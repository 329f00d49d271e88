// Times attention over a paged cache on a GPU, against the card's own read bandwidth.
//
//   attention_bench                                   the whole grid
//   attention_bench --grid=decode --filter=kv1024     part of it
//   attention_bench --lens=4096x31,131072 --query_len=1 --kv_heads=1 --q_heads=8   any shape
//   attention_bench --random=7,60                     60 random shapes of seed 7
//
// Prints a JSON line a shape, then a table: time of a call, spread, TB/s of keys and values or
// TFLOP/s, that as a share of the read-only kernel of the same run, and the best peer's time where
// it is known (tests/benchmarks/device/attention_grid.h). Above the table: how many clusters of 2
// to 8 CTAs of a decode run at the same time (TileScheduleCosts::clusters_of). For random shapes it
// prints the time over the roofline of each instead of a peer's time, and how these ratios are
// distributed, by kind. The roofline is the largest of three: all bytes at 93 % of the read-only
// kernel's rate, the products at 620 TFLOP/s, and 6 us.

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "reprise/attention/attention_params.h"
#include "reprise/attention/device_profile.h"
#include "reprise/attention/tile_schedule/tile_schedule.h"
#include "reprise/base/dtype.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/storage/kv_layout.h"
#include "tests/benchmarks/device/attention_case.h"
#include "tests/benchmarks/device/attention_grid.h"
#include "tests/benchmarks/device/cluster_places.h"
#include "tests/benchmarks/device/length_list.h"
#include "tests/benchmarks/device/memory_rates.h"
#include "tests/benchmarks/device/random_shapes.h"

ABSL_FLAG(std::string, grid, "all", "decode, prefill, mixed or all; not looked at with --lens");
ABSL_FLAG(std::string, filter, "", "only shapes of the grid whose name contains this");
ABSL_FLAG(std::string, products, "",
          "the type to multiply in; float32: CUDA cores; empty: that of q; for the grid, too");
ABSL_FLAG(int, max_tier, 2, "1: the general kernels alone; for the grid, too");
ABSL_FLAG(std::string, lens, "", "keys of each row, such as 4096x31,131072: a shape of your own");
ABSL_FLAG(std::string, random, "", "SEED,COUNT: random shapes; --filter applies");
ABSL_FLAG(std::string, query_len, "1", "queries of every row, or a list like --lens");
ABSL_FLAG(int, q_heads, 32, "query heads");
ABSL_FLAG(int, kv_heads, 8, "KV heads");
ABSL_FLAG(int, head_dim, 128, "dims of q and k");
ABSL_FLAG(int, head_dim_v, 0, "dims of v; 0: those of k");
ABSL_FLAG(int, block_size, 16, "tokens of a KV block");
ABSL_FLAG(std::string, dtype, "bfloat16", "of q: bfloat16, float16 or float32");
ABSL_FLAG(std::string, kv_dtype, "", "of the cache, such as fp8_e4m3; empty: that of q");
ABSL_FLAG(std::string, layout, "NHD", "NHD, HND, packed, K-packed or latent: absorbed MLA");
ABSL_FLAG(int, window_left, -1, "keys before a query's own that it sees; -1: all");
ABSL_FLAG(double, softcap, 0, "of the logits; 0: none");
ABSL_FLAG(bool, rotary, false, "rotary embedding of all dims in the kernel");
ABSL_FLAG(int, num_sms, 0, "multiprocessors to plan work for; 0: the card's; for the grid, too");
ABSL_FLAG(
    std::string, clusters, "2,3,4,5,6,7,8",
    "the sizes of clusters in which decodes of few rows may run, 2 among them, or none; for the "
    "grid, too");
ABSL_FLAG(
    std::vector<std::string>, costs, {},
    "fields of TileScheduleCosts that differ from those of the card, as border=0,merge=8; for the "
    "grid, too");
ABSL_FLAG(bool, deterministic, false, "split points by the row alone; for the grid, too");

namespace reprise {
namespace {

absl::StatusOr<DType> DTypeFlag(const char* flag, const std::string& name) {
  const std::optional<DType> dtype = ParseDType(name);
  if (dtype) return *dtype;
  return absl::InvalidArgumentError(absl::StrCat("--", flag, ": no such type: ", name));
}

absl::Status SetLayout(const std::string& name, AttentionCase& c) {
  if (name == "K-packed") {
    c.form = KvForm::kKPacked;
  } else if (name == "packed") {
    c.form = KvForm::kPacked;
  } else if (name == "latent") {
    c.form = KvForm::kLatent;
  } else {
    REPRISE_ASSIGN_OR_RETURN(c.order, ParseKvOrder(name));
  }
  return absl::OkStatus();
}

// The one shape that the flags describe.
absl::StatusOr<AttentionCase> CaseOfFlags() {
  AttentionCase c = {.name = "--lens",
                     .num_q_heads = absl::GetFlag(FLAGS_q_heads),
                     .num_kv_heads = absl::GetFlag(FLAGS_kv_heads),
                     .head_dim_qk = absl::GetFlag(FLAGS_head_dim),
                     .head_dim_v = absl::GetFlag(FLAGS_head_dim_v),
                     .block_size = absl::GetFlag(FLAGS_block_size)};
  if (c.head_dim_v == 0) c.head_dim_v = c.head_dim_qk;
  REPRISE_ASSIGN_OR_RETURN(c.lens, ParseLengths(absl::GetFlag(FLAGS_lens)));
  REPRISE_ASSIGN_OR_RETURN(c.query_lens, ParseLengths(absl::GetFlag(FLAGS_query_len)));
  if (c.query_lens.size() == 1) c.query_lens.assign(c.lens.size(), c.query_lens[0]);
  if (absl::GetFlag(FLAGS_window_left) >= 0) c.window_left = absl::GetFlag(FLAGS_window_left);
  if (absl::GetFlag(FLAGS_softcap) > 0) c.softcap = absl::GetFlag(FLAGS_softcap);
  if (absl::GetFlag(FLAGS_rotary)) c.rotary = RotaryParams{};
  REPRISE_ASSIGN_OR_RETURN(c.dtype, DTypeFlag("dtype", absl::GetFlag(FLAGS_dtype)));
  const std::string kv_dtype = absl::GetFlag(FLAGS_kv_dtype);
  if (!kv_dtype.empty()) {
    REPRISE_ASSIGN_OR_RETURN(c.kv_dtype, DTypeFlag("kv_dtype", kv_dtype));
  }
  REPRISE_RETURN_IF_ERROR(SetLayout(absl::GetFlag(FLAGS_layout), c));
  return c;
}

// Those of --random, under their names.
absl::StatusOr<std::vector<AttentionCase>> RandomCases() {
  const std::string flag = absl::GetFlag(FLAGS_random);
  const std::vector<std::string> parts = absl::StrSplit(flag, ',');
  uint64_t seed = 0;
  int count = 0;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[0], &seed) ||
      !absl::SimpleAtoi(parts[1], &count) || count < 1 || count > 10000) {
    return absl::InvalidArgumentError(
        absl::StrCat("--random: expected SEED,COUNT with a count of 1 to 10000, got '", flag, "'"));
  }
  std::vector<AttentionCase> cases;
  for (const RandomShape& shape : RandomShapes(seed, count)) {
    if (!absl::StrContains(shape.Name(), absl::GetFlag(FLAGS_filter))) continue;
    cases.push_back({.name = shape.Name(),
                     .num_q_heads = shape.num_q_heads,
                     .num_kv_heads = shape.num_kv_heads,
                     .head_dim_qk = shape.head_dim,
                     .head_dim_v = shape.head_dim,
                     .block_size = shape.block_size,
                     .lens = shape.lens,
                     .query_lens = shape.query_lens});
  }
  return cases;
}

// Leaves only clusters of the sizes that are named.
void KeepClusters(const std::vector<std::string>& sizes, TileScheduleCosts& costs) {
  for (int n = 2; n <= kMaxClusterQueues; ++n) {
    if (!absl::c_linear_search(sizes, absl::StrCat(n))) costs.clusters_of[n] = 0;
  }
}

// Sets the field that `text` names, as in "merge=8".
absl::Status SetCost(absl::string_view text, TileScheduleCosts& costs) {
  const std::pair<absl::string_view, absl::string_view> name_and_value =
      absl::StrSplit(text, absl::MaxSplits('=', 1));
  for (const TileScheduleCostField& cost : TileScheduleCostFields()) {
    if (cost.name != name_and_value.first) continue;
    if (absl::SimpleAtoi(name_and_value.second, &(costs.*cost.field))) return absl::OkStatus();
    break;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--costs: expected a field of TileScheduleCosts and an integer, got ", text));
}

absl::StatusOr<std::vector<AttentionCase>> Cases() {
  std::vector<AttentionCase> cases;
  if (!absl::GetFlag(FLAGS_random).empty()) {
    REPRISE_ASSIGN_OR_RETURN(cases, RandomCases());
  } else if (!absl::GetFlag(FLAGS_lens).empty()) {
    REPRISE_ASSIGN_OR_RETURN(cases.emplace_back(), CaseOfFlags());
  } else {
    const std::string grid = absl::GetFlag(FLAGS_grid);
    if (grid != "all" && grid != "decode" && grid != "prefill" && grid != "mixed") {
      return absl::InvalidArgumentError("--grid must be decode, prefill, mixed or all");
    }
    const auto add = [&cases](std::vector<AttentionCase> more) {
      for (AttentionCase& c : more) {
        if (absl::StrContains(c.name, absl::GetFlag(FLAGS_filter))) cases.push_back(std::move(c));
      }
    };
    if (grid == "all" || grid == "decode") add(DecodeGrid());
    if (grid == "all" || grid == "prefill") add(PrefillGrid());
    if (grid == "all" || grid == "mixed") add(MixedGrid());
  }
  const std::string products = absl::GetFlag(FLAGS_products);
  for (AttentionCase& c : cases) {
    if (!products.empty()) {
      REPRISE_ASSIGN_OR_RETURN(c.products, DTypeFlag("products", products));
    }
    c.max_tier = absl::GetFlag(FLAGS_max_tier);
    c.num_sms = absl::GetFlag(FLAGS_num_sms);
    KeepClusters(absl::StrSplit(absl::GetFlag(FLAGS_clusters), ','), c.costs);
    for (const std::string& text : absl::GetFlag(FLAGS_costs)) {
      REPRISE_RETURN_IF_ERROR(SetCost(text, c.costs));
    }
    if (absl::GetFlag(FLAGS_deterministic)) c.mode = TileScheduleMode::kDeterministic;
  }
  return cases;
}

// The least time that the card allows for a call, in us: see the top of the file.
double RooflineUs(const AttentionResult& r, const MemoryRates& limits) {
  constexpr double kShareOfRead = 0.93;
  constexpr double kTflopPerS = 620;
  constexpr double kMinUs = 6;
  return std::max({r.all_bytes / (kShareOfRead * limits.read_tb_per_s * 1e6),
                   r.flops / (kTflopPerS * 1e6), kMinUs});
}

nlohmann::json ToJson(const AttentionCase& c, const AttentionResult& r, const MemoryRates& limits) {
  nlohmann::json json = {{"name", c.name},
                         {"q_heads", c.num_q_heads},
                         {"kv_heads", c.num_kv_heads},
                         {"head_dim_qk", c.head_dim_qk},
                         {"head_dim_v", c.head_dim_v},
                         {"block_size", c.block_size},
                         {"lens", LengthsToString(c.lens)},
                         {"query_lens", LengthsToString(c.query_lens)},
                         {"dtype", DTypeName(c.dtype)},
                         {"kv_dtype", DTypeName(c.kv_dtype.value_or(c.dtype))},
                         {"order", KvOrderName(c.order)},
                         {"form", KvFormName(c.form)},
                         {"rotary", c.rotary.has_value()},
                         {"deterministic", c.mode == TileScheduleMode::kDeterministic},
                         {"kernel", r.kernel},
                         {"us", r.call.median_us},
                         {"min_us", r.call.min_us},
                         {"max_us", r.call.max_us},
                         {"tile_schedule_us", r.tile_schedule.median_us},
                         {"layers", r.num_layers},
                         {"tb_per_s", r.tb_per_s()},
                         {"tflop_per_s", r.tflop_per_s()},
                         {"of_read", r.tb_per_s() / limits.read_tb_per_s},
                         {"read_tb_per_s", limits.read_tb_per_s}};
  if (c.peer_us) json["peer_us"] = *c.peer_us;
  if (c.target_us) json["target_us"] = *c.target_us;
  json["roofline_us"] = RooflineUs(r, limits);
  return json;
}

bool IsRandom() { return !absl::GetFlag(FLAGS_random).empty(); }

int NameWidth() { return IsRandom() ? 44 : 26; }

std::string Row(const AttentionCase& c, const AttentionResult& r, const MemoryRates& limits) {
  std::string row =
      absl::StrFormat("%-*s %9.1f %5.1f%% %7.1f ", NameWidth(), c.name, r.call.median_us,
                      100 * r.call.spread(), r.tile_schedule.median_us);
  if (r.is_compute_bound()) {
    absl::StrAppendFormat(&row, "%7.0f TFLOP/s      ", r.tflop_per_s());
  } else {
    absl::StrAppendFormat(&row, "%7.2f TB/s    %4.0f%%", r.tb_per_s(),
                          100 * r.tb_per_s() / limits.read_tb_per_s);
  }
  if (IsRandom()) {
    const double roofline_us = RooflineUs(r, limits);
    absl::StrAppendFormat(&row, " %9.1f %6.2f", roofline_us, r.call.median_us / roofline_us);
  } else if (c.peer_us) {
    absl::StrAppendFormat(&row, " %9.1f %6.2f", *c.peer_us, r.call.median_us / *c.peer_us);
  }
  return row;
}

// A line for each kind of shape, whose name is the first word of a case's.
void PrintSummary(const std::vector<std::pair<std::string, double>>& ratios) {
  std::cout << absl::StrFormat("\n%-10s %6s %7s %7s %7s %7s   us / roofline\n", "kind", "shapes",
                               "least", "median", "90 %", "most");
  for (int kind = 0; kind < kNumShapeKinds; ++kind) {
    const std::string name = ShapeKindName(static_cast<ShapeKind>(kind));
    std::vector<double> own;
    for (const auto& [of, ratio] : ratios) {
      if (absl::StartsWith(of, name)) own.push_back(ratio);
    }
    const RatioSummary summary = Summarize(std::move(own));
    std::cout << absl::StrFormat("%-10s %6d %7.2f %7.2f %7.2f %7.2f\n", name, summary.count,
                                 summary.least, summary.median, summary.nine_tenths, summary.most);
  }
}

// "2 3 4 5 6 7 8: 132 84 62 46 36 30 30".
std::string ClustersAtOnce() {
  std::string sizes;
  std::string counts;
  for (int cluster = 2; cluster <= kMaxClusterQueues; ++cluster) {
    int count = 0;
    if (CountClustersAtOnce(cluster, count) != cudaSuccess) return "none";
    absl::StrAppend(&sizes, sizes.empty() ? "" : " ", cluster);
    absl::StrAppend(&counts, " ", count);
  }
  return absl::StrCat(sizes, ":", counts);
}

absl::Status RunAll() {
  REPRISE_ASSIGN_OR_RETURN(const std::vector<AttentionCase> cases, Cases());
  REPRISE_ASSIGN_OR_RETURN(const MemoryRates limits, MeasureMemoryRates());
  std::vector<std::string> rows;
  std::vector<std::pair<std::string, double>> ratios;
  for (const AttentionCase& c : cases) {
    const absl::StatusOr<AttentionResult> result = MeasureAttention(c);
    if (!result.ok()) {
      rows.push_back(absl::StrFormat("%-*s %s", NameWidth(), c.name,
                                     std::string(result.status().message()).substr(0, 160)));
      continue;
    }
    std::cout << ToJson(c, *result, limits).dump() << std::endl;
    rows.push_back(Row(c, *result, limits));
    ratios.emplace_back(c.name, result->call.median_us / RooflineUs(*result, limits));
  }
  std::cout << absl::StrFormat("\nread-only kernel: %.2f TB/s\n", limits.read_tb_per_s)
            << "clusters at once, of " << ClustersAtOnce() << "\n"
            << absl::StrFormat("%-*s %9s %6s %7s %7s %15s %9s %6s\n", NameWidth(), "shape", "us",
                               "spread", "map us", "rate", "of read",
                               IsRandom() ? "roof us" : "peer us", "ratio");
  for (const std::string& row : rows) std::cout << row << "\n";
  if (IsRandom()) PrintSummary(ratios);
  return absl::OkStatus();
}

}  // namespace
}  // namespace reprise

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times attention over a paged cache on a GPU.");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = reprise::RunAll();
  if (status.ok()) return 0;
  std::cerr << "attention_bench: " << status.message() << "\n";
  return 1;
}
