// L1 and SSIM of a rendering against its photograph, and their gradients, on the CPU.
//
// Two passes over the image, each parallel over bands of rows: the SSIMs with their partial
// derivatives, then the gradient from the blurred derivatives. A band keeps the last 11 rows,
// blurred along the row, in a ring and blurs down its columns (common/photometric_loss.h). Colours
// are interleaved all the way, so that every loop runs over 3 W floats. Cost: 16 B of rendering and
// 3 B of photograph a pixel read twice, 36 B of derivatives written and read, 16 B of gradients
// written; a band of 64 rows blurs 74.
#include "common/photometric_loss.h"

#include <tvm/ffi/function.h>

#include <array>
#include <vector>

#include "bindings/training.h"
#include "common/training_fault.h"
#include "cpu/parallel.h"
#include "cpu/vector_clones.h"

namespace gart {
namespace {

constexpr int kBand = 64;              // rows of a band
constexpr int kPad = 3 * kSsimRadius;  // zeros on both sides of a row
using Taps = std::array<const float*, kSsimTaps>;

// out[i] = sum_k weight_k taps[k][i].
GART_VECTOR_CLONES void blur(const Taps& taps, int n, float* GART_RESTRICT out) {
  const float* t[kSsimTaps];
  for (int k = 0; k < kSsimTaps; ++k) t[k] = taps[k];
  for (int i = 0; i < n; ++i) {
    float sum = ssim_weight(0) * t[kSsimRadius][i];
    for (int k = 1; k <= kSsimRadius; ++k)
      sum += ssim_weight(k) * (t[kSsimRadius - k][i] + t[kSsimRadius + k][i]);
    out[i] = sum;
  }
}

GART_VECTOR_CLONES void multiply(const float* GART_RESTRICT a, const float* GART_RESTRICT b, int n,
                                 float* GART_RESTRICT out) {
  for (int i = 0; i < n; ++i) out[i] = a[i] * b[i];
}

// Rows of kMaps images that pass by, blurred both ways.
template <int kMaps>
class Blur {
 public:
  explicit Blur(int n) : n_(n), ring_(static_cast<size_t>(kMaps) * kSsimTaps * n) {}

  // Takes the next row of map `m`; `padded` has kPad zeros on both sides, null stands for zeros.
  void push(int m, const float* padded) {
    float* row = slot(m, next_[m]++);
    if (padded == nullptr) {
      std::fill(row, row + n_, 0.0f);
      return;
    }
    Taps taps;
    for (int k = 0; k < kSsimTaps; ++k) taps[k] = padded + 3 * k;
    blur(taps, n_, row);
  }

  // The row kSsimRadius before the last, once kSsimTaps have passed.
  void row(int m, float* out) const {
    Taps taps;
    for (int k = 0; k < kSsimTaps; ++k) taps[k] = slot(m, next_[m] + k);
    blur(taps, n_, out);
  }

