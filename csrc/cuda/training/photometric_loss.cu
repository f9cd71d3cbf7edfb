// L1 and SSIM of a rendering against its photograph, and their gradients, on the GPU.
//
// Schedule: two kernels, of one shape. A block takes kRows rows of kColumns columns and walks down
// them; a thread is one channel of one column, as colours lie in memory, so that rows are loaded
// and stored in whole sectors. A row is staged in shared memory (two buffers, one barrier a row,
// the next row's loads under way meanwhile), blurred along by its threads, and the last 11 blurred
// rows wait in registers, where blurring down costs no memory at all: the walk is unrolled by 11,
// so that the ring's places are known to the compiler.
//   ssim_kernel    five maps -> the SSIMs' three derivatives, a block's sums of loss and error
//   gradient_kernel  three maps -> gradients of colour and opacity; its first block adds the sums
// Cost a pixel: 20 B of rendering and photograph read twice (and 1.5 times that from caches, for
// windows that reach into neighbours), 36 B of derivatives written and read, 16 B of gradients
// written: 150 B, most of it within the L2 cache; about 3 x 190 and 3 x 110 operations.
#include "common/photometric_loss.h"

#include "bindings/training.h"
#include "common/training_fault.h"
#include "cuda/device.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kColumns = 64;
constexpr int kThreads = 3 * kColumns;
constexpr int kReach = 3 * kSsimRadius;         // floats that a window reaches to each side
constexpr int kStaged = kThreads + 2 * kReach;  // of a row
constexpr int kSteps = 4 * kSsimTaps;           // rows walked
constexpr int kRows = kSteps - 2 * kSsimRadius;
constexpr int kWarps = kThreads / 32;
static_assert(2 * kReach <= kThreads);

// Where a thread of a block is.
struct Place {
  int column, channel;  // of its own value
  int first_row;        // of the block
  int first_float;      // of the staged row, from the image row's beginning; may be negative

  __device__ Place() {
    const int t = threadIdx.x;
    column = blockIdx.x * kColumns + t / 3;
    channel = t % 3;
    first_row = blockIdx.y * kRows;
    first_float = blockIdx.x * kThreads - kReach;
  }
};

// Rendering and photograph at a float of an image row; zeros outside the image.
__device__ __forceinline__ float2 value_at(const Comparison& in, int row, int at) {
  if (row < 0 || row >= in.height || at < 0 || at >= 3 * in.width) return make_float2(0.0f, 0.0f);
  const Comparison::Values v = in.at(static_cast<int64_t>(row) * in.width + at / 3, at % 3);
  return make_float2(v.x, v.y);
}

// Sum over the block, in its first thread.
__device__ __forceinline__ float2 block_sum(float2 v, float2* warp_sums) {
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) {
    v.x += __shfl_down_sync(0xffffffffu, v.x, o);
    v.y += __shfl_down_sync(0xffffffffu, v.y, o);
  }
  if ((threadIdx.x & 31) == 0) warp_sums[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kWarps; ++w) {
      v.x += warp_sums[w].x;
      v.y += warp_sums[w].y;
    }
  }
  return v;
}

