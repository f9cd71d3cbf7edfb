// Which GPUs this library has code for: what it was compiled for, and what the driver says of the
// GPU at hand. Every file of the library is compiled for the same ones, so one kernel stands for
// all.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

#include "cuda/device.cuh"

namespace gart {
namespace cuda {
namespace {

__global__ void nothing() {}

// nvcc's own list, ten times the compute capability's digits: 800 for 8.0.
tvm::ffi::Array<int64_t> architectures() { return {__CUDA_ARCH_LIST__}; }

// Why no kernel can run on this GPU, in the driver's words; empty when they can. Asking for a
// kernel's attributes makes the driver look for its code, and compile it where that is all there is
// (PTX), without launching anything.
tvm::ffi::String missing_code(int64_t device) {
  int current = 0;
  cudaError_t status = cudaGetDevice(&current);  // fails where the driver is too old
  if (status == cudaSuccess) {
    const DeviceScope scope({kDLCUDA, static_cast<int32_t>(device)});
    cudaFuncAttributes attributes;
    status = cudaFuncGetAttributes(&attributes, nothing);
  }
  switch (status) {
    case cudaSuccess:
      return "";
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorUnsupportedPtxVersion:
      cudaGetLastError();  // else the next launch would report it as its own
      return cudaGetErrorString(status);
    default:
      check_cuda(status, "cudaFuncGetAttributes");
      return "";
  }
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(architectures, gart::cuda::architectures);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(missing_code, gart::cuda::missing_code);
