#include "reprise/cache/ops/kv_canary.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <atomic>
#include <tuple>
#include <utility>

#include "reprise/base/check.h"
#include "reprise/base/shape_check.h"
#include "reprise/base/status_macros.h"
#include "reprise/base/torch_status.h"

#ifdef REPRISE_WITH_CUDA
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#endif

namespace reprise {
namespace {

static_assert(sizeof(KvMark) == 8, "a mark is two cells of marks()");

std::ostream& operator<<(std::ostream& out, const KvMark& mark) {
  if (mark == KvMark{}) return out << "no key";
  return out << "key " << mark.position << " of sequence " << mark.sequence;
}

absl::Status MarkKvOnHost(const KvMarkArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckMarkKv(args));
  for (int64_t token = 0; token < args.num_tokens; ++token) {
    const int64_t slot = args.slot_mapping[token];
    if (slot < 0 || slot >= args.num_slots) continue;
    args.marks[slot] = {args.sequences[token], args.positions[token]};
  }
  return absl::OkStatus();
}

absl::Status CheckKvOnHost(const KvCheckArgs& args) {
  REPRISE_RETURN_IF_ERROR(CheckCheckKv(args));
  for (int row = 0; row < args.num_rows; ++row) {
    const CheckedKeys keys = KeysOfRow(args, row);
    for (int64_t key = keys.begin; key < keys.end; ++key) {
      const KeyCheck check = CheckKey(args, row, key);
      if (!check.is_wrong) continue;
      const uint64_t index = args.findings->num_wrong++;
      if (index < kMaxCanaryFaults) args.findings->first[index] = check.fault;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckRowCells(ShapeChecker& dims, const char* name, const at::Tensor& tensor,
                           at::Device device) {
  REPRISE_RETURN_IF_ERROR(dims.Check(name, tensor, {"num_rows"}, at::kInt));
  REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, tensor));
  return CheckDevice(name, tensor, device);
}

const int32_t* DataOf(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<int32_t>() : nullptr;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const KvCanaryReport& report) {
  out << report.num_wrong << " keys are wrong";
  for (const KvCanaryFault& fault : report.first) {
    out << "\n  row " << fault.row << ", block " << fault.block << " offset " << fault.offset
        << ": expected " << fault.expected << ", found " << fault.found;
  }
  return out;
}

absl::StatusOr<KvCanary> KvCanary::Create(const KvCanaryOptions& options) {
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("num_blocks", options.num_blocks, 1));
  REPRISE_RETURN_IF_ERROR(CheckAtLeast("block_size", options.block_size, 1));
  return CatchTorchOr([&]() -> absl::StatusOr<KvCanary> {
    KvCanary canary;
    canary.num_blocks_ = options.num_blocks;
    canary.block_size_ = options.block_size;
    canary.marks_ = at::full({options.num_blocks, options.block_size, 2}, -1,
                             at::TensorOptions().dtype(at::kInt).device(options.device));
    constexpr int64_t kBytes = sizeof(KvCanaryFindings);
    absl::StatusOr<MappedBuffer> findings = canary.marks_.is_cpu()
                                                ? MappedBuffer::AllocateOnHost(kBytes)
                                                : MappedBuffer::AllocateMapped(kBytes);
    if (!findings.ok()) return findings.status();
    canary.findings_ = std::make_shared<MappedBuffer>(*std::move(findings));
    canary.counters_ = at::zeros({static_cast<int64_t>(sizeof(KvCanaryCounters))},
                                 canary.marks_.options().dtype(at::kByte));
    return canary;
  });
}

absl::Status KvCanary::Mark(const at::Tensor& slot_mapping, const at::Tensor& sequences,
                            const at::Tensor& positions) {
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(dims.Check("slot_mapping", slot_mapping, {"num_tokens"}, at::kLong));
    REPRISE_RETURN_IF_ERROR(dims.Check("sequences", sequences, {AtLeast("num_tokens")}, at::kInt));
    REPRISE_RETURN_IF_ERROR(dims.Check("positions", positions, {AtLeast("num_tokens")}, at::kInt));
    for (const auto& [name, tensor] :
         {std::pair("slot_mapping", &slot_mapping), std::pair("sequences", &sequences),
          std::pair("positions", &positions)}) {
      REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne(name, *tensor));
      REPRISE_RETURN_IF_ERROR(CheckDevice(name, *tensor, marks_.device()));
    }
    const KvMarkArgs args = {.marks = static_cast<KvMark*>(marks_.mutable_data_ptr()),
                             .num_slots = int64_t{num_blocks_} * block_size_,
                             .slot_mapping = slot_mapping.const_data_ptr<int64_t>(),
                             .sequences = sequences.const_data_ptr<int32_t>(),
                             .positions = positions.const_data_ptr<int32_t>(),
                             .num_tokens = slot_mapping.size(0)};
#ifdef REPRISE_WITH_CUDA
    if (marks_.is_cuda()) {
      const c10::cuda::CUDAGuard guard(marks_.device());
      return LaunchMarkKv(args, c10::cuda::getCurrentCUDAStream(marks_.device().index()).stream());
    }
#endif
    return MarkKvOnHost(args);
  });
}

