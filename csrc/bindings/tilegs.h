// What `tilegs_render` returns beside its images and refuses, alike in both backends.
#pragma once

#include <cstring>

#include "bindings/tensors.h"

namespace gart::tilegs {

// In the order of the returned tensor; times in ms. Counts that nobody asked for are -1.
struct Stats {
  double project = 0, intersect = 0, bin = 0, repair = 0, raster = 0;
  double splats = 0, entries = 0, segments = 0, repaired_segments = 0, repaired_entries = 0,
         tests = 0, bytes = 0;

  Tensor tensor() const {
    const Tensor numbers = empty<double>({sizeof(Stats) / sizeof(double)}, DLDevice{kDLCPU, 0});
    std::memcpy(data<double>(numbers), this, sizeof *this);
    return numbers;
  }
};

inline void check_arguments(int64_t count, int64_t coeffs, int64_t width, int64_t height,
                            int64_t bins) {
  if (coeffs != 1 && coeffs != 4 && coeffs != 9 && coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << coeffs << " coefficients; expected 1, 4, 9 or 16";
  }
  if (count > INT32_MAX) {
    TVM_FFI_THROW(ValueError) << "means has " << count << " rows; at most 2^31 - 1 fit";
  }
  constexpr int64_t kMaxSide = 1 << 16;
  if (width < 1 || height < 1 || width > kMaxSide || height > kMaxSide) {
    TVM_FFI_THROW(ValueError) << "image size is " << width << " x " << height
                              << "; expected 1 to 65536 pixels a side";
  }
  if (bins != 16 && bins != 32 && bins != 64 && bins != 128) {
    TVM_FFI_THROW(ValueError) << "bins is " << bins << "; expected 16, 32, 64 or 128";
  }
}

}  // namespace gart::tilegs
