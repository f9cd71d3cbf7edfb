// Depth bins and their repair: every tile's entries to a list of splats, front to back.
//
// Schedule: a block per tile, long tiles first, in shared memory. (1) `bin`: the depth range of a
// tile from sampled entries (depth_bins.h); entries are counted per bin, scanned and scattered. (2)
// `repair`: exact order. The paper sorts chosen segments within a budget of a quarter of the
// entries; here every segment is sorted, by the same means that bins them: the K bins are cut on
// into `kFine` (about one entry each), in which an entry's place is the number of nearer ones. That
// costs the scatter that binning costs anyway and a few comparisons an entry, less than choosing
// segments would, and leaves no error. Where a fine bin is crowded, as when all depths are equal,
// the tile is sorted by a bitonic network, and so is, in global memory, a tile that does not fit:
// slow, rare, never wrong. Without repair, bins keep the order of arrival, which differs from run
// to run. Cost: 8 B read twice (the second time from L1) and 4 B written an entry, ~60 operations.
#include "common/depth_bins.h"
#include "cuda/bitonic.cuh"
#include "cuda/tilegs/pipeline.cuh"
#include "cuda/tilegs/tile_at.cuh"
#include "cuda/tilegs/warp_sums.cuh"

#include <algorithm>

namespace gart::cuda::tilegs {
namespace {

constexpr unsigned kCrowded =
    96;                       // entries of a fine bin that are too many to compare each with all
constexpr int kBlocks = 132;  // a multiprocessor each; times as many as one holds

__device__ __forceinline__ int32_t entry_log_depth(Entry entry, float near) {
  return log_depth(__uint_as_float(static_cast<uint32_t>(entry >> 32)), near);
}

// The least of a warp's two values a lane, after leaving out the least one `tail` times (0 or 1).
__device__ __forceinline__ int32_t least_but(int32_t a, int32_t b, int tail) {
  int32_t least = __reduce_min_sync(kFullWarp, min(a, b));
  if (tail == 0) return least;
  const unsigned holders = __ballot_sync(kFullWarp, min(a, b) == least);
  if (static_cast<int>(threadIdx.x & 31) == __ffs(holders) - 1) {
    if (a < b)
      a = INT32_MAX;
    else
      b = INT32_MAX;
  }
  return __reduce_min_sync(kFullWarp, min(a, b));
}

// Every warp works it out for itself. A list comes in no order of depth, so that every so many is a
// fair sample.
__device__ __forceinline__ DepthRange sampled_range(const Entry* entries, int64_t n, float near,
                                                    int bins) {
  static_assert(kDepthSamples == 2 * kWarp, "two samples a lane");
  const int samples = static_cast<int>(min(n, static_cast<int64_t>(kDepthSamples)));
  int32_t low[2] = {INT32_MAX, INT32_MAX}, high[2] = {INT32_MAX, INT32_MAX};
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const int i = k * kWarp + (threadIdx.x & 31);
    if (i >= samples) continue;
    low[k] = entry_log_depth(entries[n * i / samples], near);
    high[k] = ~low[k];  // reverses the order
  }
  const int tail = depth_tail(samples);
  return depth_range(least_but(low[0], low[1], tail), ~least_but(high[0], high[1], tail), bins);
}

// The block's barrier orders shared and global memory alike.
__device__ __forceinline__ void sort_entries(Entry* e, int64_t n) {
  bitonic_sort(
      e, n, static_cast<int64_t>(threadIdx.x), static_cast<int64_t>(blockDim.x),
      [](const Entry& a, const Entry& b) { return a < b; }, [] { __syncthreads(); });
}

// Segments of the K bins and, with repair, those that it sorts; `bin_end` has `fine` bins.
__device__ __forceinline__ void tally_segments(const BinSettings& settings, int fine,
                                               const unsigned* bin_end, Tally* tally) {
  const int b = threadIdx.x, each = fine / settings.bins;
  if (b >= settings.bins) return;
  const unsigned n = bin_end[(b + 1) * each - 1] - (b > 0 ? bin_end[b * each - 1] : 0);
  if (n > 0) atomicAdd(&tally->segments, 1ull);
  if (settings.repair && n > 1) {
    atomicAdd(&tally->repaired_segments, 1ull);
    atomicAdd(&tally->repaired_entries, static_cast<unsigned long long>(n));
  }
}

// Tiles of the classes from `high` down to `low`, whose entries `kClass` bounds.
template <int kThreads, int kClass, int kFine>
__global__ void __launch_bounds__(kThreads)
    bin_kernel(BinSettings settings, Counts room, TileLists lists, int high, int low,
               const Entry* all_entries, uint32_t* all_list, const Counts* counts, Tally* tally) {
  constexpr int kEach = kFine / kThreads;
  static_assert(kFine % kThreads == 0 && kFine >= kMaxDepthBins && kThreads >= kMaxDepthBins, "");
  extern __shared__ Entry sorted[];  // [class_entries(kClass)]
  __shared__ unsigned bin_end[kFine], warp_sums[kThreads / kWarp];
  __shared__ bool crowded;
  if (!counts->fits(room)) return;
  for (int k = blockIdx.x;; k += gridDim.x) {
    const int tile = tile_at(lists, k, high, low);
    if (tile < 0) return;
    const long long began = clock64();
    const int64_t begin = lists.begin[tile];
    const int n = static_cast<int>(lists.count[tile]);
    const Entry* entries = all_entries + begin;
    uint32_t* list = all_list + begin;
    const int bins = settings.repair ? kFine : settings.bins;
    const DepthRange range = sampled_range(entries, n, settings.near, bins);
    const auto bin_of = [&](Entry entry) {
      return depth_bin(entry_log_depth(entry, settings.near), range, bins);
    };
    if (threadIdx.x == 0) crowded = false;
    for (int b = threadIdx.x; b < kFine; b += kThreads) bin_end[b] = 0;
    __syncthreads();
#pragma unroll 4
    for (int j = threadIdx.x; j < n; j += kThreads) atomicAdd(&bin_end[bin_of(entries[j])], 1u);
    __syncthreads();
    unsigned part[kEach], mine = 0, total;
#pragma unroll
    for (int b = 0; b < kEach; ++b) {
      const unsigned size = bin_end[threadIdx.x * kEach + b];
      if (size > kCrowded) crowded = true;
      part[b] = mine;
      mine += size;
    }
    const unsigned before = block_exclusive_sum<kThreads>(mine, warp_sums, &total);
#pragma unroll
    for (int b = 0; b < kEach; ++b) bin_end[threadIdx.x * kEach + b] = before + part[b];
    __syncthreads();
    // Where a bin begins becomes where it ends as its entries arrive.
#pragma unroll 4
    for (int j = threadIdx.x; j < n; j += kThreads) {
      const Entry entry = entries[j];
      sorted[atomicAdd(&bin_end[bin_of(entry)], 1u)] = entry;
    }
    __syncthreads();
    const long long binned = clock64();
    if (tally != nullptr) tally_segments(settings, bins, bin_end, tally);
    if (settings.repair && !crowded) {
      for (int j = threadIdx.x; j < n; j += kThreads) {
        const Entry entry = sorted[j];
        const int b = bin_of(entry);
        const unsigned first = b > 0 ? bin_end[b - 1] : 0, last = bin_end[b];
        unsigned place = first;
        for (unsigned z = first; z < last; ++z) place += sorted[z] < entry;
        list[place] = static_cast<uint32_t>(entry);
      }
    } else {
      if (settings.repair) sort_entries(sorted, n);
      for (int j = threadIdx.x; j < n; j += kThreads) list[j] = static_cast<uint32_t>(sorted[j]);
    }
    __syncthreads();
    if (tally != nullptr && threadIdx.x == 0) {
      const long long repair = settings.repair ? clock64() - binned : 0;
      atomicAdd(&tally->bin_cycles, static_cast<unsigned long long>(clock64() - began - repair));
      atomicAdd(&tally->repair_cycles, static_cast<unsigned long long>(repair));
    }
  }
}

// Tiles too long for shared memory are sorted with or without repair: one segment, a block each.
constexpr int kLongThreads = 1024;
__global__ void __launch_bounds__(kLongThreads)
    sort_long_kernel(Counts room, TileLists lists, Entry* entries, uint32_t* list,
                     const Counts* counts, Tally* tally) {
  if (!counts->fits(room)) return;
  for (int k = blockIdx.x;; k += gridDim.x) {
    const int tile = tile_at(lists, k, kClasses - 1, kClasses - 1);
    if (tile < 0) return;
    const int64_t begin = lists.begin[tile], n = lists.count[tile];
    sort_entries(entries + begin, n);
    for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
      list[begin + j] = static_cast<uint32_t>(entries[begin + j]);
    if (tally != nullptr && threadIdx.x == 0) {
      atomicAdd(&tally->segments, 1ull);
      atomicAdd(&tally->repaired_segments, 1ull);
      atomicAdd(&tally->repaired_entries, static_cast<unsigned long long>(n));
    }
  }
}

template <int kThreads, int kClass, int kFine>
void launch(const BinSettings& settings, const Counts& room, const TileLists& lists, int blocks,
            int low, const Entry* entries, uint32_t* list, const Counts* counts, Tally* tally,
            cudaStream_t stream) {
  const auto kernel = bin_kernel<kThreads, kClass, kFine>;
  constexpr int kBytes = class_entries(kClass) * static_cast<int>(sizeof(Entry));
  if (kBytes + kFine * 4 > 40000) {  // 48 KB are there without asking
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               "cudaFuncSetAttribute (bin_kernel)");
  }
  kernel<<<std::min(lists.tiles, blocks), kThreads, kBytes, stream>>>(
      settings, room, lists, kClass, low, entries, list, counts, tally);
  check_launch("bin_kernel");
}

}  // namespace

void bin_and_repair(const BinSettings& settings, const Counts& room, const TileLists& lists,
                    Entry* entries, uint32_t* list, const Counts* counts, Tally* tally,
                    cudaStream_t stream) {
  if (room.longest > class_entries(kLargeClass)) {
    sort_long_kernel<<<std::min(lists.tiles, kBlocks * 2), kLongThreads, 0, stream>>>(
        room, lists, entries, list, counts, tally);
    check_launch("sort_long_kernel");
  }
  if (room.longest > class_entries(kMiddleClass)) {
    launch<1024, kLargeClass, 4096>(settings, room, lists, kBlocks, kMiddleClass + 1, entries, list,
                                    counts, tally, stream);
  }
  if (room.longest > class_entries(kSmallClass)) {
    launch<256, kMiddleClass, 1024>(settings, room, lists, kBlocks * 8, kSmallClass + 1, entries,
                                    list, counts, tally, stream);
  }
  launch<128, kSmallClass, 512>(settings, room, lists, lists.tiles, 1, entries, list, counts, tally,
                                stream);
}

}  // namespace gart::cuda::tilegs