absl::Status KvCanary::Check(const KvCanaryRows& rows) {
  return CatchTorch([&]() -> absl::Status {
    ShapeChecker dims;
    REPRISE_RETURN_IF_ERROR(
        dims.Check("block_table", rows.block_table, {"num_tables", "max_blocks"}, at::kInt));
    REPRISE_RETURN_IF_ERROR(CheckLastStrideIsOne("block_table", rows.block_table));
    REPRISE_RETURN_IF_ERROR(CheckDevice("block_table", rows.block_table, marks_.device()));
    REPRISE_RETURN_IF_ERROR(CheckRowCells(dims, "seq_lens", rows.seq_lens, marks_.device()));
    REPRISE_RETURN_IF_ERROR(CheckRowCells(dims, "sequences", rows.sequences, marks_.device()));
    for (const auto& [name, tensor] :
         {std::pair("table_row", &rows.table_row), std::pair("key_start", &rows.key_start),
          std::pair("shared_lens", &rows.shared_lens), std::pair("first_keys", &rows.first_keys)}) {
      if (!tensor->defined()) continue;
      REPRISE_RETURN_IF_ERROR(CheckRowCells(dims, name, *tensor, marks_.device()));
    }
    const KvCheckArgs args = {
        .marks = static_cast<const KvMark*>(marks_.const_data_ptr()),
        .num_blocks = num_blocks_,
        .block_size = block_size_,
        .block_table = rows.block_table.const_data_ptr<int32_t>(),
        .table_stride = rows.block_table.stride(0),
        .num_tables = static_cast<int>(rows.block_table.size(0)),
        .max_blocks = static_cast<int>(rows.block_table.size(1)),
        .seq_lens = rows.seq_lens.const_data_ptr<int32_t>(),
        .sequences = rows.sequences.const_data_ptr<int32_t>(),
        .table_row = DataOf(rows.table_row),
        .key_start = DataOf(rows.key_start),
        .shared_lens = DataOf(rows.shared_lens),
        .first_keys = DataOf(rows.first_keys),
        .num_rows = static_cast<int>(rows.seq_lens.size(0)),
        .findings = findings_->device<KvCanaryFindings>(),
        .counters = static_cast<KvCanaryCounters*>(counters_.mutable_data_ptr())};
#ifdef REPRISE_WITH_CUDA
    if (marks_.is_cuda()) {
      const c10::cuda::CUDAGuard guard(marks_.device());
      return LaunchCheckKv(args, c10::cuda::getCurrentCUDAStream(marks_.device().index()).stream());
    }
#endif
    return CheckKvOnHost(args);
  });
}

KvCanaryReport KvCanary::report() const {
  const KvCanaryFindings& findings = *findings_->host<KvCanaryFindings>();
  KvCanaryReport report;
  const uint64_t num_wrong =
      std::atomic_ref<uint64_t>(findings_->host<KvCanaryFindings>()->num_wrong).load();
  report.num_wrong = static_cast<int64_t>(num_wrong);
  const size_t num_first = std::min<size_t>(num_wrong, kMaxCanaryFaults);
  report.first.assign(findings.first, findings.first + num_first);
  std::sort(report.first.begin(), report.first.end(),
            [](const KvCanaryFault& a, const KvCanaryFault& b) {
              return std::tie(a.row, a.expected.position) < std::tie(b.row, b.expected.position);
            });
  return report;
}

absl::Status KvCanary::Reset() {
  *findings_->host<KvCanaryFindings>() = KvCanaryFindings{};
  return CatchTorch([&] {
    counters_.zero_();
    return absl::OkStatus();
  });
}

}  // namespace reprise
