// What the training step's native functions are given, checked, as plain pointers.
#pragma once

#include <tvm/ffi/container/array.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "bindings/tensors.h"
#include "common/adam.h"
#include "common/photometric_loss.h"

namespace gart {

// The scene's five tensors, or others of their shapes: gradients, moments.
struct Parameters {
  int64_t count;
  int coeffs;  // harmonics a channel
  float *means, *quats, *log_scales, *opacity_logits, *sh;
};

// `what` names them in errors. `count` rows are expected, any number where it is kAny; likewise
// `coeffs`.
inline Parameters parameters(const tvm::ffi::Array<Tensor>& tensors, const std::string& what,
                             int64_t count, int64_t coeffs, int device_type) {
  if (tensors.size() != 5) {
    TVM_FFI_THROW(ValueError) << what << " has " << tensors.size() << " tensors; expected 5";
  }
  const auto view = [&](int k, const char* name, std::initializer_list<int64_t> shape) {
    const std::string full = what + "'s " + name;
    return const_cast<float*>(checked<float>(tensors[k], full.c_str(), shape, device_type));
  };
  Parameters p;
  p.means = view(0, "means", {count, 3});
  p.count = tensors[0].size(0);
  p.quats = view(1, "quats", {p.count, 4});
  p.log_scales = view(2, "log_scales", {p.count, 3});
  p.opacity_logits = view(3, "opacity_logits", {p.count});
  p.sh = view(4, "sh", {p.count, coeffs, 3});
  p.coeffs = static_cast<int>(tensors[4].size(1));
  return p;
}

inline int32_t* fault_view(const TensorView& fault, int device_type) {
  return const_cast<int32_t*>(checked<int32_t>(fault, "fault", {2}, device_type));
}

// `mask` is empty where all pixels count; `counted` is how many do.
inline Comparison comparison(const TensorView& color, const TensorView& opacity,
                             const TensorView& background, const TensorView& photograph,
                             const TensorView& mask, int64_t counted, double ssim_share,
                             int device_type) {
  Comparison c;
  c.color = checked<float>(color, "color", {kAny, kAny, 3}, device_type);
  const int64_t h = color.size(0), w = color.size(1);
  c.height = static_cast<int>(h);
  c.width = static_cast<int>(w);
  c.opacity = checked<float>(opacity, "opacity", {h, w}, device_type);
  c.background = checked<float>(background, "background", {3}, device_type);
  c.photograph = checked<uint8_t>(photograph, "photograph", {h, w, kAny}, device_type);
  c.channels = static_cast<int>(photograph.size(2));
  if (c.channels != 3 && c.channels != 4) {
    TVM_FFI_THROW(ValueError) << "photograph has " << c.channels << " channels; expected 3 or 4";
  }
  c.mask = mask.numel() == 0 ? nullptr : checked<uint8_t>(mask, "mask", {h, w}, device_type);
  c.ssim_share = static_cast<float>(ssim_share);
  c.scale = static_cast<float>(1.0 / (3.0 * static_cast<double>(std::max<int64_t>(counted, 1))));
  return c;
}

struct AdamInputs {
  Parameters scene, gradients, m, v;

  AdamInputs(const tvm::ffi::Array<Tensor>& scene_tensors,
             const tvm::ffi::Array<Tensor>& gradient_tensors,
             const tvm::ffi::Array<Tensor>& first_moments,
             const tvm::ffi::Array<Tensor>& second_moments, int device_type) {
    scene = parameters(scene_tensors, "scene", kAny, kAny, device_type);
    const int64_t n = scene.count, k = scene.coeffs;
    gradients = parameters(gradient_tensors, "gradients", n, kAny, device_type);
    m = parameters(first_moments, "m", n, k, device_type);
    v = parameters(second_moments, "v", n, k, device_type);
    if (gradients.coeffs < 1 || gradients.coeffs > k) {
      TVM_FFI_THROW(ValueError) << "gradients's sh has " << gradients.coeffs
                                << " coefficients; expected 1 to " << k;
    }
  }
};

inline AdamStep adam_constants(double beta1, double beta2, double eps, int64_t steps) {
  const double left = 1.0 - std::pow(beta2, static_cast<double>(steps));
  return {static_cast<float>(1.0 - beta1), static_cast<float>(beta2),
          static_cast<float>(1.0 - beta2), static_cast<float>(1.0 / std::sqrt(left)),
          static_cast<float>(eps)};
}

// `rates`: means, quats, log_scales, opacity_logits, constant and higher harmonics.
inline AdamRates adam_rates(const tvm::ffi::Array<double>& rates, double beta1, int64_t steps) {
  if (rates.size() != 6) {
    TVM_FFI_THROW(ValueError) << "rates has " << rates.size() << " numbers; expected 6";
  }
  const double left = 1.0 - std::pow(beta1, static_cast<double>(steps));
  const auto rate = [&](int k) { return static_cast<float>(rates[k] / left); };
  return {rate(0), rate(1), rate(2), rate(3), rate(4), rate(5)};
}

inline ExplorationNoise exploration_noise(double amount, int64_t seed, int64_t iteration) {
  return {static_cast<float>(amount), static_cast<uint64_t>(seed),
          static_cast<uint32_t>(iteration)};
}

}  // namespace gart
