// Collectives that count what a rank gets by AllGather(), for tests of how much is sent.
//
//   CountingCollectives counting(collectives);   // for this rank's model
//   ...
//   EXPECT_EQ(counting.num_bytes(), 16);

#ifndef DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_
#define DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "distributed/collectives.h"

namespace reprise {

class CountingCollectives final : public Collectives {
 public:
  // `ranks` must outlive it.
  explicit CountingCollectives(Collectives& ranks) : Collectives(ranks.ranks()), ranks_(ranks) {}

  int num_gathers() const { return num_gathers_; }
  int64_t num_bytes() const { return num_bytes_; }  // from the other ranks, in all gathers

  std::string Fingerprint() const override { return ranks_.Fingerprint(); }
  absl::Status status() const override { return ranks_.status(); }
  void Fail(const absl::Status& why) override { ranks_.Fail(why); }

 protected:
  absl::Status DoAllReduce(at::Tensor& tensor) override { return ranks_.AllReduce(tensor); }
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    ++num_gathers_;
    num_bytes_ += static_cast<int64_t>(out.nbytes() - in.nbytes());
    return ranks_.AllGather(in, out);
  }
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override {
    return ranks_.ReduceScatter(in, out);
  }
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override {
    return ranks_.Broadcast(tensor, root);
  }
  absl::Status DoBarrier() override { return ranks_.Barrier(); }

 private:
  Collectives& ranks_;
  int num_gathers_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace reprise

#endif  // DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_
