// The photometric loss of 3DGS, (1 - w) L1 + w (1 - SSIM), pixel by pixel: what a pass over the
// image computes at one place, for every channel by itself.
//
// SSIM (Wang et al. 2004) has an 11 x 11 Gaussian window of sigma 1.5, zeros outside the image.
// From the blurred maps of x, y, x^2, y^2 and xy it has three partial derivatives that depend on x
// (by the maps of x, x^2 and xy); the window is symmetric, so blurring those gives the gradient:
// dS/dx = B(d_x) + 2 x B(d_xx) + y B(d_xy).
#pragma once

#include <cmath>
#include <cstdint>

#include "common/macros.h"

namespace gart {

constexpr int kSsimRadius = 5;
constexpr int kSsimTaps = 2 * kSsimRadius + 1;
constexpr float kSsimC1 = 0.01f * 0.01f, kSsimC2 = 0.03f * 0.03f;  // for values in [0, 1]

// The window's weight at a distance in pixels: exp(-d^2 / (2 1.5^2)) over their sum.
GART_HD constexpr float ssim_weight(int distance) {
  const int d = distance < 0 ? -distance : distance;
  return d == 0   ? 0.266011725f
         : d == 1 ? 0.213005538f
         : d == 2 ? 0.10936069f
         : d == 3 ? 0.0360007721f
         : d == 4 ? 0.00759875814f
                  : 0.00102838008f;
}

struct Ssim {
  float value;
  float d_x, d_xx, d_xy;  // partial derivatives by the blurred x, x^2 and xy
};

// From the blurred maps at one place.
GART_HD Ssim ssim_at(float x, float y, float xx, float yy, float xy) {
  // value = (a b) / (c d)
  const float a = 2.0f * x * y + kSsimC1, b = 2.0f * (xy - x * y) + kSsimC2;
  const float c = x * x + y * y + kSsimC1, d = (xx - x * x) + (yy - y * y) + kSsimC2;
  const float inv_c = 1.0f / c, inv_d = 1.0f / d, inverse = inv_c * inv_d;
  const float value = a * b * inverse;
  return {value, 2.0f * (y * (b - a) * inverse + x * value * (inv_d - inv_c)), -value * inv_d,
          2.0f * a * inverse};
}

// A rendering beside its photograph.
struct Comparison {
  int width, height, channels;  // of the photograph: 3, or 4 with straight alpha
  const float* color;           // [H, W, 3] premultiplied, without background
  const float* opacity;         // [H, W]
  const float* background;      // [3]
  const uint8_t* photograph;    // [H, W, channels]
  const uint8_t* mask;          // [H, W], 0 where a pixel does not count; null: all count
  float ssim_share;             // w
  float scale;                  // 1 / number of values that count

  struct Values {
    float x, y;  // rendering and photograph, both over the background
  };

  GART_HD bool counts(int64_t pixel) const { return mask == nullptr || mask[pixel] != 0; }

  // A pixel that does not count is as the photograph: it adds nothing, and leaves SSIM's windows
  // beside it as they should be.
  GART_HD Values at(int64_t pixel, int channel) const {
    const float behind = background[channel];
    const uint8_t* p = photograph + channels * pixel;
    float y = static_cast<float>(p[channel]) * (1.0f / 255.0f);
    if (channels == 4) {
      const float alpha = static_cast<float>(p[3]) * (1.0f / 255.0f);
      y = y * alpha + (1.0f - alpha) * behind;
    }
    if (!counts(pixel)) return {y, y};
    return {color[3 * pixel + channel] + (1.0f - opacity[pixel]) * behind, y};
  }

  GART_HD float l1_share() const { return 1.0f - ssim_share; }

  // Squared error of what is seen of x.
  GART_HD static float squared_error(const Values& v) {
    const float seen = v.x < 0.0f ? 0.0f : (v.x > 1.0f ? 1.0f : v.x);
    return (seen - v.y) * (seen - v.y);
  }

  // The loss's derivative by x, where the pixel counts, from the blurred partial derivatives of the
  // SSIMs in the loss. L1 has none where x equals y, as in PyTorch.
  GART_HD float gradient(const Values& v, float d_x, float d_xx, float d_xy) const {
    const float sign = v.x > v.y ? 1.0f : (v.x < v.y ? -1.0f : 0.0f);
    const float ssim = d_x + 2.0f * v.x * d_xx + v.y * d_xy;
    return scale * (l1_share() * sign - ssim_share * ssim);
  }
};

}  // namespace gart
