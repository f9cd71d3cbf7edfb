// The papers' backward pass on the GPU (3DGART, arXiv 2608.17298), the baseline: its LT buffer, its
// full chain rule for every hit, one scalar atomic addition per parameter.
//
// Schedule: `pair_kernel` (primitive, and hybrid's colour) has a block per tile; a thread takes a
// (Gaussian, tile) pair, walks the pixels of its box in the tile, evaluates the response and, where
// that is a hit, reads (L, T); it sums all parameters' gradients in registers and adds each once.
// `ray_kernel` (pixel, and hybrid's geometry) has a thread per ray that walks its hits back to
// front and adds every hit's gradients; it needs no buffer. With sh=center a colour's three sums go
// to the harmonics once per Gaussian (`center_kernel`), as 3DGS does.
//
// Cost: ~30 operations a box pixel; 16 B and ~250 operations a hit with sh=ray, ~110 with
// sh=center; 160 B and 11 + 3 K (11 + 3) atomics a pair with hits, or a hit.
#include "cuda/box_buffer.cuh"
#include "cuda/ray_color.cuh"
#include "cuda/trace_backward.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kPairThreads = 128;
constexpr int kBasisStride = kMaxShCoeffs + 1;  // odd: pixels in different banks
// Rounding in another kernel may differ: the buffer's 0 decides about hits at the threshold.
constexpr float kLog2Slack = 1e-4f;

// Where gradients go: the parameters, and with sh=center the colours.
struct Target {
  ParameterGradients parameters;
  float* center_color;  // [N, 3]
};

__device__ __forceinline__ void scatter_geometry(const Target& target, int64_t i,
                                                 const float* sums) {
#pragma unroll
  for (int k = 0; k < 3; ++k) atomicAdd(target.parameters.means + 3 * i + k, sums[k]);
#pragma unroll
  for (int k = 0; k < 4; ++k) atomicAdd(target.parameters.quats + 4 * i + k, sums[3 + k]);
#pragma unroll
  for (int k = 0; k < 3; ++k) atomicAdd(target.parameters.log_scales + 3 * i + k, sums[7 + k]);
  atomicAdd(target.parameters.opacity_logits + i, sums[10]);
}