// `derivatives` [3][H][3 W]; `sums` [blocks] loss and squared error.
__global__ void __launch_bounds__(kThreads, 3)
    ssim_kernel(Comparison in, float* derivatives, float2* sums) {
  __shared__ float2 staged[2][kStaged];
  __shared__ float2 warp_sums[kWarps];
  const Place place;
  const int t = threadIdx.x;
  const bool inside = place.column < in.width;
  const size_t plane = static_cast<size_t>(in.height) * in.width * 3;
  float x[kSsimTaps], y[kSsimTaps], xx[kSsimTaps], yy[kSsimTaps], xy[kSsimTaps];
  float2 total = make_float2(0.0f, 0.0f);
  float2 next = value_at(in, place.first_row - kSsimRadius, place.first_float + t);
  float2 next_edge = make_float2(0.0f, 0.0f);
  if (t < 2 * kReach)
    next_edge = value_at(in, place.first_row - kSsimRadius, place.first_float + kThreads + t);
  for (int base = 0; base < kSteps; base += kSsimTaps) {
#pragma unroll
    for (int k = 0; k < kSsimTaps; ++k) {
      const int row = place.first_row - kSsimRadius + base + k;
      float2* buffer = staged[(base + k) & 1];
      buffer[t] = next;
      if (t < 2 * kReach) buffer[kThreads + t] = next_edge;
      __syncthreads();
      if (base + k + 1 < kSteps) {
        next = value_at(in, row + 1, place.first_float + t);
        if (t < 2 * kReach) next_edge = value_at(in, row + 1, place.first_float + kThreads + t);
      }
      float sx = 0.0f, sy = 0.0f, sxx = 0.0f, syy = 0.0f, sxy = 0.0f;
#pragma unroll
      for (int d = -kSsimRadius; d <= kSsimRadius; ++d) {
        const float2 v = buffer[t + kReach + 3 * d];
        const float wx = ssim_weight(d) * v.x, wy = ssim_weight(d) * v.y;
        sx += wx;
        sy += wy;
        sxx += wx * v.x;
        syy += wy * v.y;
        sxy += wx * v.y;
      }
      x[k] = sx;
      y[k] = sy;
      xx[k] = sxx;
      yy[k] = syy;
      xy[k] = sxy;
      const int step = base + k;
      if (step >= kSsimRadius && step < kSteps - kSsimRadius && inside && row < in.height) {
        const float2 v = buffer[t + kReach];
        total.x += in.l1_share() * fabsf(v.x - v.y);
        if (in.counts(static_cast<int64_t>(row) * in.width + place.column))
          total.y += Comparison::squared_error({v.x, v.y});
      }
      const int done = row - kSsimRadius;
      if (step < 2 * kSsimRadius || done >= in.height || !inside) continue;
      sx = sy = sxx = syy = sxy = 0.0f;
#pragma unroll
      for (int j = 0; j < kSsimTaps; ++j) {
        const int slot = (k + 1 + j) % kSsimTaps;  // oldest first
        const float w = ssim_weight(j - kSsimRadius);
        sx += w * x[slot];
        sy += w * y[slot];
        sxx += w * xx[slot];
        syy += w * yy[slot];
        sxy += w * xy[slot];
      }
      const int64_t pixel = static_cast<int64_t>(done) * in.width + place.column;
      Ssim s{1.0f, 0.0f, 0.0f, 0.0f};
      if (in.counts(pixel)) s = ssim_at(sx, sy, sxx, syy, sxy);
      total.x += in.ssim_share * (1.0f - s.value);
      float* out = derivatives + 3 * pixel + place.channel;
      out[0] = s.d_x;
      out[plane] = s.d_xx;
      out[2 * plane] = s.d_xy;
    }
  }
  total = block_sum(total, warp_sums);
  if (t == 0) sums[blockIdx.y * gridDim.x + blockIdx.x] = total;
}

// Loss and mean squared error from the blocks' sums, always in the same order.
__device__ __forceinline__ void add_sums(const Comparison& in, const float2* sums, int blocks,
                                         float* numbers, int32_t* fault, int32_t iteration) {
  __shared__ double parts[2][kThreads];
  const int t = threadIdx.x;
  double loss = 0.0, error = 0.0;
  for (int b = t; b < blocks; b += kThreads) {
    loss += sums[b].x;
    error += sums[b].y;
  }
  parts[0][t] = loss;
  parts[1][t] = error;
  __syncthreads();
  if (t != 0) return;
  for (int k = 1; k < kThreads; ++k) {
    loss += parts[0][k];
    error += parts[1][k];
  }
  numbers[0] = static_cast<float>(in.scale * loss);
  numbers[1] = static_cast<float>(in.scale * error);
  if (!is_finite(numbers[0])) report_fault(fault, iteration, kFaultLoss);
}

struct Derivatives {
  float2 x_xx;
  float xy;
};

__device__ __forceinline__ Derivatives derivatives_at(const Comparison& in, const float* maps,
                                                      size_t plane, int row, int at) {
  if (row < 0 || row >= in.height || at < 0 || at >= 3 * in.width) return {};
  const float* m = maps + static_cast<size_t>(row) * in.width * 3 + at;
  return {make_float2(__ldg(m), __ldg(m + plane)), __ldg(m + 2 * plane)};
}

