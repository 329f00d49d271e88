// Headers of other projects for tests that use LibTorch.
#ifndef REPRISE_TOOLS_PRECOMPILED_TORCH_TESTS_H_
#define REPRISE_TOOLS_PRECOMPILED_TORCH_TESTS_H_

#include "ATen/TensorOperators.h"
#include "ATen/core/Tensor.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/full.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#include "tools/precompiled/tests.h"
#include "tools/precompiled/torch.h"

#endif  // REPRISE_TOOLS_PRECOMPILED_TORCH_TESTS_H_
