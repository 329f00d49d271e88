// Headers of other projects for files that use LibTorch. Each operator's header includes ATen/Context.h.
#ifndef REPRISE_TOOLS_PRECOMPILED_TORCH_H_
#define REPRISE_TOOLS_PRECOMPILED_TORCH_H_

#include "ATen/Context.h"
#include "ATen/core/Tensor.h"
#include "tools/precompiled/vocabulary.h"

#endif  // REPRISE_TOOLS_PRECOMPILED_TORCH_H_