// `grad_opacity` may be null.
__global__ void __launch_bounds__(kThreads, 3)
    gradient_kernel(Comparison in, const float* derivatives, const float2* sums, float* grad_color,
                    float* grad_opacity, float* numbers, int32_t* fault, int32_t iteration) {
  __shared__ float2 staged_x_xx[2][kStaged];
  __shared__ float staged_xy[2][kStaged];
  __shared__ float behind[kThreads];
  const Place place;
  const int t = threadIdx.x;
  if (blockIdx.x == 0 && blockIdx.y == 0)
    add_sums(in, sums, gridDim.x * gridDim.y, numbers, fault, iteration);
  const bool inside = place.column < in.width;
  const size_t plane = static_cast<size_t>(in.height) * in.width * 3;
  const int last_row = min(place.first_row + kRows, in.height) - 1;
  float x[kSsimTaps], xx[kSsimTaps], xy[kSsimTaps];
  const auto load = [&](int row, int at) {
    return derivatives_at(in, derivatives, plane, row, place.first_float + at);
  };
  Derivatives next = load(place.first_row - kSsimRadius, t), next_edge{};
  if (t < 2 * kReach) next_edge = load(place.first_row - kSsimRadius, kThreads + t);
  for (int base = 0; base < kSteps; base += kSsimTaps) {
#pragma unroll
    for (int k = 0; k < kSsimTaps; ++k) {
      const int step = base + k, parity = step & 1;
      const int row = place.first_row - kSsimRadius + step, done = row - kSsimRadius;
      staged_x_xx[parity][t] = next.x_xx;
      staged_xy[parity][t] = next.xy;
      if (t < 2 * kReach) {
        staged_x_xx[parity][kThreads + t] = next_edge.x_xx;
        staged_xy[parity][kThreads + t] = next_edge.xy;
      }
      __syncthreads();
      if (step + 1 < kSteps) {
        next = load(row + 1, t);
        if (t < 2 * kReach) next_edge = load(row + 1, kThreads + t);
      }
      float sx = 0.0f, sxx = 0.0f, sxy = 0.0f;
#pragma unroll
      for (int d = -kSsimRadius; d <= kSsimRadius; ++d) {
        const int from = t + kReach + 3 * d;
        const float2 v = staged_x_xx[parity][from];
        sx += ssim_weight(d) * v.x;
        sxx += ssim_weight(d) * v.y;
        sxy += ssim_weight(d) * staged_xy[parity][from];
      }
      x[k] = sx;
      xx[k] = sxx;
      xy[k] = sxy;
      if (step < 2 * kSsimRadius || done > last_row) continue;  // the same for the whole block
      sx = sxx = sxy = 0.0f;
#pragma unroll
      for (int j = 0; j < kSsimTaps; ++j) {
        const int slot = (k + 1 + j) % kSsimTaps;
        const float w = ssim_weight(j - kSsimRadius);
        sx += w * x[slot];
        sxx += w * xx[slot];
        sxy += w * xy[slot];
      }
      const int64_t pixel = static_cast<int64_t>(done) * in.width + place.column;
      float g = 0.0f;
      if (inside) {
        if (in.counts(pixel)) g = in.gradient(in.at(pixel, place.channel), sx, sxx, sxy);
        grad_color[3 * pixel + place.channel] = g;
      }
      if (grad_opacity == nullptr) continue;
      behind[t] = in.background[place.channel] * g;
      __syncthreads();
      if (inside && place.channel == 0)
        grad_opacity[pixel] = -(behind[t] + behind[t + 1] + behind[t + 2]);
    }
  }
}

// As csrc/cpu/training/photometric_loss.cpp.
tvm::ffi::Array<Tensor> photometric_loss(TensorView color, TensorView opacity,
                                         TensorView background, TensorView photograph,
                                         TensorView mask, int64_t counted, double ssim_share,
                                         bool through_opacity, TensorView numbers, TensorView fault,
                                         int64_t iteration, int64_t /*threads*/) {
  const Comparison in =
      comparison(color, opacity, background, photograph, mask, counted, ssim_share, kDLCUDA);
  float* values = const_cast<float*>(checked<float>(numbers, "numbers", {2}, kDLCUDA));
  int32_t* fault_values = fault_view(fault, kDLCUDA);
  const DeviceScope scope(color.device());
  const int64_t h = in.height, w = in.width;
  const Tensor grad_color = scope.empty<float>({h, w, 3});
  const Tensor grad_opacity = scope.empty<float>({through_opacity ? h : 0, w});
  if (h == 0 || w == 0) return {grad_color, grad_opacity};
  const dim3 grid(blocks_for(w, kColumns), blocks_for(h, kRows));
  const Tensor derivatives = scope.empty<float>({3, h, w, 3});
  const Tensor sums = scope.empty<float>({static_cast<int64_t>(grid.x) * grid.y, 2});
  float2* block_sums = reinterpret_cast<float2*>(data<float>(sums));
  ssim_kernel<<<grid, kThreads, 0, scope.stream()>>>(in, data<float>(derivatives), block_sums);
  check_launch("ssim_kernel");
  gradient_kernel<<<grid, kThreads, 0, scope.stream()>>>(
      in, data<float>(derivatives), block_sums, data<float>(grad_color),
      through_opacity ? data<float>(grad_opacity) : nullptr, values, fault_values,
      static_cast<int32_t>(iteration));
  check_launch("gradient_kernel");
  return {grad_color, grad_opacity};
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(photometric_loss, gart::cuda::photometric_loss);
