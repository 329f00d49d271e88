// Collectives that forward the collectives, Barrier(), Fingerprint() and status() to another
// object. Tests override some calls to change or count them.
//
//   class MyCollectives final : public ForwardingCollectives {
//     using ForwardingCollectives::ForwardingCollectives;
//    protected:
//     absl::Status DoBarrier() override { ... return inner().Barrier(); }
//   };

#ifndef REPRISE_DISTRIBUTED_TESTING_FORWARDING_COLLECTIVES_H_
#define REPRISE_DISTRIBUTED_TESTING_FORWARDING_COLLECTIVES_H_

#include <string>

#include "absl/status/status.h"
#include "reprise/distributed/collectives.h"

namespace reprise {

class ForwardingCollectives : public Collectives {
 public:
  // `inner` must outlive this object.
  explicit ForwardingCollectives(Collectives& inner) : Collectives(inner.ranks()), inner_(inner) {}

  std::string Fingerprint() const override { return inner_.Fingerprint(); }
  absl::Status status() const override { return inner_.status(); }

 protected:
  Collectives& inner() const { return inner_; }

  absl::Status DoAllReduce(at::Tensor& tensor) override { return inner_.AllReduce(tensor); }
  absl::Status DoAllGather(const at::Tensor& in, at::Tensor& out) override {
    return inner_.AllGather(in, out);
  }
  absl::Status DoReduceScatter(const at::Tensor& in, at::Tensor& out) override {
    return inner_.ReduceScatter(in, out);
  }
  absl::Status DoBroadcast(at::Tensor& tensor, int root) override {
    return inner_.Broadcast(tensor, root);
  }
  absl::Status DoBarrier() override { return inner_.Barrier(); }

 private:
  Collectives& inner_;
};

}  // namespace reprise

#endif  // REPRISE_DISTRIBUTED_TESTING_FORWARDING_COLLECTIVES_H_
