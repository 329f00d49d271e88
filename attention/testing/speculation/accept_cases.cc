#include "reprise/attention/testing/speculation/accept_cases.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace reprise {
namespace {

constexpr int32_t kAbsurd[] = {-12345, 1 << 30, INT32_MIN, INT32_MAX, -1, 0};

bool Chance(Random& random, double p) { return random.Real(0, 1) < p; }

template <typename T>
T* Mutable(const T* array) {
  return const_cast<T*>(array);
}

// Draws the rows of a batch into its arrays.
class RowDraws {
 public:
  RowDraws(Random& random, const AcceptShape& shape, double hostility, AcceptDraftsArgs& args)
      : random_(random), shape_(shape), hostility_(hostility), args_(args) {}

  void Draw() {
    DrawState();
    DrawTokens();
    std::vector<int32_t> slots(shape_.num_slots);
    std::iota(slots.begin(), slots.end(), 0);
    random_.Shuffle(slots);
    const double padded = random_.OneIn(3) ? 0.7 : 0.1;
    int first_token = 0;
    int first_verified = shape_.num_rows;
    accuracy_ = random_.Real(0, 1);
    for (int r = 0; r < shape_.num_rows; ++r) {
      const bool is_padded = Chance(random_, padded);
      const bool has_drafts =
          !is_padded && shape_.max_drafts > 0 && (shape_.is_by_token || !random_.OneIn(3));
      const int query_len =
          is_padded ? 0 : random_.Int(has_drafts ? 2 : 1, has_drafts ? shape_.max_row_tokens() : 1);
      Put(args_.query_start_loc, r, first_token);
      Put(args_.context_lens, r, random_.Int(0, shape_.max_positions - 1));
      Put(args_.slot_of_row, r, is_padded ? -1 - random_.Int(0, 3) : slots[r]);
      // Two rows with the same slot would be a race.
      if (args_.slot_of_row[r] >= 0 && args_.slot_of_row[r] < shape_.num_slots && !is_padded) {
        Mutable(args_.slot_of_row)[r] = slots[r];
      }
      if (is_padded && args_.slot_of_row[r] >= 0) Mutable(args_.slot_of_row)[r] = INT32_MAX;
      if (!shape_.is_by_token) Put(args_.first_verified, r, has_drafts ? first_verified : -1);
      DrawTree(r, first_token, query_len);
      AcceptSome(r, first_token, shape_.is_by_token ? first_token : first_verified, query_len);
      if (has_drafts) first_verified += query_len - 1;
      first_token += query_len;
    }
    Put(args_.query_start_loc, shape_.num_rows, first_token);
    if (args_.output != nullptr) *Mutable(args_.output) = random_.Int(0, shape_.num_outputs);
  }

 private:
  bool IsHostile() { return hostility_ > 0 && Chance(random_, hostility_); }
  int32_t Absurd() { return kAbsurd[random_.Int(0, 5)]; }

  void Put(const int32_t* array, int64_t i, int32_t value) {
    Mutable(array)[i] = IsHostile() ? Absurd() : value;
  }

  void DrawState() {
    const AcceptedSlots& state = args_.slots;
    for (int slot = 0; slot < shape_.num_slots; ++slot) {
      if (state.seq_len != nullptr) state.seq_len[slot] = random_.Int(0, shape_.max_positions);
      if (state.last_token != nullptr) state.last_token[slot] = random_.Int(0, 1000);
      if (state.sample_index != nullptr) state.sample_index[slot] = random_.Int(0, 1000);
      if (state.drafted_len != nullptr) {
        state.drafted_len[slot] = random_.Int(0, shape_.max_positions);
      }
    }
  }

