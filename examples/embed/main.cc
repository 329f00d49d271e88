// The toolkit as an outsider uses it: from another workspace, with the compiler options of that
// one.

#include <array>
#include <iostream>

#include "ATen/core/Tensor.h"
#include "ATen/ops/zeros.h"
#include "absl/types/span.h"
#include "cache/block_pool.h"

int main() {
  absl::StatusOr<reprise::BlockPool> pool = reprise::BlockPool::Create({.num_blocks = 8});
  std::array<reprise::BlockId, 3> blocks;
  if (!pool.ok() || !pool->Allocate(absl::MakeSpan(blocks)).ok()) return 1;
  const at::Tensor keys = at::zeros({pool->num_blocks(), 16, 2, 64});
  std::cout << pool->num_used() << " of " << keys.size(0) << " blocks are used\n";
  return 0;
}
