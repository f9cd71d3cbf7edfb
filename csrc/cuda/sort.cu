// Orders every tile's entries by tau on its central ray, ties by record, and prepares the
// certificate: for each batch of 32 entries the least possible tau of that batch and all later
// ones.
//
// Schedule: a block per tile. Lists up to the largest class are sorted in shared memory: keys fall
// into bins linear in the float's bits (tau is positive), a scan gives every bin its place, and
// inside a bin each entry counts the smaller ones. Longer lists are sorted in place by a bitonic
// network in global memory, one block each: slow, rare, never wrong. Cost: 12 B read and 8 B
// written an entry, ~60 operations an entry.
#include "cuda/bitonic.cuh"
#include "cuda/tile_lists.cuh"

namespace gart {
namespace cuda {
namespace {

__device__ __forceinline__ bool before(uint32_t key, uint32_t record, uint32_t other_key,
                                       uint32_t other_record) {
  return key < other_key || (key == other_key && record < other_record);
}

// Least of a warp's values at this lane and later ones.
__device__ __forceinline__ float least_after(float value) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int o = 1; o < kWarp; o <<= 1) {
    const float other = __shfl_down_sync(kFullWarp, value, o);
    if (lane + o < kWarp) value = fminf(value, other);
  }
  return value;
}

// Turns bounds [n] into minima over each entry and everything after it. A thread owns a run of
// entries; `warp_least` has a place for every warp of the block.
__device__ __forceinline__ void suffix_minima(const float* bounds, int64_t n, float* warp_least,
                                              float* out) {
  const int tid = threadIdx.x, warps = blockDim.x / kWarp;
  const int64_t each = (n + blockDim.x - 1) / blockDim.x;
  const int64_t first = min(n, tid * each), last = min(n, first + each);
  float mine = INFINITY;
  for (int64_t k = first; k < last; ++k) mine = fminf(mine, bounds[k]);
  const float upto = least_after(mine);  // from this thread's run to the warp's end
  if ((tid & 31) == 0) warp_least[tid / kWarp] = upto;
  float after = __shfl_down_sync(kFullWarp, upto, 1);
  if ((tid & 31) == 31) after = INFINITY;
  __syncthreads();
  for (int w = tid / kWarp + 1; w < warps; ++w) after = fminf(after, warp_least[w]);
  for (int64_t k = last - 1; k >= first; --k) {
    after = fminf(after, bounds[k]);
    out[k] = after;
  }
}

template <int kThreads, int kCapacity, int kBins>
struct SortMemory {
  uint32_t key[kCapacity], record[kCapacity], bin_begin[kBins + 1];
  float entry_bound[kCapacity], warp_least[kThreads / kWarp];
  uint32_t least, most, warp_sum[kThreads / kWarp];
};

template <int kThreads, int kCapacity, int kBins>
__global__ void __launch_bounds__(kThreads) sort_kernel(const int64_t* offset, const Entry* entries,
                                                        int above, uint32_t* list, float* bound) {
  constexpr int kEach = kCapacity / kThreads;
  constexpr int kBinsEach = kBins / kThreads;
  extern __shared__ uint32_t memory[];
  auto& shared = *reinterpret_cast<SortMemory<kThreads, kCapacity, kBins>*>(memory);
  uint32_t *const key = shared.key, *const record = shared.record,
                  *const bin_begin = shared.bin_begin, *const warp_sum = shared.warp_sum;
  float *const entry_bound = shared.entry_bound, *const warp_least = shared.warp_least;
  uint32_t &least = shared.least, &most = shared.most;
  const int tile = blockIdx.x, tid = threadIdx.x, lane = tid & 31;
  const int64_t begin = offset[tile];
  const int64_t length = offset[tile + 1] - begin;
  if (length <= above || length > kCapacity) return;
  const int n = static_cast<int>(length);
  if (tid == 0) {
    least = 0xffffffffu;
    most = 0;
  }
  for (int b = tid; b <= kBins; b += kThreads) bin_begin[b] = 0;
  Entry e[kEach];
  uint32_t low = 0xffffffffu, high = 0;
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    const int j = tid + k * kThreads;
    if (j >= n) continue;
    e[k] = entries[begin + j];
    low = min(low, e[k].key);
    high = max(high, e[k].key);
  }
  __syncthreads();
  low = __reduce_min_sync(kFullWarp, low);
  high = __reduce_max_sync(kFullWarp, high);
  if (lane == 0) {
    atomicMin(&least, low);
    atomicMax(&most, high);
  }
  __syncthreads();
  low = least;
  const float scale = (kBins - 0.01f) / (static_cast<float>(most - low) + 1.0f);
  uint32_t bin[kEach], rank[kEach];
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (tid + k * kThreads >= n) continue;
    bin[k] = min(static_cast<uint32_t>(static_cast<float>(e[k].key - low) * scale), kBins - 1u);
    rank[k] = atomicAdd(&bin_begin[bin[k]], 1u);
  }
  __syncthreads();
  uint32_t sum = 0, part[kBinsEach];
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) {
    part[k] = sum;
    sum += bin_begin[tid * kBinsEach + k];
  }
  uint32_t upto = sum;