  void DrawTokens() {
    for (int t = 0; t < shape_.num_tokens(); ++t) {
      Put(args_.token_ids, t, random_.Int(0, shape_.vocab_size - 1));
      for (int group = 0; args_.slot_mapping != nullptr && group < shape_.num_groups; ++group) {
        // Distinct slots; some are missing.
        Mutable(args_.slot_mapping)[group * args_.group_stride + t] =
            random_.OneIn(20) ? -1 : 2 * t + random_.Int(0, 1);
      }
    }
    for (int i = 0; i < shape_.num_logits(); ++i) {
      Put(args_.chosen, i, random_.Int(0, shape_.vocab_size - 1));
      if (random_.OneIn(20)) Mutable(args_.chosen)[i] = kNanRow;
    }
  }

  void DrawTree(int r, int first_token, int query_len) {
    if (!shape_.has_trees) return;
    auto* parents = Mutable(args_.parents.row(r, first_token));
    const int num_nodes = shape_.parent_stride == TreeParents::kByToken
                              ? query_len
                              : std::min(query_len, shape_.max_drafts + 1);
    for (int node = 0; node < num_nodes; ++node) {
      // Mostly near the node, which gives long paths.
      const int least = random_.OneIn(3) ? 0 : std::max(0, node - 3);
      Put(parents, node, node == 0 ? -1 : random_.Int(least, node - 1));
      if (IsHostile()) parents[node] = random_.Int(0, query_len + 1);
    }
  }

  // Makes some drafts match the choice after their parent.
  void AcceptSome(int r, int first_token, int first_place, int query_len) {
    for (int node = 1; node < std::min(query_len, shape_.max_drafts + 1); ++node) {
      if (!Chance(random_, accuracy_)) continue;
      const int parent = shape_.has_trees ? args_.parents.row(r, first_token)[node] : node - 1;
      if (parent < 0 || parent >= node) continue;
      Mutable(args_.chosen)[first_place + parent] = args_.token_ids[first_token + node];
    }
  }

