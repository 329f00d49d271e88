#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "reprise/attention/speculation/tree_mask.h"
#include "reprise/attention/testing/attended.h"
#include "reprise/attention/testing/draft_attention.h"
#include "reprise/attention/testing/draft_definitions.h"
#include "reprise/attention/testing/draft_generator.h"
#include "reprise/attention/testing/random.h"
#include "reprise/base/status_macros.h"
#include "reprise/cache/tables/block_table_view.h"

namespace reprise {
namespace {

constexpr int kMaxNodes = 200;
constexpr int kMaxKeys = 60;  // before a tree
constexpr int64_t kBytesOfRow = TreeMaskBytes(kMaxNodes, kMaxKeys);

// Rows with trees of 65 to 200 nodes, or fewer nodes in some contents. Lengths, table and masks are
// on the host, with copies on the device for a captured graph.
class LargeTrees {
 public:
  LargeTrees(const DraftAttentionDevice& device, Random& random)
      : random_(random),
        num_rows_(random.Int(1, 2)),
        block_size_(random.Pick({1, 5, 16})),
        trees_(num_rows_),
        seq_lens_(num_rows_),
        query_start_loc_(num_rows_ + 1),
        entries_(int64_t{num_rows_} * max_blocks()),
        offsets_(num_rows_),
        masks_(num_rows_ * kBytesOfRow),
        device_seq_lens_(Placed(device, seq_lens_, at::kInt)),
        device_query_start_loc_(Placed(device, query_start_loc_, at::kInt)),
        device_entries_(Placed(device, entries_, at::kInt)),
        device_offsets_(Placed(device, offsets_, at::kLong)),
        device_masks_(Placed(device, masks_, at::kByte)) {}

  int num_tokens() const { return num_rows_ * kMaxNodes; }
  int num_rows() const { return num_rows_; }

  BlockTableView table() const {
    return {.entries = entries_.data(),
            .row_stride = max_blocks(),
            .num_tables = num_rows_,
            .max_blocks = max_blocks(),
            .block_size = block_size_,
            .num_blocks = num_blocks()};
  }

  PagedBatch batch() const {
    return {.query_start_loc = device_query_start_loc_.const_data_ptr<int32_t>(),
            .seq_lens = device_seq_lens_.const_data_ptr<int32_t>(),
            .block_table = device_entries_.const_data_ptr<int32_t>(),
            .block_table_stride = max_blocks(),
            .custom_mask = device_masks_.const_data_ptr<uint8_t>(),
            .custom_mask_offset = device_offsets_.const_data_ptr<int64_t>(),
            .num_rows = num_rows_,
            .num_tokens = num_tokens(),
            .max_query_len = kMaxNodes,
            .max_seq_len = kMaxKeys + kMaxNodes,
            .num_tables = num_rows_,
            .max_blocks = max_blocks(),
            .custom_mask_bytes = static_cast<int64_t>(masks_.size())};
  }

  absl::Status Fill(Attended& attended) {
    std::vector<int32_t> blocks;
    for (int block = 1; block < num_blocks(); ++block) blocks.push_back(block);
    random_.Shuffle(blocks);
    std::copy_n(blocks.begin(), entries_.size(), entries_.begin());
    std::ranges::fill(masks_, 0xa5);
    attended.Clear();
    for (int r = 0; r < num_rows_; ++r) {
      const int num_nodes = random_.OneIn(4) ? random_.Int(1, 64) : random_.Int(65, kMaxNodes);
      const int prefix_len = random_.Int(0, kMaxKeys);
      trees_[r] = DrawTree(random_, num_nodes);
      seq_lens_[r] = prefix_len + num_nodes;
      query_start_loc_[r + 1] = query_start_loc_[r] + num_nodes;
      offsets_[r] = r * kBytesOfRow;
      REPRISE_RETURN_IF_ERROR(WriteTreeMask(
          trees_[r], prefix_len, absl::MakeSpan(masks_).subspan(offsets_[r], kBytesOfRow)));
    }
    WriteSequences(attended, table(), seq_lens_.data(), 0);
    Copy(seq_lens_, device_seq_lens_);
    Copy(query_start_loc_, device_query_start_loc_);
    Copy(entries_, device_entries_);
    Copy(offsets_, device_offsets_);
    Copy(masks_, device_masks_);
    attended.Upload();
    return absl::OkStatus();
  }

  // Returns the visible keys, computed from the parents only.
  std::vector<SeenKey> Seen() const {
    std::vector<SeenKey> seen;
    for (int r = 0; r < num_rows_; ++r) {
      const int num_nodes = static_cast<int>(trees_[r].size());
      const int prefix_len = seq_lens_[r] - num_nodes;
      for (int node = 0; node < num_nodes; ++node) {
        const int token = query_start_loc_[r] + node;
        for (int place = 0; place < prefix_len; ++place) {
          seen.push_back({.token = token, .row = r, .place = place});
        }
        for (int at = node; at >= 0; at = trees_[r][at]) {
          seen.push_back({.token = token, .row = r, .place = prefix_len + at});
        }
      }
    }
    return seen;
  }

 private:
  template <typename T>
  static at::Tensor Placed(const DraftAttentionDevice& device, const std::vector<T>& host,
                           at::ScalarType type) {
    return at::empty({static_cast<int64_t>(host.size())},
                     at::TensorOptions(device.torch).dtype(type));
  }

  template <typename T>
  static void Copy(std::vector<T>& host, at::Tensor& device) {
    device.copy_(at::from_blob(host.data(), device.sizes(),
                               at::TensorOptions().dtype(device.scalar_type())));
  }

  int max_blocks() const { return NumBlocksFor(kMaxKeys + kMaxNodes, block_size_); }
  int num_blocks() const { return num_rows_ * max_blocks() + 1; }

  Random& random_;
  int num_rows_;
  int block_size_;
  std::vector<std::vector<int32_t>> trees_;  // parents of each node
  std::vector<int32_t> seq_lens_, query_start_loc_, entries_;
  std::vector<int64_t> offsets_;
  std::vector<uint8_t> masks_;
  at::Tensor device_seq_lens_, device_query_start_loc_, device_entries_, device_offsets_,
      device_masks_;
};

}  // namespace

std::string AttendThroughLargeTree(const DraftAttentionDevice& device,
                                   const DraftAttentionTypes& types, uint64_t seed) {
  Random random(seed);
  AttentionParams layer = DrawLayer(random);
  layer.window_left.reset();  // a window would count slots
  LargeTrees trees(device, random);
  Attended attended(device, types, trees.table(), trees.num_tokens());
  attended.Plan(layer, trees.batch());
  absl::Status filled;
  const Suite suite = {.fill = [&] { filled.Update(trees.Fill(attended)); },
                       .step = [&] { return attended.Run(); },
                       .difference =
                           [&] {
                             if (!filled.ok()) return filled.ToString();
                             return Difference(
                                 types, attended.out(), attended.lse(),
                                 Attend(types, trees.Seen(), trees.num_tokens(), nullptr, OwnRow));
                           }};
  return RunSuite(device, suite);
}

}  // namespace reprise
