// Collectives that count the AllGather() calls and the bytes they receive, for tests of the
// communication volume.
//
//   CountingCollectives counting(collectives);   // for this rank's model
//   ...
//   EXPECT_EQ(counting.num_bytes(), 16);

#ifndef REPRISE_DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_
#define REPRISE_DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_

#include <cstdint>

#include "absl/status/status.h"
#include "reprise/distributed/testing/forwarding_collectives.h"

namespace reprise {

class CountingCollectives final : public ForwardingCollectives {
 public:
  using ForwardingCollectives::ForwardingCollectives;

  int num_gathers() const { return num_gathers_; }
  int64_t num_bytes() const { return num_bytes_; }  // from the other ranks, in all gathers

  void Fail(const absl::Status& why) override { inner().Fail(why); }

 protected:
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    ++num_gathers_;
    num_bytes_ += static_cast<int64_t>(out.nbytes() - in.nbytes());
    return inner().AllGather(in, out);
  }

 private:
  int num_gathers_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_COUNTING_COLLECTIVES_H_
