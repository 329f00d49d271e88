#include "reprise/attention/testing/pairwise.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "glog/logging.h"

namespace reprise {
namespace {

// The pairs of choices that have not occurred yet.
class OpenPairs {
 public:
  explicit OpenPairs(const std::vector<int>& num_choices) {
    for (int count : num_choices) {
      first_.push_back(num_choices_);
      num_choices_ += count;
    }
    is_open_.assign(static_cast<size_t>(num_choices_) * num_choices_, true);
    for (size_t a = 0; a < num_choices.size(); ++a) {
      for (size_t b = a + 1; b < num_choices.size(); ++b) {
        num_open_ += int64_t{num_choices[a]} * num_choices[b];
      }
    }
  }

  bool empty() const { return num_open_ == 0; }

  bool Has(int a, int choice_a, int b, int choice_b) const {
    return is_open_[At(a, choice_a, b, choice_b)];
  }

  void Close(int a, int choice_a, int b, int choice_b) {
    auto pair = is_open_[At(a, choice_a, b, choice_b)];
    num_open_ -= pair;
    pair = false;
  }

 private:
  size_t At(int a, int choice_a, int b, int choice_b) const {
    const int low = first_[std::min(a, b)] + (a < b ? choice_a : choice_b);
    const int high = first_[std::max(a, b)] + (a < b ? choice_b : choice_a);
    return static_cast<size_t>(low) * num_choices_ + high;
  }

  int num_choices_ = 0;
  std::vector<int> first_;  // index of each field's first choice among all choices
  std::vector<bool> is_open_;
  int64_t num_open_ = 0;
};

// Returns the choice of `field` that covers most open pairs with the fields already chosen. Breaks
// ties at random.
int BestChoice(const OpenPairs& open, const std::vector<int>& num_choices,
               const std::vector<int>& row, int field, Random& random) {
  int best = 0;
  int most = -1;
  const int shift = random.Int(0, num_choices[field] - 1);
  for (int i = 0; i < num_choices[field]; ++i) {
    const int choice = (i + shift) % num_choices[field];
    int closed = 0;
    for (int other = 0; other < static_cast<int>(row.size()); ++other) {
      if (row[other] >= 0 && other != field) {
        closed += open.Has(field, choice, other, row[other]);
      }
    }
    if (closed > most) {
      most = closed;
      best = choice;
    }
  }
  return best;
}

// Begins a row with an open pair, so that every row covers at least one.
void BeginWithOpenPair(const OpenPairs& open, const std::vector<int>& num_choices, Random& random,
                       std::vector<int>& row) {
  const int fields = static_cast<int>(num_choices.size());
  const int shift = random.Int(0, fields - 1);
  for (int i = 0; i < fields; ++i) {
    const int a = (i + shift) % fields;
    for (int b = 0; b < fields; ++b) {
      if (a == b) continue;
      for (int choice_a = 0; choice_a < num_choices[a]; ++choice_a) {
        for (int choice_b = 0; choice_b < num_choices[b]; ++choice_b) {
          if (!open.Has(a, choice_a, b, choice_b)) continue;
          row[a] = choice_a;
          row[b] = choice_b;
          return;
        }
      }
    }
  }
}

}  // namespace

std::vector<std::vector<int>> PairwiseRows(const std::vector<int>& num_choices, Random& random) {
  CHECK_GE(num_choices.size(), 2u);
  const int fields = static_cast<int>(num_choices.size());
  OpenPairs open(num_choices);
  std::vector<int> order(fields);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    std::vector<int> row(fields, -1);
    BeginWithOpenPair(open, num_choices, random, row);
    random.Shuffle(order);
    for (int field : order) {
      if (row[field] < 0) row[field] = BestChoice(open, num_choices, row, field, random);
    }
    for (int a = 0; a < fields; ++a) {
      for (int b = a + 1; b < fields; ++b) open.Close(a, row[a], b, row[b]);
    }
    rows.push_back(row);
  }
  return rows;
}

}  // namespace reprise
