#include "reprise/distributed/testing/thread_ranks.h"

#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "reprise/base/status_macros.h"

namespace reprise {
namespace {

constexpr std::chrono::seconds kTimeout(60);

// The state shared by the ranks of a group.
class Group {
 public:
  explicit Group(int world) : tensors_(world) {}

  // Returns after all ranks have called Meet(). Fails on every call after a failure.
  absl::Status Meet() {
    std::unique_lock lock(mutex_);
    if (!status_.ok()) return status_;
    const int64_t round = round_;
    if (++num_waiting_ == static_cast<int>(tensors_.size())) {
      num_waiting_ = 0;
      ++round_;
      changed_.notify_all();
      return absl::OkStatus();
    }
    const bool in_time =
        changed_.wait_for(lock, kTimeout, [&] { return round_ != round || !status_.ok(); });
    if (round_ != round) return absl::OkStatus();
    if (!in_time) status_.Update(absl::DeadlineExceededError("a rank did not come in time"));
    changed_.notify_all();
    return status_;
  }

  void End(int rank) { Fail(absl::UnavailableError(absl::StrCat("rank ", rank, " has ended"))); }

  void Fail(const absl::Status& why) {
    const std::lock_guard lock(mutex_);
    status_.Update(why);
    changed_.notify_all();
  }

  // Publishes this rank's tensor, waits for all ranks, calls `read`, which may use tensors(), and
  // waits again.
  absl::Status Exchange(int rank, const at::Tensor& own, absl::FunctionRef<void()> read) {
    tensors_[rank] = own;
    REPRISE_RETURN_IF_ERROR(Meet());
    read();
    return Meet();
  }

  const std::vector<at::Tensor>& tensors() const { return tensors_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_waiting_ = 0;
  int64_t round_ = 0;
  absl::Status status_;
  std::vector<at::Tensor> tensors_;  // by rank; read only between two calls of Meet()
};

class ThreadCollectives final : public Collectives {
 public:
  ThreadCollectives(Group& group, const Ranks& ranks) : Collectives(ranks), group_(group) {}

  std::string Fingerprint() const override { return absl::StrCat("threads ", ranks().world); }
  absl::Status status() const override { return failure_; }

  void Fail(const absl::Status& why) override {
    failure_.Update(why);
    group_.Fail(absl::UnavailableError(
        absl::StrCat("rank ", ranks().rank, ": ", std::string(why.message()))));
  }

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override {
    at::Tensor sum;
    REPRISE_RETURN_IF_ERROR(Exchange(tensor, [&] { sum = SumOf(group_.tensors()); }));
    tensor.copy_(sum);
    return absl::OkStatus();
  }

  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    return Exchange(in, [&] {
      for (int rank = 0; rank < ranks().world; ++rank) {
        // out[rank] may be `in` itself.
        if (out[rank].const_data_ptr() != in.const_data_ptr()) {
          out[rank].copy_(group_.tensors()[rank]);
        }
      }
    });
  }

  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override {
    return Exchange(in, [&] {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& tensor : group_.tensors()) parts.push_back(tensor[ranks().rank]);
      out.copy_(SumOf(parts));
    });
  }

  absl::Status DoBroadcast(at::Tensor& tensor, int root) override {
    return Exchange(tensor, [&] {
      if (ranks().rank != root) tensor.copy_(group_.tensors()[root]);
    });
  }

  absl::Status DoBarrier() override { return Kept(group_.Meet()); }

 private:
  static at::Tensor SumOf(const std::vector<at::Tensor>& tensors) {
    const at::ScalarType dtype = tensors[0].scalar_type();
    const bool is_short = dtype == at::kHalf || dtype == at::kBFloat16;
    at::Tensor sum = at::zeros_like(tensors[0], is_short ? at::kFloat : dtype);
    for (const at::Tensor& tensor : tensors) sum.add_(tensor.to(sum.scalar_type()));
    return sum.to(dtype);
  }

  absl::Status Exchange(const at::Tensor& own, absl::FunctionRef<void()> read) {
    return Kept(group_.Exchange(ranks().rank, own, read));
  }

  absl::Status Kept(const absl::Status& status) {
    failure_.Update(status);
    return status;
  }

  Group& group_;
  absl::Status failure_;
};

}  // namespace

std::vector<absl::Status> RunThreadRanks(int world,
                                         const std::function<absl::Status(Collectives&)>& run) {
  return RunThreadGrid(world, /*context_ranks=*/1, [&](RankGrid& grid) { return run(grid.all()); });
}

std::vector<absl::Status> RunThreadGrid(int world, int context_ranks,
                                        const std::function<absl::Status(RankGrid&)>& run) {
  const int weights_ranks = world / context_ranks;
  Group all(world);
  std::deque<Group> rows, columns;  // the groups that shard weights, and the groups that shard keys
  for (int row = 0; row < context_ranks; ++row) rows.emplace_back(weights_ranks);
  for (int column = 0; column < weights_ranks; ++column) columns.emplace_back(context_ranks);
  std::vector<absl::Status> results(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      const GridCoordinates place =
          CoordinatesInGrid({.rank = rank, .world = world}, context_ranks);
      Group& row = rows[place.context.rank];
      Group& column = columns[place.weights.rank];
      std::unique_ptr<Collectives> weights, context;
      if (context_ranks > 1 && weights_ranks > 1) {
        weights = std::make_unique<ThreadCollectives>(row, place.weights);
        context = std::make_unique<ThreadCollectives>(column, place.context);
      }
      RankGrid grid(std::make_unique<ThreadCollectives>(all, Ranks{.rank = rank, .world = world}),
                    context_ranks, std::move(weights), std::move(context));
      results[rank] = run(grid);
      for (Group* group : {&all, &row, &column}) group->End(rank);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

}  // namespace reprise