 private:
  float* slot(int m, int row) const {
    return const_cast<float*>(ring_.data()) +
           (static_cast<size_t>(m) * kSsimTaps + row % kSsimTaps) * n_;
  }
  int n_;
  std::vector<float> ring_;
  int next_[kMaps] = {};
};

// A row's renderings x and photographs y.
void load(const Comparison& in, int row, float* x, float* y) {
  for (int column = 0; column < in.width; ++column) {
    for (int c = 0; c < 3; ++c) {
      const Comparison::Values v = in.at(static_cast<int64_t>(row) * in.width + column, c);
      x[3 * column + c] = v.x;
      y[3 * column + c] = v.y;
    }
  }
}

struct Sums {
  double terms = 0, squares = 0;
};

// First pass: what a band adds to the loss and the squared error, and the SSIMs' derivatives
// [3][H][3 W], zero where a pixel does not count.
Sums differentiate(const Comparison& in, int begin, int end, float* derivatives) {
  const int n = 3 * in.width;
  const size_t plane = static_cast<size_t>(in.height) * n;
  Blur<5> blur(n);
  std::vector<float> rows(5 * static_cast<size_t>(n + 2 * kPad), 0.0f);
  std::vector<float> maps(5 * static_cast<size_t>(n));
  float *padded[5], *map[5];
  for (int m = 0; m < 5; ++m) {
    padded[m] = rows.data() + static_cast<size_t>(m) * (n + 2 * kPad);
    map[m] = maps.data() + static_cast<size_t>(m) * n;
  }
  float *x = padded[0] + kPad, *y = padded[1] + kPad;
  Sums sums;
  for (int row = begin - kSsimRadius; row < end + kSsimRadius; ++row) {
    const bool inside = row >= 0 && row < in.height;
    if (inside) {
      load(in, row, x, y);
      multiply(x, x, n, padded[2] + kPad);
      multiply(y, y, n, padded[3] + kPad);
      multiply(x, y, n, padded[4] + kPad);
    }
    for (int m = 0; m < 5; ++m) blur.push(m, inside ? padded[m] : nullptr);
    if (row >= begin && row < end) {
      for (int i = 0; i < n; ++i) {
        sums.terms += in.l1_share() * std::fabs(x[i] - y[i]);
        if (in.counts(static_cast<int64_t>(row) * in.width + i / 3))
          sums.squares += Comparison::squared_error({x[i], y[i]});
      }
    }
    const int done = row - kSsimRadius;
    if (done < begin) continue;
    for (int m = 0; m < 5; ++m) blur.row(m, map[m]);
    float* out = derivatives + static_cast<size_t>(done) * n;
    for (int i = 0; i < n; ++i) {
      Ssim s{1.0f, 0.0f, 0.0f, 0.0f};
      if (in.counts(static_cast<int64_t>(done) * in.width + i / 3))
        s = ssim_at(map[0][i], map[1][i], map[2][i], map[3][i], map[4][i]);
      sums.terms += in.ssim_share * (1.0f - s.value);
      out[i] = s.d_x;
      out[plane + i] = s.d_xx;
      out[2 * plane + i] = s.d_xy;
    }
  }
  return sums;
}

// Second pass: the gradients of a band's colours and, unless null, opacities.
void gather(const Comparison& in, int begin, int end, const float* derivatives, float* grad_color,
            float* grad_opacity) {
  const int n = 3 * in.width;
  const size_t plane = static_cast<size_t>(in.height) * n;
  Blur<3> blur(n);
  std::vector<float> padded(n + 2 * static_cast<size_t>(kPad), 0.0f);
  std::vector<float> maps(3 * static_cast<size_t>(n));
  float* map[3] = {maps.data(), maps.data() + n, maps.data() + 2 * static_cast<size_t>(n)};
  for (int row = begin - kSsimRadius; row < end + kSsimRadius; ++row) {
    const bool inside = row >= 0 && row < in.height;
    for (int m = 0; m < 3; ++m) {
      if (inside) {
        const float* from = derivatives + m * plane + static_cast<size_t>(row) * n;
        std::copy(from, from + n, padded.data() + kPad);
      }
      blur.push(m, inside ? padded.data() : nullptr);
    }
    const int done = row - kSsimRadius;
    if (done < begin) continue;
    for (int m = 0; m < 3; ++m) blur.row(m, map[m]);
    for (int column = 0; column < in.width; ++column) {
      const int64_t pixel = static_cast<int64_t>(done) * in.width + column;
      float behind = 0.0f;
      for (int c = 0; c < 3; ++c) {
        const int i = 3 * column + c;
        float g = 0.0f;
        if (in.counts(pixel)) g = in.gradient(in.at(pixel, c), map[0][i], map[1][i], map[2][i]);
        grad_color[3 * pixel + c] = g;
        behind += in.background[c] * g;
      }
      if (grad_opacity != nullptr) grad_opacity[pixel] = -behind;
    }
  }
}

// Gradients of color [H, W, 3] and, with `through_opacity`, opacity [H, W] (else empty). Writes the
// loss and the mean squared error to `numbers` [2]; a loss that is not finite is a fault.
tvm::ffi::Array<Tensor> photometric_loss(TensorView color, TensorView opacity,
                                         TensorView background, TensorView photograph,
                                         TensorView mask, int64_t counted, double ssim_share,
                                         bool through_opacity, TensorView numbers, TensorView fault,
                                         int64_t iteration, int64_t threads) {
  const Comparison in =
      comparison(color, opacity, background, photograph, mask, counted, ssim_share, kDLCPU);
  float* values = const_cast<float*>(checked<float>(numbers, "numbers", {2}, kDLCPU));
  int32_t* fault_values = fault_view(fault, kDLCPU);
  const int64_t h = in.height, w = in.width;
  const Tensor grad_color = empty<float>({h, w, 3}, color.device());
  const Tensor grad_opacity = empty<float>({through_opacity ? h : 0, w}, color.device());
  std::vector<float> derivatives(9 * static_cast<size_t>(h) * w);
  const int workers = static_cast<int>(threads);
  std::vector<Sums> sums((h + kBand - 1) / kBand);
  parallel_blocks(h, kBand, workers, [&](int64_t begin, int64_t end, int) {
    sums[begin / kBand] =
        differentiate(in, static_cast<int>(begin), static_cast<int>(end), derivatives.data());
  });
  parallel_blocks(h, kBand, workers, [&](int64_t begin, int64_t end, int) {
    gather(in, static_cast<int>(begin), static_cast<int>(end), derivatives.data(),
           data<float>(grad_color), through_opacity ? data<float>(grad_opacity) : nullptr);
  });
  Sums total;
  for (const Sums& s : sums) {
    total.terms += s.terms;
    total.squares += s.squares;
  }
  values[0] = static_cast<float>(in.scale * total.terms);
  values[1] = static_cast<float>(in.scale * total.squares);
  if (!is_finite(values[0])) report_fault(fault_values, static_cast<int>(iteration), kFaultLoss);
  return {grad_color, grad_opacity};
}

}  // namespace
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(photometric_loss, gart::photometric_loss);