template <bool kShAtRay>
__device__ __forceinline__ void scatter_color(const Target& target, int coeffs, int64_t i,
                                              const float* sums) {
  if constexpr (kShAtRay) {
    float* sh = target.parameters.sh + 3 * coeffs * i;
#pragma unroll
    for (int k = 0; k < 3 * kMaxShCoeffs; ++k) {
      if (k >= 3 * coeffs) break;
      atomicAdd(sh + k, sums[k]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < 3; ++k) atomicAdd(target.center_color + 3 * i + k, sums[k]);
  }
}

// Adds weight g to the colour's sums; a channel clamped at 0 has no gradient.
template <bool kShAtRay>
__device__ __forceinline__ void add_color(const Vec3<float>& c, float weight, float3 g,
                                          const float* basis, float* sums) {
  const float r = c.x > 0.0f ? weight * g.x : 0.0f, gr = c.y > 0.0f ? weight * g.y : 0.0f,
              b = c.z > 0.0f ? weight * g.z : 0.0f;
  if constexpr (kShAtRay) {
#pragma unroll
    for (int k = 0; k < kMaxShCoeffs; ++k) {
      sums[3 * k] += r * basis[k];
      sums[3 * k + 1] += gr * basis[k];
      sums[3 * k + 2] += b * basis[k];
    }
  } else {
    sums[0] += r;
    sums[1] += gr;
    sums[2] += b;
  }
}

template <bool kShAtRay>
__device__ __forceinline__ Vec3<float> hit_color(const Scene& scene, const Records& records,
                                                 uint32_t record, int64_t i, const float* basis) {
  if constexpr (kShAtRay) return ray_color(scene, i, basis);
  const float4 rgb = __ldg(records.color + record);
  return {rgb.x, rgb.y, rgb.z};
}

struct PixelGradients {
  float3 color;
  float opacity, depth;
};

__device__ __forceinline__ PixelGradients load_gradients(const OutputGradients& grads,
                                                         int64_t index) {
  PixelGradients g{make_float3(0.0f, 0.0f, 0.0f), 0.0f, 0.0f};
  if (grads.color != nullptr) {
    g.color =
        make_float3(grads.color[3 * index], grads.color[3 * index + 1], grads.color[3 * index + 2]);
  }
  if (grads.opacity != nullptr) g.opacity = grads.opacity[index];
  if (grads.depth != nullptr) g.depth = grads.depth[index];
  return g;
}

// Without kGeometry the buffer holds transmittances alone.
template <bool kShAtRay, bool kDepth, bool kGeometry>
__global__ void __launch_bounds__(kPairThreads, 3)
    pair_kernel(Scene scene, Rays rays, Params params, Records records, TileLists lists,
                BoxBuffer boxes, OutputGradients grads, Target target) {
  __shared__ float2 pixel_xy[kTilePixels];
  __shared__ PixelGradients pixel_grad[kTilePixels];
  __shared__ float4 pixel_total[kGeometry ? kTilePixels : 1];
  __shared__ float pixel_depth[kDepth ? kTilePixels : 1];
  __shared__ float pixel_basis[kShAtRay ? kTilePixels * kBasisStride : 1];
  const int tile = blockIdx.x;
  const int tile_x = tile % rays.tiles_x, tile_y = tile / rays.tiles_x;
  if (threadIdx.x < kTilePixels) {
    const int p = threadIdx.x;
    const int x = tile_x * kTraceTile + (p & 7), y = tile_y * kTraceTile + (p >> 3);
    if (x < rays.width && y < rays.height) {
      const int64_t index = static_cast<int64_t>(y) * rays.width + x;
      const int64_t slot = static_cast<int64_t>(tile) * kTilePixels + p;
      pixel_xy[p] = rays.ray_xy[index];
      pixel_grad[p] = load_gradients(grads, index);
      if constexpr (kGeometry) pixel_total[p] = boxes.total[slot];
      if constexpr (kDepth) pixel_depth[p] = boxes.depth_total[slot];
      if constexpr (kShAtRay) {
        direction_basis(rays, scene, rays.tile_face[tile], pixel_xy[p],
                        pixel_basis + p * kBasisStride);
      }
    }
  }
  __syncthreads();
  const int64_t end = lists.offset[tile + 1];
  for (int64_t j = lists.offset[tile] + threadIdx.x; j < end; j += kPairThreads) {
    const uint32_t record = lists.record[j];
    const BoxPart part = load_part(boxes.box, record, tile_x, tile_y);
    if (part.width <= 0 || part.height <= 0) continue;
    const int64_t i = gaussian_of(scene, rays, record);
    const RayRecord<float> g = load_record(records.record, record);
    ChainFrame<float> chain;
    if constexpr (kGeometry) chain = load_chain(boxes.chain, record);
    const int64_t first = boxes.offset[record] + part.first;
    const int corner = (part.y0 & 7) * kTraceTile + (part.x0 & 7);
    float geometry[kGeometryParameters] = {}, color[kShAtRay ? 3 * kMaxShCoeffs : 3] = {};
    bool any = false;
    for (int row = 0, at = 0; row < part.height; ++row) {
      for (int column = 0; column < part.width; ++column, ++at) {
        const int p = corner + row * kTraceTile + column;
        const Response<float> e = respond(g, pixel_xy[p].x, pixel_xy[p].y);
        const float l = log2_alpha(g, e);
        if (!(l >= params.log2_alpha_min - kLog2Slack)) continue;
        float4 lt;
        if constexpr (kGeometry)
          lt = __ldcs(reinterpret_cast<const float4*>(boxes.buffer) + first + at);
        else
          lt.w = __ldcs(boxes.buffer + first + at);
        if (lt.w == 0.0f) continue;  // the ray stopped before, or the hit is too near
        any = true;
        const float raw = fast_exp2(l), alpha = fminf(raw, params.alpha_max);
        const PixelGradients& grad = pixel_grad[p];
        const float* basis = pixel_basis + (kShAtRay ? p * kBasisStride : 0);
        const Vec3<float> c = hit_color<kShAtRay>(scene, records, record, i, basis);
        add_color<kShAtRay>(c, lt.w * alpha, grad.color, basis, color);
        if constexpr (kGeometry) {
          // dL/dalpha_i = T_i g.c_i - g.(C - L_i) / (1 - alpha_i), L_i up to and with the hit; the
          // same for opacity, whose C - L_i is T_i (1 - alpha_i) less the last transmittance, and
          // for depth.
          const float4 total = pixel_total[p];
          float here = grad.color.x * c.x + grad.color.y * c.y + grad.color.z * c.z + grad.opacity;
          float behind = grad.color.x * (total.x - lt.x) + grad.color.y * (total.y - lt.y) +
                         grad.color.z * (total.z - lt.z) +
                         grad.opacity * (lt.w * (1.0f - alpha) - total.w);
          if constexpr (kDepth) {
            here += grad.depth * e.tau;
            behind += grad.depth * (pixel_depth[p] - __ldcs(boxes.depth + first + at));
          }
          const float dalpha = lt.w * here - __fdividef(behind, 1.0f - alpha);
          const float w = raw < params.alpha_max ? -alpha * dalpha : 0.0f;
          add_hit_gradients<kDepth>(chain, g, e, w, lt.w * alpha * grad.depth, geometry);
        }
      }
    }
    if (!any) continue;
    if constexpr (kGeometry) scatter_geometry(target, i, geometry);
    scatter_color<kShAtRay>(target, scene.sh_coeffs, i, color);
  }
}

template <bool kShAtRay, bool kDepth, bool kColor>
__global__ void __launch_bounds__(kTilePixels)
    ray_kernel(Scene scene, Rays rays, Params params, Records records, TileLists lists,
               HitLists hits, const float4* __restrict__ chains, OutputGradients grads,
               Target target) {
  const int tile = blockIdx.x, p = threadIdx.x;
  const int x = (tile % rays.tiles_x) * kTraceTile + (p & 7),
            y = (tile / rays.tiles_x) * kTraceTile + (p >> 3);
  const int64_t slot = static_cast<int64_t>(tile) * kTilePixels + p;
  const int count = hits.count[slot];
  if (count == 0) return;
  const int64_t index = static_cast<int64_t>(y) * rays.width + x;
  const float2 xy = rays.ray_xy[index];
  const PixelGradients g = load_gradients(grads, index);
  float basis[kShAtRay ? kMaxShCoeffs : 1];
  if constexpr (kShAtRay) direction_basis(rays, scene, rays.tile_face[tile], xy, basis);
  const uint32_t* list = lists.record + lists.offset[tile];
  float transmittance = hits.transmittance[slot], behind = 0.0f;
  constexpr int kAhead = 4;  // hits whose loads are in flight together
  for (int top = count; top > 0; top -= kAhead) {
    uint32_t words[kAhead], record_of[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) words[a] = top > a ? hits.word(tile, p, top - 1 - a) : 0;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) record_of[a] = __ldg(list + (words[a] >> 16));
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (top <= a) break;
      const uint32_t record = record_of[a];
      const int64_t i = gaussian_of(scene, rays, record);
      const RayRecord<float> r = load_record(records.record, record);
      const Response<float> e = respond(r, xy.x, xy.y);
      const Vec3<float> c = hit_color<kShAtRay>(scene, records, record, i, basis);
      // dL/dalpha_i = T_i g.(c_i - B_i), B_i the normalised colour behind.
      const float alpha = unpack_alpha(words[a]);
      float here = g.color.x * c.x + g.color.y * c.y + g.color.z * c.z + g.opacity;
      if constexpr (kDepth) here += g.depth * e.tau;
      transmittance = __fdividef(transmittance, 1.0f - alpha);
      const float dalpha = transmittance * (here - behind), weight = transmittance * alpha;
      behind = alpha * here + (1.0f - alpha) * behind;
      // The forward pass clamps before rounding to 16 bits.
      const float w = alpha < params.alpha_max - 1.6e-5f ? -alpha * dalpha : 0.0f;
      float geometry[kGeometryParameters] = {};
      add_hit_gradients<kDepth>(load_chain(chains, record), r, e, w, weight * g.depth, geometry);
      scatter_geometry(target, i, geometry);
      if constexpr (kColor) {
        float color[kShAtRay ? 3 * kMaxShCoeffs : 3] = {};
        add_color<kShAtRay>(c, weight, g.color, basis, color);
        scatter_color<kShAtRay>(target, scene.sh_coeffs, i, color);
      }
    }
  }
}

