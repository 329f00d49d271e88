// Headers of other projects for files that use LibTorch. Each operator's header includes ATen/Context.h.
#ifndef REPRISE_TOOLS_PRECOMPILED_TORCH_H_
#define REPRISE_TOOLS_PRECOMPILED_TORCH_H_

#include "ATen/Context.h"
#include "ATen/core/Tensor.h"
#include "tools/precompiled/vocabulary.h"

// g++ would instantiate the templates of these at the end of each file: a second more for files without operators.
#ifdef __clang__
#include "ATen/Parallel.h"
#include "ATen/TensorOperators.h"
#include "ATen/ops/arange.h"
#include "ATen/ops/cat.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/empty_like.h"
#include "ATen/ops/equal.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/full.h"
#include "ATen/ops/matmul.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/randn.h"
#include "ATen/ops/tensor.h"
#include "ATen/ops/zeros.h"
#endif

#endif  // REPRISE_TOOLS_PRECOMPILED_TORCH_H_
