// The papers' LT buffer on the GPU (3DGART, arXiv 2608.17298): screen boxes of all records, and the
// pass that fills the buffer.
//
// Schedule: `extents_kernel` has a thread per (face, Gaussian). `write_kernel` has a block per
// tile, a thread per pixel that walks its stored hits front to back. The paper writes while it
// composites; here the ring kernel stays as it is, and writing afterwards costs, besides the
// paper's own 16 B a hit: 4 B a hit of the lists and, with sh=ray, each hit's colour once more.
// Entries that no hit reached stay 0, as the caller has cleared them. Boxes cost ~600 operations
// and 128 B a Gaussian.
#include "cuda/box_buffer.cuh"

#include <string>

#include "cuda/ray_color.cuh"
#include "cuda/trace_backward.cuh"

namespace gart {
namespace cuda {
namespace {

enum class What { kColor, kTransmittance, kDepth };

__global__ void __launch_bounds__(128)
    extents_kernel(Scene scene, Rays rays, Params params, const float* columns, const float* rows,
                   int4* box, float4* chain) {
  const int face = blockIdx.y;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= scene.count) return;
  const int64_t r = face * scene.count + i;
  RayRecord<float> record;
  GaussianFrame<float> frame;
  RecordBounds<float> bounds;
  PixelBox b{0, 0, 0, 0};
  if (gaussian_record(scene, rays, params, face, i, &record, &frame, &bounds)) {
    b = pixel_box(bounds, columns + 2 * face * rays.width, rows + 2 * face * rays.height,
                  rays.width, rays.height);
  }
  box[r] = make_int4(b.x0, b.y0, b.x1, b.y1);
  if (b.x0 >= b.x1) return;
  const float4 q = __ldg(scene.quats + i);
  const float quat[4] = {q.x, q.y, q.z, q.w};
  const ChainFrame<float> c =
      chain_frame(frame, rays.face_rotation(face), quat, record.log2_opacity);
  float4 vectors[kChainVectors];
  memcpy(vectors, &c, sizeof(c));
#pragma unroll
  for (int k = 0; k < kChainVectors; ++k) chain[r * kChainVectors + k] = vectors[k];
}

template <bool kShAtRay, What kWhat>
__global__ void __launch_bounds__(kTilePixels)
    write_kernel(Scene scene, Rays rays, Records records, TileLists lists, HitLists hits,
                 const int4* __restrict__ box, const int64_t* __restrict__ offset,
                 float* __restrict__ buffer, float* __restrict__ total) {
  constexpr bool kColor = kWhat == What::kColor;
  const int tile = blockIdx.x, p = threadIdx.x;
  const int tile_x = tile % rays.tiles_x, tile_y = tile / rays.tiles_x;
  const int x = tile_x * kTraceTile + (p & 7), y = tile_y * kTraceTile + (p >> 3);
  const int64_t slot = static_cast<int64_t>(tile) * kTilePixels + p;
  const int count = hits.count[slot];
  const float2 xy =
      count > 0 ? rays.ray_xy[static_cast<int64_t>(y) * rays.width + x] : make_float2(0.0f, 0.0f);
  float basis[kColor && kShAtRay ? kMaxShCoeffs : 1];
  if constexpr (kColor && kShAtRay) direction_basis(rays, scene, rays.tile_face[tile], xy, basis);
  const uint32_t* list = lists.record + lists.offset[tile];
  Vec3<float> gathered{0, 0, 0};
  float transmittance = 1.0f, depth = 0.0f;
  constexpr int kAhead = 4;  // hits whose loads are in flight together
  for (int first = 0; first < count; first += kAhead) {
    uint32_t words[kAhead], record_of[kAhead];
    int64_t at[kAhead];
    bool kept[kAhead];
#pragma unroll
    for (int a = 0; a < kAhead; ++a)
      words[a] = first + a < count ? hits.word(tile, p, first + a) : 0;
#pragma unroll
    for (int a = 0; a < kAhead; ++a) record_of[a] = __ldg(list + (words[a] >> 16));
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      const BoxPart part = load_part(box, record_of[a], tile_x, tile_y);
      kept[a] = part.contains(x, y);  // rounding may put a hit just outside: nowhere to keep it
      at[a] = __ldg(offset + record_of[a]) + part.entry(x, y);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (first + a >= count) break;
      const float alpha = unpack_alpha(words[a]), weight = transmittance * alpha;
      if constexpr (kColor) {
        Vec3<float> c;
        if constexpr (kShAtRay) {
          c = ray_color(scene, gaussian_of(scene, rays, record_of[a]), basis);
        } else {
          const float4 rgb = __ldg(records.color + record_of[a]);
          c = {rgb.x, rgb.y, rgb.z};
        }
        gathered = gathered + weight * c;
        if (kept[a]) {
          reinterpret_cast<float4*>(buffer)[at[a]] =
              make_float4(gathered.x, gathered.y, gathered.z, transmittance);
        }
      } else if constexpr (kWhat == What::kDepth) {
        depth += weight * respond(load_record(records.record, record_of[a]), xy.x, xy.y).tau;
        if (kept[a]) buffer[at[a]] = depth;
      } else {
        if (kept[a]) buffer[at[a]] = transmittance;
      }
      transmittance *= 1.0f - alpha;
    }
  }
  if constexpr (kColor) {
    reinterpret_cast<float4*>(total)[slot] =
        make_float4(gathered.x, gathered.y, gathered.z, transmittance);
  } else if constexpr (kWhat == What::kDepth) {
    total[slot] = depth;
  }
}

// As csrc/cpu/box_buffer.cpp.
tvm::ffi::Array<Tensor> box_extents(TensorView means, TensorView quats, TensorView log_scales,
                                    TensorView opacity_logits, TensorView sh, TensorView c2w,
                                    tvm::ffi::Array<Tensor> ray_tensors,
                                    tvm::ffi::Array<Tensor> /*state*/, TensorView columns,
                                    TensorView rows, double alpha_min, double near,
                                    int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params = make_params(alpha_min, 1.0, 0.0, near, false);
  const float* column = checked<float>(columns, "columns", {rays.faces, 2, rays.width}, kDLCUDA);
  const float* row = checked<float>(rows, "rows", {rays.faces, 2, rays.height}, kDLCUDA);
  const DeviceScope scope(means.device());
  Tensor box = scope.empty<int32_t>({rays.faces * scene.count, 4});
  Tensor chain = scope.empty<float>({rays.faces * scene.count, kChainFloats});
  if (scene.count > 0) {
    const dim3 grid(blocks_for(scene.count, 128), rays.faces);
    extents_kernel<<<grid, 128, 0, scope.stream()>>>(scene, rays, params, column, row,
                                                     reinterpret_cast<int4*>(data<int32_t>(box)),
                                                     reinterpret_cast<float4*>(data<float>(chain)));
    check_launch("extents_kernel");
  }
  return {box, chain};
}

void box_write(TensorView means, TensorView quats, TensorView log_scales, TensorView opacity_logits,
               TensorView sh, TensorView c2w, tvm::ffi::Array<Tensor> ray_tensors,
               tvm::ffi::Array<Tensor> state, TensorView box, TensorView offset, double alpha_min,
               double alpha_max, double transmittance_min, double near, bool sh_at_ray,
               tvm::ffi::String what, TensorView buffer, TensorView total, int64_t /*threads*/) {
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params = make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray);
  const DeviceScope scope(means.device());
  const SavedState saved = saved_state(scene, rays, params, state, scope);
  const int64_t records = rays.faces * scene.count;
  const int4* boxes =
      reinterpret_cast<const int4*>(checked<int32_t>(box, "box", {records, 4}, kDLCUDA));
  const int64_t* offsets = checked<int64_t>(offset, "offset", {records + 1}, kDLCUDA);
  const std::string name = what;
  const auto kernel =
      name == "color"
          ? (sh_at_ray ? write_kernel<true, What::kColor> : write_kernel<false, What::kColor>)
      : name == "depth" ? write_kernel<false, What::kDepth>
                        : write_kernel<false, What::kTransmittance>;
  kernel<<<rays.tiles(), kTilePixels, 0, scope.stream()>>>(
      scene, rays, saved.records, saved.lists, saved.storage.view(), boxes, offsets,
      static_cast<float*>(buffer.data_ptr()), static_cast<float*>(total.data_ptr()));
  check_launch("write_kernel");
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_extents, gart::cuda::box_extents);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(box_write, gart::cuda::box_write);