// From the gradients of the colours to the harmonics and, by the direction, the means.
__global__ void __launch_bounds__(128) center_kernel(Scene scene, Rays rays, Target target) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= scene.count) return;
  const float color[3] = {target.center_color[3 * i], target.center_color[3 * i + 1],
                          target.center_color[3 * i + 2]};
  if (color[0] == 0.0f && color[1] == 0.0f && color[2] == 0.0f) return;
  const float* m = scene.means + 3 * i;
  const Vec3<float> to_mean = Vec3<float>{m[0], m[1], m[2]} - rays.origin();
  const int64_t row = 3 * scene.sh_coeffs * i;
  const Vec3<float> mean = center_color_gradients(scene.sh_coeffs, to_mean, scene.sh + row, color,
                                                  target.parameters.sh + row);
  for (int k = 0; k < 3; ++k) target.parameters.means[3 * i + k] += mean[k];
}

struct Pass {
  const Scene& scene;
  const Rays& rays;
  const Params& params;
  const SavedState& saved;
  const BoxBuffer& boxes;
  const OutputGradients& grads;
  const Target& target;
  cudaStream_t stream;

  template <bool kShAtRay, bool kDepth, bool kGeometry>
  void by_pair() const {
    pair_kernel<kShAtRay, kDepth, kGeometry><<<rays.tiles(), kPairThreads, 0, stream>>>(
        scene, rays, params, saved.records, saved.lists, boxes, grads, target);
    check_launch("pair_kernel");
  }
  template <bool kShAtRay, bool kDepth, bool kColor>
  void by_ray() const {
    ray_kernel<kShAtRay, kDepth, kColor><<<rays.tiles(), kTilePixels, 0, stream>>>(
        scene, rays, params, saved.records, saved.lists, saved.storage.view(), boxes.chain, grads,
        target);
    check_launch("ray_kernel");
  }
  template <bool kShAtRay, bool kDepth>
  void run(Mode mode) const {
    if (mode == Mode::kPrimitive) by_pair<kShAtRay, kDepth, true>();
    if (mode == Mode::kHybrid) {
      by_pair<kShAtRay, false, false>();
      by_ray<kShAtRay, kDepth, false>();
    }
    if (mode == Mode::kPixel) by_ray<kShAtRay, kDepth, true>();
  }
};

