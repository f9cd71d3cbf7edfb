// The binned raster: every tile blends its list of splats, front to back.
//
// Schedule: a block of four warps per 16 x 16 tile, long tiles first; a warp owns a patch of 8 x 8
// pixels, a lane two of them, four rows apart. The block stages 128 splats at a time in shared
// memory: a thread fetches one, while the block still blends the batch before, moves it to the
// tile's coordinates and works out which patches its ellipse reaches (shape.cuh). Each warp then
// queues those that reach its own patch, so that it evaluates no others, and takes them from the
// queue in groups: first all exponents, which depend on nothing, then the blending, without
// branches. A warp is done when its pixels are, a block when its warps are. A pixel ends as in
// gsplat: the splat that would bring its transmittance to the minimum or below is left out, and all
// behind it. Cost: ~45 instructions a warp and queued splat, ~80 a thread and staged splat; 64 B a
// staged splat from L2.
#include "cuda/shared_memory.cuh"
#include "cuda/tilegs/pipeline.cuh"
#include "cuda/tilegs/shape.cuh"
#include "cuda/tilegs/tile_at.cuh"

#include "common/fast_exp2.h"

namespace gart::cuda::tilegs {
namespace {

constexpr int kRowStep = 4;  // rows between a lane's pixels
constexpr int kPatchRows = 2 * kRowStep;
constexpr int kPatches = kTileGSTile * kTileGSTile / (2 * kWarp);
constexpr int kThreads = kPatches * kWarp;
constexpr int kBatch = kThreads;
constexpr int kGroup = 4;  // splats whose exponents a lane holds at once

// Shared memory of a staged splat: u0, v0, l0, l1 | l2, log2_opacity | red, green, blue, depth, so
// that u = u0 + l0 px + l1 py, v = v0 + l2 py at the tile's pixel (px, py). The last slot of a
// batch is a splat that no pixel meets.
struct Batch {
  float4 place[kBatch + 1], scale[kBatch + 1], color[kBatch + 1];
  uint32_t patches[kBatch];
};
constexpr uint32_t kScaleOffset = sizeof(float4) * (kBatch + 1), kColorOffset = 2 * kScaleOffset;

struct Pixel {
  float transmittance = 1.0f;
  float threshold;  // least exponent that counts; infinite once the pixel is done
  float red = 0.0f, green = 0.0f, blue = 0.0f, depth = 0.0f;

