#include <cuda_runtime.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include "bindings/constants.h"

namespace gart {
namespace {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << what << ": " << cudaGetErrorString(status);
  }
}

__global__ void write_architecture(int* architecture) {
#ifdef __CUDA_ARCH__
  *architecture = __CUDA_ARCH__ / 10;
#endif
}

// Architecture (90 for sm_90) of this library's code that runs on the current device. Throws where
// there is none, so that a library built for other GPUs is recognised before any work is done.
int64_t architecture() {
  int* device_value = nullptr;
  int value = 0;
  check(cudaMalloc(&device_value, sizeof(int)), "cudaMalloc");
  write_architecture<<<1, 1>>>(device_value);
  const cudaError_t launched = cudaGetLastError();
  const cudaError_t copied = cudaMemcpy(&value, device_value, sizeof(int), cudaMemcpyDeviceToHost);
  cudaFree(device_value);
  check(launched, "launching a kernel");
  check(copied, "cudaMemcpy");
  return value;
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(constants, gart::constants);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(architecture, gart::architecture);