  Random& random_;
  const AcceptShape& shape_;
  const double hostility_;
  AcceptDraftsArgs& args_;
  double accuracy_ = 0;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const AcceptShape& shape) {
  return out << shape.num_rows << " rows, " << shape.num_slots << " slots, " << shape.max_drafts
             << " drafts and " << shape.max_extra << ", vocabulary " << shape.vocab_size << ", "
             << shape.max_positions << " positions, " << shape.num_groups << " groups, "
             << (shape.has_trees ? "trees" : "chains") << ", by token " << shape.is_by_token
             << ", parent stride " << shape.parent_stride << ", outputs " << shape.num_outputs;
}

AcceptShape DrawAcceptShape(Random& random) {
  AcceptShape shape;
  shape.num_rows = random.OneIn(5) ? random.Int(30, 300) : random.Int(0, 9);
  shape.num_slots = shape.num_rows + random.Int(1, 4);
  shape.has_trees = random.OneIn(2);
  shape.max_drafts = random.Pick({0, 1, 4, 16, random.Int(1, 20), 63});
  if (shape.num_rows > 9) shape.max_drafts = std::min(shape.max_drafts, 20);
  shape.max_extra = random.OneIn(3) ? random.Int(0, 4) : 0;
  shape.vocab_size = random.OneIn(2) ? random.Int(1, 6) : 30000;
  shape.max_positions = random.Int(1, 120);
  shape.num_groups = random.Int(1, 4);
  shape.is_by_token = random.OneIn(3);
  if (shape.has_trees) {
    shape.parent_stride = random.Pick<int64_t>(
        {TreeParents::kByToken, 0, int64_t{shape.max_drafts} + random.Int(1, 3)});
  }
  shape.has_state = !random.OneIn(5);
  shape.has_history = !random.OneIn(5);
  shape.has_drafted_len = !random.OneIn(5);
  shape.has_faults = !random.OneIn(5);
  shape.place_group = random.Int(-1, shape.num_groups - 1);
  shape.num_outputs = random.OneIn(3) ? 3 : 0;
  return shape;
}

AcceptDraftsArgs CarveAcceptDrafts(const AcceptShape& shape, ArrayCarver& carver) {
  const int num_rows = shape.num_rows;
  AcceptDraftsArgs args;
  args.query_start_loc = carver.Take<int32_t>("query_start_loc", num_rows + 1);
  args.context_lens = carver.Take<int32_t>("context_lens", num_rows);
  args.token_ids = carver.Take<int32_t>("token_ids", shape.num_tokens());
  args.num_groups = shape.num_groups;
  args.group_stride = shape.num_tokens() + 3;
  if (shape.has_trees) {
    args.parents.row_stride = shape.parent_stride;
    const int64_t count = shape.parent_stride == TreeParents::kByToken
                              ? shape.num_tokens()
                              : num_rows * shape.parent_stride + shape.max_drafts + 1;
    args.parents.nodes = carver.Take<int32_t>("parents", count);
    const int64_t num_moves = int64_t{shape.num_groups} * num_rows * shape.max_drafts;
    args.move_from = carver.Take<int64_t>("move_from", num_moves);
    args.move_to = carver.Take<int64_t>("move_to", num_moves);
  }
  if (shape.has_trees || shape.place_group >= 0) {
    args.slot_mapping = carver.Take<int64_t>("slot_mapping", shape.num_groups * args.group_stride);
  }
  args.chosen = carver.Take<int32_t>("chosen", shape.num_logits());
  if (!shape.is_by_token) args.first_verified = carver.Take<int32_t>("first_verified", num_rows);
  args.slot_of_row = carver.Take<int32_t>("slot_of_row", num_rows);
  args.num_rows = num_rows;
  args.num_tokens = shape.num_tokens();
  args.num_logits = shape.num_logits();
  args.max_drafts = shape.max_drafts;
  args.slots.num_slots = shape.num_slots;
  if (shape.has_state) {
    args.slots.seq_len = carver.Take<int32_t>("slots.seq_len", shape.num_slots);
    args.slots.last_token = carver.Take<int32_t>("slots.last_token", shape.num_slots);
    args.slots.sample_index = carver.Take<int64_t>("slots.sample_index", shape.num_slots);
  }
  if (shape.has_drafted_len) {
    args.slots.drafted_len = carver.Take<int32_t>("slots.drafted_len", shape.num_slots);
  }
  if (shape.has_history) {
    args.slots.history.stride = shape.max_positions + 1;
    args.slots.history.tokens =
        carver.Take<int32_t>("slots.history", shape.num_slots * args.slots.history.stride);
  }
  if (shape.place_group >= 0) {
    // Fewer places than slots.
    args.place_tokens = {.num_places = 2 * int64_t{shape.num_tokens()} - 3,
                         .group = shape.place_group};
    args.place_tokens.tokens = carver.Take<int32_t>("place_tokens", 2 * shape.num_tokens());
  }
  args.new_tokens_stride = shape.max_drafts + 2;
  const int64_t num_new_tokens = num_rows * args.new_tokens_stride;
  int64_t more = 0;
  if (shape.num_outputs > 0) {
    args.output = carver.Take<int32_t>("output", 1);
    args.output_stride = num_new_tokens + 3;
    more = (shape.num_outputs - 1) * args.output_stride;
    args.last_place = carver.Take<int32_t>("last_place", num_rows);
  }
  args.tokens = carver.Take<int32_t>("tokens", num_rows + more);
  args.num_new = carver.Take<int32_t>("num_new", num_rows + more);
  args.new_tokens = carver.Take<int32_t>("new_tokens", num_new_tokens + more);
  if (shape.has_faults) args.row_faults = carver.Take<int32_t>("row_faults", num_rows);
  return args;
}

void DrawAcceptDrafts(Random& random, const AcceptShape& shape, double hostility,
                      AcceptDraftsArgs& args) {
  RowDraws(random, shape, hostility, args).Draw();
}

}  // namespace reprise
