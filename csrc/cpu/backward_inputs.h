// What the backward passes on the CPU are given, as plain pointers, and how they add up.
#pragma once

#include <tvm/ffi/container/array.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "cpu/tile_lists.h"

namespace gart {

enum class Mode { kPrimitive, kHybrid, kPixel };

inline Mode parse_mode(const std::string& mode) {
  if (mode == "primitive") return Mode::kPrimitive;
  if (mode == "hybrid") return Mode::kHybrid;
  if (mode == "pixel") return Mode::kPixel;
  TVM_FFI_THROW(ValueError) << "backward mode is " << mode
                            << "; expected primitive, hybrid or pixel";
  return Mode::kPrimitive;
}

// What the forward pass kept.
struct Saved {
  int64_t records;
  const RayRecord<float>* record;
  const int32_t* gaussian;
  const int64_t* face_begin;
  const int64_t* tile_offset;
  const int32_t* tile_record;
  const int32_t* pixel_hits;
  const int64_t* hit_offset;
  const int32_t* hits;
};

inline Saved saved_state(const tvm::ffi::Array<Tensor>& state, const RayGridView& grid) {
  const int tiles = grid.tiles();
  if (state.size() != 8)
    TVM_FFI_THROW(ValueError) << "state has " << state.size() << " tensors; expected 8";
  Saved saved;
  saved.records = state[0].size(0);
  saved.record = reinterpret_cast<const RayRecord<float>*>(
      checked<float>(state[0], "records", {kAny, kRecordFloats}, kDLCPU));
  saved.gaussian = checked<int32_t>(state[1], "record_gaussian", {saved.records}, kDLCPU);
  saved.face_begin = checked<int64_t>(state[2], "face_begin", {grid.faces + 1}, kDLCPU);
  saved.tile_offset = checked<int64_t>(state[3], "tile_offset", {tiles + 1}, kDLCPU);
  saved.tile_record = checked<int32_t>(state[4], "tile_record", {kAny}, kDLCPU);
  saved.pixel_hits = checked<int32_t>(state[5], "pixel_hits", {tiles, kTilePixels}, kDLCPU);
  saved.hit_offset = checked<int64_t>(state[6], "hit_offset", {tiles + 1}, kDLCPU);
  saved.hits = checked<int32_t>(state[7], "hits", {kAny}, kDLCPU);
  return saved;
}

// Gradients of the outputs. One that the loss does not use comes as an empty tensor: zeros.
class OutputGradients {
 public:
  OutputGradients(const RayGridView& grid, const TensorView& grad_color,
                  const TensorView& grad_opacity, const TensorView& grad_depth)
      : zeros_(3 * static_cast<size_t>(grid.width) * grid.height, 0.0f) {
    const auto gradient = [&](const TensorView& t, const char* name,
                              std::initializer_list<int64_t> shape) -> const float* {
      return t.numel() == 0 ? zeros_.data() : checked<float>(t, name, shape, kDLCPU);
    };
    color = gradient(grad_color, "grad_color", {grid.height, grid.width, 3});
    opacity = gradient(grad_opacity, "grad_opacity", {grid.height, grid.width});
    depth = gradient(grad_depth, "grad_depth", {grid.height, grid.width});
  }
  OutputGradients(const OutputGradients&) = delete;
  OutputGradients& operator=(const OutputGradients&) = delete;

  const float* color;    // [H, W, 3]
  const float* opacity;  // [H, W]
  const float* depth;    // [H, W] of the blended depth

 private:
  std::vector<float> zeros_;
};

struct ParameterGradients {
  float *means, *quats, *log_scales, *opacity_logits, *sh;
};

inline Tensor zeros_like(const TensorView& t) {
  Tensor out = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, t.shape(), t.dtype(), t.device());
  std::memset(out.data_ptr(), 0, static_cast<size_t>(t.numel()) * sizeof(float));
  return out;
}

inline void atomic_add(float* target, float value) {
  static_assert(sizeof(std::atomic<float>) == sizeof(float),
                "float atomics must be lock-free in place");
  auto* atomic = reinterpret_cast<std::atomic<float>*>(target);
  float old = atomic->load(std::memory_order_relaxed);
  while (!atomic->compare_exchange_weak(old, old + value, std::memory_order_relaxed)) {
  }
}

}  // namespace gart