// As csrc/cpu/box_gradients.cpp.
tvm::ffi::Array<Tensor> box_backward(TensorView means, TensorView quats, TensorView log_scales,
                                     TensorView opacity_logits, TensorView sh, TensorView c2w,
                                     tvm::ffi::Array<Tensor> ray_tensors,
                                     tvm::ffi::Array<Tensor> state, tvm::ffi::Array<Tensor> boxes,
                                     TensorView grad_color, TensorView grad_opacity,
                                     TensorView grad_depth, double alpha_min, double alpha_max,
                                     double transmittance_min, double near, bool sh_at_ray,
                                     tvm::ffi::String mode_name, int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params = make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray);
  const DeviceScope scope(means.device());
  const Mode mode = parse_mode(mode_name);
  const OutputGradients grads = output_gradients(rays, grad_color, grad_opacity, grad_depth);
  const SavedState saved = saved_state(scene, rays, params, state, scope);
  const BoxBuffer buffer{reinterpret_cast<const float4*>(data<float>(boxes[0])),
                         reinterpret_cast<const int4*>(data<int32_t>(boxes[1])),
                         data<int64_t>(boxes[2]),
                         data<float>(boxes[3]),
                         reinterpret_cast<const float4*>(data<float>(boxes[4])),
                         data<float>(boxes[5]),
                         data<float>(boxes[6])};
  const auto zeros_like = [&](const TensorView& t) {
    Tensor out = Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc, t.shape(), t.dtype(), t.device());
    if (t.numel() > 0) {
      check_cuda(cudaMemsetAsync(out.data_ptr(), 0, t.numel() * sizeof(float), scope.stream()),
                 "cudaMemsetAsync");
    }
    return out;
  };
  tvm::ffi::Array<Tensor> out{zeros_like(means), zeros_like(quats), zeros_like(log_scales),
                              zeros_like(opacity_logits), zeros_like(sh)};
  if (scene.count == 0) return out;
  Tensor center_color = scope.zeros<float>({sh_at_ray ? 0 : scene.count, 3});
  const Target target{{data<float>(out[0]), data<float>(out[1]), data<float>(out[2]),
                       data<float>(out[3]), data<float>(out[4])},
                      data<float>(center_color)};
  const Pass pass{scene, rays, params, saved, buffer, grads, target, scope.stream()};
  const bool depth = grads.depth != nullptr;
  if (sh_at_ray) {
    depth ? pass.run<true, true>(mode) : pass.run<true, false>(mode);
  } else {
    depth ? pass.run<false, true>(mode) : pass.run<false, false>(mode);
    center_kernel<<<blocks_for(scene.count, 128), 128, 0, scope.stream()>>>(scene, rays, target);
    check_launch("center_kernel");
  }
  return out;
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_backward, gart::cuda::box_backward);
