// How a training step says that a value is not finite: two integers on the device, {iteration,
// values}. The first iteration that reports one stays; `values` has a bit for the loss and for the
// gradient of each of the scene's tensors. While `iteration` is not 0 the optimiser does nothing,
// so the host may look some iterations later and finds the scene as it was.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "common/macros.h"

namespace gart {

enum Fault : int {
  kFaultLoss = 1,
  kFaultMeans = 2,
  kFaultQuats = 4,
  kFaultLogScales = 8,
  kFaultOpacityLogits = 16,
  kFaultSh = 32
};

GART_HD bool is_finite(float value) { return std::fabs(value) <= FLT_MAX; }

// On a GPU from any number of threads.
GART_HD void report_fault(int32_t* fault, int32_t iteration, int values) {
#ifdef __CUDA_ARCH__
  const int32_t before = atomicCAS(fault, 0, iteration);
  if (before == 0 || before == iteration) atomicOr(fault + 1, values);
#else
  if (fault[0] == 0) fault[0] = iteration;
  if (fault[0] == iteration) fault[1] |= values;
#endif
}

}  // namespace gart
