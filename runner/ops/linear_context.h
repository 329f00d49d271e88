// What matrix products share on one device: the cuBLASLt handle, a workspace that is never grown or freed while a graph lives,
// and the algorithm chosen for each shape before capture. Owned by the runner (or whoever captures); one stream at a time.

#ifndef RUNNER_OPS_LINEAR_CONTEXT_H_
#define RUNNER_OPS_LINEAR_CONTEXT_H_

namespace reprise {

class LinearContext {
 public:
  virtual ~LinearContext() = default;
};

}  // namespace reprise

#endif  // RUNNER_OPS_LINEAR_CONTEXT_H_