  __device__ __forceinline__ void blend(float exponent, const float4& color,
                                        const BlendParams& params) {
    const bool hit = exponent >= threshold;
    const float weight = fminf(fast_exp2(exponent), params.alpha_max) * transmittance;
    const float after = transmittance - weight;
    const bool open = after > params.transmittance_min;
    if (hit && open) {
      red += weight * color.x;
      green += weight * color.y;
      blue += weight * color.z;
      depth += weight * color.w;
      transmittance = after;
    }
    if (hit && !open) threshold = INFINITY;
  }
};

struct Fetched {
  float4 head, tail, color;
};

__device__ __forceinline__ Fetched fetch(const Splats& splats, int64_t i) {
  return {__ldg(splats.shape + 2 * i), __ldg(splats.shape + 2 * i + 1), __ldg(splats.color + i)};
}

// (x0, y0) is the centre of the tile's first pixel.
__device__ __forceinline__ void stage(const Fetched& f, float x0, float y0, float log2_alpha_min,
                                      int slot, Batch* batch) {
  const Shape s{f.head.x, f.head.y, f.head.z, f.head.w, f.tail.x, f.tail.y};
  const float x = s.x - x0, y = s.y - y0;
  batch->place[slot] = make_float4(-(s.l0 * x + s.l1 * y), -s.l2 * y, s.l0, s.l1);
  batch->scale[slot] = make_float4(s.l2, s.log2_opacity, 0.0f, 0.0f);
  batch->color[slot] = f.color;
  // A little more than what reaches alpha_min: rounding shall not decide here.
  const float reach = s.log2_opacity - log2_alpha_min + 1e-3f;
  batch->patches[slot] = reached_patches<kPatchRows>(s, x, y, reach);
}

__device__ __forceinline__ void write_pixel(const Grid& grid, const float* background, int x, int y,
                                            const Pixel& p, const Image& image) {
  if (x >= grid.width || y >= grid.height) return;
  const int64_t i = static_cast<int64_t>(y) * grid.width + x;
  const float left = p.transmittance, covered = 1.0f - left;
  float3 behind = make_float3(0.0f, 0.0f, 0.0f);
  if (background != nullptr) behind = make_float3(background[0], background[1], background[2]);
  image.color[3 * i] = p.red + left * behind.x;
  image.color[3 * i + 1] = p.green + left * behind.y;
  image.color[3 * i + 2] = p.blue + left * behind.z;
  image.alpha[i] = covered;
  image.depth[i] = covered > 0.0f ? p.depth / covered : 0.0f;
}

template <bool kPacked>
__global__ void __launch_bounds__(kThreads, 8)
    raster_kernel(Splats splats, const uint32_t* all_list, Grid grid, BlendParams params,
                  const float* background, Counts room, TileLists lists, const Counts* counts,
                  Image image, Tally* tally) {
  __shared__ Batch batches[2];
  __shared__ __align__(16) uint32_t queues[kPatches][kBatch + kGroup];
  const bool fits = counts->fits(room);
  const int tile = tile_at(lists, blockIdx.x, kClasses - 1, 0);
  const int lane = threadIdx.x & 31, patch = threadIdx.x / kWarp;
  const int column = 8 * (patch & 1) + (lane & 7);
  const int row = kPatchRows * (patch >> 1) + (lane >> 3);
  const int tile_x = (tile % grid.tiles_x) * kTileGSTile;
  const int tile_y = (tile / grid.tiles_x) * kTileGSTile;
  const float x0 = tile_x + 0.5f, y0 = tile_y + 0.5f;
  const int64_t begin = lists.begin[tile];
  const int64_t n = lists.count[tile];
  if (!fits) return;
  const uint32_t* const list = all_list + begin;
  const auto splat_at = [&](int64_t j) -> int64_t {
    if constexpr (kPacked) return begin + j;
    return __ldg(list + j);
  };

  const float px = static_cast<float>(column), py = static_cast<float>(row);
  Pixel upper, lower;
  const bool has_column = tile_x + column < grid.width;
  upper.threshold = has_column && tile_y + row < grid.height ? params.log2_alpha_min : INFINITY;
  lower.threshold =
      has_column && tile_y + row + kRowStep < grid.height ? params.log2_alpha_min : INFINITY;
  const auto finished = [&] {
    return __all_sync(kFullWarp, fminf(upper.threshold, lower.threshold) == INFINITY) != 0;
  };

  const uint32_t queue = shared_address(queues[patch]);
  if (threadIdx.x < 2) {
    batches[threadIdx.x].place[kBatch] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    batches[threadIdx.x].scale[kBatch] = make_float4(0.0f, -INFINITY, 0.0f, 0.0f);
    batches[threadIdx.x].color[kBatch] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  int64_t next = threadIdx.x;  // this thread's entry of the batch to stage
  Fetched ahead{};
  int64_t splat = next < n ? splat_at(next) : 0;
  if (next < n) ahead = fetch(splats, splat);
  if (next + kBatch < n) splat = splat_at(next + kBatch);
  bool done = finished();
  unsigned tests = 0;
  for (int buffer = 0; next - threadIdx.x < n; buffer ^= 1) {
    Batch& batch = batches[buffer];
    if (next < n)
      stage(ahead, x0, y0, params.log2_alpha_min, threadIdx.x, &batch);
    else
      batch.patches[threadIdx.x] = 0;
    // Also: everybody has left the batch before, whose buffer is the next to be written.
    if (__syncthreads_and(done)) break;
    next += kBatch;
    if (next < n) ahead = fetch(splats, splat);
    if (next + kBatch < n) splat = splat_at(next + kBatch);
    if (done) continue;

    const uint32_t first = shared_address(batch.place);
    unsigned queued = 0;
#pragma unroll
    for (int k = 0; k < kBatch; k += kWarp) {
      const bool mine = (batch.patches[k + lane] >> patch) & 1;
      const unsigned votes = __ballot_sync(kFullWarp, mine);
      if (mine) {
        queues[patch][queued + __popc(votes & ((1u << lane) - 1))] =
            first + static_cast<uint32_t>(sizeof(float4)) * (k + lane);
      }
      queued += __popc(votes);
    }
    if (lane < kGroup)
      queues[patch][queued + lane] = first + static_cast<uint32_t>(sizeof(float4)) * kBatch;
    __syncwarp();
    unsigned k = 0;
    for (; k < queued && !done; k += kGroup) {
      const float4 four = load_shared4(queue + 4 * k);
      const uint32_t slot[kGroup] = {__float_as_uint(four.x), __float_as_uint(four.y),
                                     __float_as_uint(four.z), __float_as_uint(four.w)};
      float above[kGroup], below[kGroup];
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float4 place = load_shared4(slot[g]);
        const uint2 scale = load_shared2(slot[g] + kScaleOffset);
        const float l2 = __uint_as_float(scale.x), log2_opacity = __uint_as_float(scale.y);
        const float u = place.z * px + (place.w * py + place.x), v = l2 * py + place.y;
        const float u4 = kRowStep * place.w + u, v4 = kRowStep * l2 + v;
        above[g] = log2_opacity - v * v - u * u;
        below[g] = log2_opacity - v4 * v4 - u4 * u4;
      }
#pragma unroll
      for (int g = 0; g < kGroup; ++g) {
        const float4 color = load_shared4(slot[g] + kColorOffset);
        upper.blend(above[g], color, params);
        lower.blend(below[g], color, params);
      }
      done = finished();
    }
    tests += min(k, queued);
  }
  write_pixel(grid, background, tile_x + column, tile_y + row, upper, image);
  write_pixel(grid, background, tile_x + column, tile_y + row + kRowStep, lower, image);
  if (tally != nullptr && lane == 0) atomicAdd(&tally->tests, 2ull * kWarp * tests);
}

__global__ void __launch_bounds__(256) pack_kernel(Splats splats, const uint32_t* list, Counts room,
                                                   const Counts* counts, Splats packed) {
  if (!counts->fits(room)) return;
  const unsigned long long n = counts->entries;
  for (unsigned long long j = blockIdx.x * 256ull + threadIdx.x; j < n; j += gridDim.x * 256ull) {
    const Fetched f = fetch(splats, list[j]);
    packed.shape[2 * j] = f.head;
    packed.shape[2 * j + 1] = f.tail;
    packed.color[j] = f.color;
  }
}

}  // namespace

void pack(const Splats& splats, const uint32_t* list, const Counts& room, const Counts* counts,
          const Splats& packed, cudaStream_t stream) {
  pack_kernel<<<132 * 8, 256, 0, stream>>>(splats, list, room, counts, packed);
  check_launch("pack_kernel");
}

void raster(const Splats& splats, const uint32_t* list, const Grid& grid, const BlendParams& params,
            const float* background, const Counts& room, const TileLists& lists,
            const Counts* counts, const Image& image, Tally* tally, cudaStream_t stream) {
  const auto kernel = list == nullptr ? raster_kernel<true> : raster_kernel<false>;
  kernel<<<lists.tiles, kThreads, 0, stream>>>(splats, list, grid, params, background, room, lists,
                                               counts, image, tally);
  check_launch("raster_kernel");
}

}  // namespace gart::cuda::tilegs
