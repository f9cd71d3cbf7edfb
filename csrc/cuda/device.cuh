// Host-side glue of every CUDA file: error checks that name the kernel, the caller's device and
// stream, allocation in the caller's framework, event timing of stages.
#pragma once

#include <cuda_runtime.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <vector>

#include "bindings/tensors.h"

namespace gart {

inline void check_cuda(cudaError_t status, const char* what) {
  if (status != cudaSuccess) {
    TVM_FFI_THROW(RuntimeError) << "CUDA: " << what << " failed: " << cudaGetErrorString(status);
  }
}

// After every launch.
inline void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

// The device of a tensor, current for as long as this lives, and the stream the caller works on.
class DeviceScope {
 public:
  explicit DeviceScope(DLDevice device) : device_(device) {
    check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device.device_id) check_cuda(cudaSetDevice(device.device_id), "cudaSetDevice");
    stream_ = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  }
  ~DeviceScope() {
    if (previous_ != device_.device_id) cudaSetDevice(previous_);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

  cudaStream_t stream() const { return stream_; }
  DLDevice device() const { return device_; }
  template <typename T>
  Tensor empty(std::initializer_list<int64_t> shape) const {
    return gart::empty<T>(shape, device_);
  }
  template <typename T>
  Tensor zeros(std::initializer_list<int64_t> shape) const {
    Tensor t = gart::empty<T>(shape, device_);
    if (t.numel() > 0) {
      check_cuda(cudaMemsetAsync(t.data_ptr(), 0, t.numel() * sizeof(T), stream_),
                 "cudaMemsetAsync");
    }
    return t;
  }

 private:
  DLDevice device_;
  int previous_ = 0;
  cudaStream_t stream_ = nullptr;
};

// Milliseconds between marks on a stream; does nothing unless enabled, since reading it waits for
// the GPU.
class StageTimer {
 public:
  StageTimer(bool enabled, cudaStream_t stream) : enabled_(enabled), stream_(stream) { mark(); }
  ~StageTimer() {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
  }
  StageTimer(const StageTimer&) = delete;
  StageTimer& operator=(const StageTimer&) = delete;
  void mark() {
    if (!enabled_) return;
    cudaEvent_t event;
    check_cuda(cudaEventCreate(&event), "cudaEventCreate");
    events_.push_back(event);
    check_cuda(cudaEventRecord(event, stream_), "cudaEventRecord");
  }
  std::vector<double> milliseconds() {
    std::vector<double> out;
    if (events_.empty()) return out;
    check_cuda(cudaEventSynchronize(events_.back()), "cudaEventSynchronize");
    for (size_t i = 1; i < events_.size(); ++i) {
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, events_[i - 1], events_[i]), "cudaEventElapsedTime");
      out.push_back(ms);
    }
    return out;
  }

 private:
  bool enabled_;
  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
};

// How many blocks of a kernel the current device runs at once.
template <typename Kernel>
int resident_blocks(Kernel kernel, int threads) {
  int device = 0, processors = 0, each = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
             "cudaDeviceGetAttribute");
  check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0),
             "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
  return processors * (each > 0 ? each : 1);
}

inline unsigned blocks_for(int64_t count, int threads) {
  return static_cast<unsigned>((count + threads - 1) / threads);
}

}  // namespace gart
