#include "reprise/attention/testing/speculation/tree_cases.h"

#include <algorithm>

namespace reprise {
namespace {

constexpr int32_t kAbsurd[] = {-12345, 1 << 30, INT32_MIN, INT32_MAX, -1, 0};

bool Chance(Random& random, double p) { return p > 0 && random.Real(0, 1) < p; }

template <typename T>
T* Mutable(const T* array) {
  return const_cast<T*>(array);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const TreeShape& shape) {
  return out << shape.num_rows << " rows, " << shape.num_tables << " tables, " << shape.max_nodes
             << " nodes, " << shape.num_groups << " groups, " << shape.num_dims
             << " dims, parent stride " << shape.parent_stride << ", logits " << shape.has_logits;
}

TreeShape DrawTreeShape(Random& random) {
  TreeShape shape;
  shape.num_rows = random.OneIn(5) ? random.Int(30, 300) : random.Int(0, 9);
  shape.num_tables = std::max(1, shape.num_rows + random.Int(0, 3));
  shape.max_nodes = random.Pick({1, 5, 33, random.Int(1, 20), 64});
  if (shape.num_rows > 9) shape.max_nodes = std::min(shape.max_nodes, 20);
  shape.num_groups = random.Int(1, 3);
  shape.num_dims = random.OneIn(3) ? 3 : 1;
  shape.parent_stride =
      random.Pick<int64_t>({TreeParents::kByToken, 0, int64_t{shape.max_nodes} + random.Int(0, 2)});
  shape.has_logits = random.OneIn(2);
  shape.has_faults = !random.OneIn(4);
  return shape;
}

TreeTokensArgs CarveTreeTokens(const TreeShape& shape, ArrayCarver& carver) {
  const int num_rows = shape.num_rows;
  const int num_tokens = shape.num_tokens();
  TreeTokensArgs args;
  args.num_rows = num_rows;
  args.num_tokens = num_tokens;
  args.num_logits = shape.num_logits();
  args.max_nodes = shape.max_nodes;
  args.num_groups = shape.num_groups;
  args.arrays = {.token_ids = carver.Take<int32_t>("token_ids", num_tokens),
                 .positions = carver.Take<int32_t>("positions", num_tokens),
                 .query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1),
                 .seq_lens = carver.Take<int32_t>("seq_lens", num_rows),
                 .table_row = carver.Take<int32_t>("table_row", num_rows),
                 .logits_indices = carver.Take<int32_t>("logits_indices", num_rows),
                 .tail_len = carver.Take<int32_t>("tail_len", num_rows),
                 .tail_mask = carver.Take<uint64_t>("tail_mask", num_tokens),
                 .context_lens = carver.Take<int32_t>("context_lens", num_rows),
                 .group_stride = num_tokens + 3};
  args.arrays.slot_mapping =
      carver.Take<int64_t>("slot_mapping", shape.num_groups * args.arrays.group_stride);
  if (shape.has_faults) args.arrays.row_faults = carver.Take<int32_t>("row_faults", num_rows);
  args.parents.row_stride = shape.parent_stride;
  args.parents.nodes =
      carver.Take<int32_t>("parents", shape.parent_stride == TreeParents::kByToken
                                          ? num_tokens
                                          : num_rows * shape.parent_stride + shape.max_nodes);
  if (shape.has_logits) {
    args.first_verified = carver.Take<int32_t>("first_verified", num_rows);
    args.sample_offset = carver.Take<int32_t>("sample_offset", shape.num_logits());
  }
  if (shape.num_dims > 1) {
    args.model_positions = {.delta = carver.Take<int32_t>("position_delta", shape.num_tables),
                            .num_dims = shape.num_dims,
                            .stride = num_tokens + 1};
    args.model_positions.positions =
        carver.Take<int32_t>("model_positions", shape.num_dims * args.model_positions.stride);
  }
  return args;
}

void DrawTreeTokens(Random& random, const TreeShape& shape, double hostility,
                    TreeTokensArgs& args) {
  const auto put = [&](const int32_t* array, int64_t i, int32_t value) {
    Mutable(array)[i] = Chance(random, hostility) ? kAbsurd[random.Int(0, 5)] : value;
  };
  int first_token = 0;
  int first_verified = shape.num_rows;
  for (int table = 0; shape.num_dims > 1 && table < shape.num_tables; ++table) {
    Mutable(args.model_positions.delta)[table] = random.Int(-5, 100);
  }
  for (int r = 0; r < shape.num_rows; ++r) {
    const bool is_live = !random.OneIn(4);
    const int count = is_live ? random.Int(1, shape.max_nodes) : 0;
    const bool is_tree = is_live && (!shape.has_logits || (count > 1 && !random.OneIn(4)));
    put(args.arrays.query_start_loc, r, first_token);
    put(args.arrays.seq_lens, r, is_live ? count + random.Int(0, 1000) : 0);
    // Like the rows of a builder: always within the table.
    args.arrays.table_row[r] = random.Int(0, shape.num_tables - 1);
    if (shape.has_logits) put(args.first_verified, r, is_tree ? first_verified : -1);
    int32_t* parents = Mutable(args.parents.row(r, first_token));
    const int kind = random.Int(0, 4);
    for (int node = 0; node < count; ++node) {
      const int least = kind == 0 ? node - 1 : kind == 1 ? -1 : std::max(0, node - 4);
      put(parents, node, node == 0 ? -1 : random.Int(least, node - 1));
      if (Chance(random, hostility / 4)) parents[node] = random.Int(node, node + 1);
    }
    if (is_tree) first_verified += count - 1;
    first_token += count;
  }
  put(args.arrays.query_start_loc, shape.num_rows, first_token);
}

}  // namespace reprise
