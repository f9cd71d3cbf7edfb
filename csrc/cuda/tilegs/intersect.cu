// Tile lists: every tile's stretch of the stream, then its entries.
//
// Schedule: `place_kernel` has a thread per tile. A stretch begins where the block's sum and one
// global counter say, so stretches lie in no order of tiles and no scan over all tiles is needed;
// the tile enters the list of its length class, by which later kernels take long tiles first.
// `emit_kernel` deals the entries of 32 spans to a warp's lanes; each takes the next place of its
// tile. Cost: 16 B a span, ~30 operations, an atomic and 8 B an entry.
#include "cuda/tilegs/pipeline.cuh"
#include "cuda/tilegs/warp_sums.cuh"

namespace gart::cuda::tilegs {
namespace {

constexpr int kThreads = 256;
constexpr int kEmitBlocks = 132 * 8;
constexpr int kInFlight = 2;  // entries of a lane whose places are on their way at once

GART_HD int length_class(unsigned int n) {
  int c = 0;
  while (c < kClasses - 1 && n > static_cast<unsigned>(class_entries(c))) ++c;
  return c;
}

__global__ void __launch_bounds__(kThreads) place_kernel(TileLists lists, Counts* counts) {
  __shared__ unsigned long long warp_sums[kThreads / kWarp], base;
  __shared__ unsigned int in_class[kClasses], class_base[kClasses], longest;
  if (threadIdx.x < kClasses) in_class[threadIdx.x] = 0;
  if (threadIdx.x == 0) longest = 0;
  const int tile = blockIdx.x * kThreads + threadIdx.x;
  const unsigned int n = tile < lists.tiles ? lists.count[tile] : 0;
  unsigned long long total;
  const unsigned long long before =
      block_exclusive_sum<kThreads, unsigned long long>(n, warp_sums, &total);
  const int c = length_class(n);
  unsigned int rank = 0;
  if (tile < lists.tiles) {
    rank = atomicAdd(&in_class[c], 1u);
    atomicMax(&longest, n);
  }
  if (threadIdx.x == 0) base = atomicAdd(&counts->entries, total);
  __syncthreads();
  if (threadIdx.x < kClasses && in_class[threadIdx.x] > 0)
    class_base[threadIdx.x] = atomicAdd(&lists.class_size[threadIdx.x], in_class[threadIdx.x]);
  if (threadIdx.x == 0) atomicMax(&counts->longest, longest);
  __syncthreads();
  if (tile >= lists.tiles) return;
  lists.begin[tile] = static_cast<int64_t>(base + before);
  lists.cursor[tile] = base + before;
  lists.of_class[static_cast<int64_t>(c) * lists.tiles + class_base[c] + rank] = tile;
}

__global__ void __launch_bounds__(kThreads)
    emit_kernel(const Span* spans, Counts room, unsigned long long* cursor, Entry* entries,
                const Counts* counts, Counts* report) {
  const Counts needed = *counts;
  if (blockIdx.x == 0 && threadIdx.x == 0) *report = needed;
  if (!needed.fits(room)) return;
  const int lane = threadIdx.x & 31;
  const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * kThreads;
  for (unsigned long long first = blockIdx.x * kThreads + (threadIdx.x & ~31u);
       first < needed.spans; first += stride) {
    const unsigned long long k = first + lane;
    uint4 span = make_uint4(0, 0, 0, 0);
    if (k < needed.spans) span = __ldg(reinterpret_cast<const uint4*>(spans) + k);
    const unsigned end = warp_inclusive_sum(span.z);
    const unsigned total = __shfl_sync(kFullWarp, end, 31);
    for (unsigned base = 0; base < total; base += kInFlight * kWarp) {
      unsigned tile[kInFlight];
      Entry entry[kInFlight];
      unsigned long long place[kInFlight];
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        const unsigned c = base + j * kWarp + lane;
        const int owner = owner_lane(end, c);
        const unsigned owner_tile = __shfl_sync(kFullWarp, span.y, owner);
        const unsigned owner_first = __shfl_sync(kFullWarp, end - span.z, owner);
        const unsigned splat = __shfl_sync(kFullWarp, span.x, owner);
        const unsigned depth = __shfl_sync(kFullWarp, span.w, owner);
        tile[j] = owner_tile + (c - owner_first);
        entry[j] = (static_cast<Entry>(depth) << 32) | splat;
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (base + j * kWarp + lane < total) place[j] = atomicAdd(cursor + tile[j], 1ull);
      }
#pragma unroll
      for (int j = 0; j < kInFlight; ++j) {
        if (base + j * kWarp + lane < total) entries[place[j]] = entry[j];
      }
    }
  }
}

}  // namespace

void intersect(const Span* spans, const Counts& room, const TileLists& lists, Entry* entries,
               Counts* counts, Counts* report, cudaStream_t stream) {
  place_kernel<<<blocks_for(lists.tiles, kThreads), kThreads, 0, stream>>>(lists, counts);
  check_launch("place_kernel");
  emit_kernel<<<kEmitBlocks, kThreads, 0, stream>>>(spans, room, lists.cursor, entries, counts,
                                                    report);
  check_launch("emit_kernel");
}

}  // namespace gart::cuda::tilegs