#pragma unroll
  for (int o = 1; o < kWarp; o <<= 1) {
    const uint32_t up = __shfl_up_sync(kFullWarp, upto, o);
    if (lane >= o) upto += up;
  }
  if (lane == 31) warp_sum[tid / kWarp] = upto;
  __syncthreads();
  uint32_t first = upto - sum;
  for (int w = 0; w < tid / kWarp; ++w) first += warp_sum[w];
#pragma unroll
  for (int k = 0; k < kBinsEach; ++k) bin_begin[tid * kBinsEach + k] = first + part[k];
  if (tid == 0) bin_begin[kBins] = n;
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (tid + k * kThreads >= n) continue;
    const uint32_t slot = bin_begin[bin[k]] + rank[k];
    key[slot] = e[k].key;
    record[slot] = e[k].record;
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < kEach; ++k) {
    if (tid + k * kThreads >= n) continue;
    const uint32_t bin_first = bin_begin[bin[k]], bin_end = bin_begin[bin[k] + 1];
    uint32_t place = bin_first;
    for (uint32_t z = bin_first; z < bin_end; ++z)
      place += before(key[z], record[z], e[k].key, e[k].record);
    list[begin + place] = e[k].record;
    entry_bound[place] = __uint_as_float(e[k].bound);
  }
  __syncthreads();
  suffix_minima(entry_bound, n, warp_least, bound + begin);
}

__global__ void __launch_bounds__(1024)
    sort_long_kernel(const int64_t* offset, Entry* entries, int64_t above, uint32_t* list,
                     float* bound) {
  __shared__ float warp_least[32];
  const int tile = blockIdx.x;
  const int64_t begin = offset[tile], n = offset[tile + 1] - begin;
  if (n <= above) return;
  Entry* e = entries + begin;
  bitonic_sort(
      e, n, static_cast<int64_t>(threadIdx.x), static_cast<int64_t>(blockDim.x),
      [](const Entry& a, const Entry& b) { return before(a.key, a.record, b.key, b.record); },
      [] { __syncthreads(); });
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) list[begin + i] = e[i].record;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    bound[begin + i] = __uint_as_float(e[i].bound);
  }
  __syncthreads();
  // In place: a thread reads and writes its own run only.
  suffix_minima(bound + begin, n, warp_least, bound + begin);
}

// Sorts the lists longer than `above` that fit.
template <int kThreads, int kCapacity, int kBins>
void sort_up_to(int tiles, const int64_t* offset, const Entry* entries, int above, uint32_t* list,
                float* bound, cudaStream_t stream) {
  constexpr int kBytes = sizeof(SortMemory<kThreads, kCapacity, kBins>);
  const auto kernel = sort_kernel<kThreads, kCapacity, kBins>;
  if (kBytes > 48 * 1024) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
               "cudaFuncSetAttribute (sort_kernel)");
  }
  kernel<<<tiles, kThreads, kBytes, stream>>>(offset, entries, above, list, bound);
  check_launch("sort_kernel");
}

}  // namespace

void sort_entries(int tiles, const int64_t* offset, Entry* entries, int64_t longest, uint32_t* list,
                  float* bound, cudaStream_t stream) {
  if (longest == 0) return;
  sort_up_to<64, 256, 256>(tiles, offset, entries, 0, list, bound, stream);
  if (longest > 256) sort_up_to<128, 1024, 512>(tiles, offset, entries, 256, list, bound, stream);
  if (longest > 1024) {
    sort_up_to<512, 3072, 1024>(tiles, offset, entries, 1024, list, bound, stream);
  }
  // 96 KB of shared memory, which every GPU since compute capability 8.0 gives a block.
  constexpr int kLargest = 7168;
  if (longest > 3072) {
    sort_up_to<1024, kLargest, 2048>(tiles, offset, entries, 3072, list, bound, stream);
  }
  if (longest > kLargest) {
    sort_long_kernel<<<tiles, 1024, 0, stream>>>(offset, entries, kLargest, list, bound);
    check_launch("sort_long_kernel");
  }
}

}  // namespace cuda
}  // namespace gart
