// Gaussians to splats, and the tiles that each reaches.
//
// Schedule: a thread per Gaussian. Those nearer than the near plane stop after 12 bytes; a drawn
// one's shape and colour are written. The rows of tiles that the drawn ones' boxes cross are then
// dealt to the warp's lanes whatever splat they belong to; a lane finds the tiles of its row that
// the ellipse reaches (splat_rows.h), writes them as a span and counts them in their tiles. Places
// for spans are taken by the block. Cost: ~300 operations and 44 B a Gaussian, 12 K B and 6 K
// operations for a drawn one's colour, 48 B written; ~100 operations and 16 B a span, an atomic an
// entry.
#include "common/splat_rows.h"
#include "cuda/rows.cuh"
#include "cuda/tilegs/pipeline.cuh"
#include "cuda/tilegs/shape.cuh"
#include "cuda/tilegs/warp_sums.cuh"

namespace gart::cuda::tilegs {
namespace {

constexpr int kThreads = 256;

template <int kCoeffs>
__device__ __forceinline__ bool view_color(const SceneView& scene, int64_t i, Vec3<float> mean,
                                           Vec3<float> center, float color[3]) {
  constexpr int kFloats = 3 * kCoeffs;
  alignas(16) float coefficient[kFloats];
  load_row<kFloats>(scene.sh + kFloats * i, coefficient);
  return splat_color(mean, coefficient, kCoeffs, center, color);
}

__device__ __forceinline__ Vec3<float> load_three(const float* values, int64_t i) {
  return {__ldg(values + 3 * i), __ldg(values + 3 * i + 1), __ldg(values + 3 * i + 2)};
}

// What the rows of a splat's box need, in shared memory.
struct Box {
  float x, y, radius_x, radius_y, b, c, lean, half2;
  uint32_t depth;
  int first_row;
};

template <int kCoeffs>
__global__ void __launch_bounds__(kThreads, 4)
    project_kernel(SceneView scene, CameraView camera, Grid grid, SplatParams params, Splats splats,
                   Span* spans, Counts room, unsigned int* tile_count, Counts* counts) {
  __shared__ Box boxes[kThreads];
  __shared__ unsigned int warp_rows[kThreads / kWarp], drawn_in_block;
  __shared__ unsigned long long first_span;
  __shared__ PinholeView<float> view;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / kWarp;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (threadIdx.x == 0) {
    drawn_in_block = 0;
    view = pinhole_view(camera.viewmat, camera_center(camera.viewmat), camera.K, grid.width,
                        grid.height);
  }
  __syncthreads();
  bool drawn = false;
  unsigned rows = 0;
  if (i < scene.count) {
    const Vec3<float> mean = load_three(scene.means, i);
    Splat<float> s;
    if (in_camera(view, mean).z >= params.near) {
      const float4 q = __ldg(scene.quats + i);
      const float quat[4] = {q.x, q.y, q.z, q.w};
      drawn = project_splat(mean, quat, load_three(scene.scales, i), __ldg(scene.opacities + i),
                            view, params, &s);
    }
    if (drawn) {
      const Shape shape = splat_shape(s, params.alpha_min);
      splats.shape[2 * i] = make_float4(shape.x, shape.y, shape.l0, shape.l1);
      splats.shape[2 * i + 1] = make_float4(shape.l2, shape.log2_opacity, s.depth, 0.0f);
      const TileRect rect = splat_tiles(s, grid.tiles_x, grid.tiles_y);
      const SplatChords<float> chords = splat_chords(s, params.alpha_min);
      boxes[threadIdx.x] = {s.x,         s.y,          s.radius_x,
                            s.radius_y,  s.b,          s.c,
                            chords.lean, chords.half2, __float_as_uint(s.depth),
                            rect.y0};
      float color[3];
      drawn = view_color<kCoeffs>(scene, i, mean, view.center, color);
      if (drawn) {
        splats.color[i] = make_float4(color[0], color[1], color[2], s.depth);
        rows = max(rect.y1 - rect.y0, 0);
      }
    }
  }
  const unsigned end = warp_inclusive_sum(rows);
  const unsigned warp_total = __shfl_sync(kFullWarp, end, 31);
  const unsigned votes = __ballot_sync(kFullWarp, drawn);
  __syncthreads();
  if (lane == 0) {
    warp_rows[warp] = warp_total;
    atomicAdd(&drawn_in_block, __popc(votes));
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned int total = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      const unsigned int n = warp_rows[w];
      warp_rows[w] = total;
      total += n;
    }
    if (drawn_in_block > 0) {
      atomicAdd(&counts->drawn, drawn_in_block);
      first_span = atomicAdd(&counts->spans, static_cast<unsigned long long>(total));
    }
  }
  __syncthreads();
  const unsigned long long first = first_span + warp_rows[warp];
  for (unsigned base = 0; base < warp_total; base += kWarp) {
    const unsigned r = base + lane;
    const int owner = owner_lane(end, r);
    const unsigned owner_first = __shfl_sync(kFullWarp, end - rows, owner);
    if (r >= warp_total) continue;
    const Box& box = boxes[warp * kWarp + owner];
    Splat<float> o;
    o.x = box.x;
    o.y = box.y;
    o.radius_x = box.radius_x;
    o.radius_y = box.radius_y;
    o.b = box.b;
    o.c = box.c;
    const int y = box.first_row + static_cast<int>(r - owner_first);
    const Interval<int> x = row_tiles(o, SplatChords<float>{box.lean, box.half2}, y, grid.tiles_x);
    const unsigned n = max(x.high - x.low, 0);
    const unsigned tile = static_cast<unsigned>(y) * grid.tiles_x + x.low;
    const auto splat = static_cast<uint32_t>(i - lane + owner);
    if (first + r < room.spans) spans[first + r] = {splat, tile, n, box.depth};
    for (unsigned t = tile; t < tile + n; ++t) atomicAdd(tile_count + t, 1u);
  }
}

}  // namespace

void project(const SceneView& scene, const CameraView& camera, const Grid& grid,
             const SplatParams& params, const Splats& splats, Span* spans, const Counts& room,
             const TileLists& lists, Counts* counts, cudaStream_t stream) {
  if (scene.count == 0) return;
  const auto kernel = scene.coeffs == 1   ? project_kernel<1>
                      : scene.coeffs == 4 ? project_kernel<4>
                      : scene.coeffs == 9 ? project_kernel<9>
                                          : project_kernel<16>;
  kernel<<<blocks_for(scene.count, kThreads), kThreads, 0, stream>>>(
      scene, camera, grid, params, splats, spans, room, lists.count, counts);
  check_launch("project_kernel");
}

}  // namespace gart::cuda::tilegs
