// For tests and inspection: the hits every pixel blended, front to back (a thread per pixel copies
// its list out), and how many (Gaussian, tile) pairs they come from.
#include <algorithm>

#include "cuda/hit_storage.cuh"

namespace gart {
namespace cuda {
namespace {

__device__ __forceinline__ int64_t pixel_of(const Rays& rays, int64_t slot) {
  const int tile = static_cast<int>(slot / kTilePixels), p = static_cast<int>(slot % kTilePixels);
  const int x = (tile % rays.tiles_x) * kTraceTile + p % kTraceTile;
  const int y = (tile / rays.tiles_x) * kTraceTile + p / kTraceTile;
  return x < rays.width && y < rays.height ? static_cast<int64_t>(y) * rays.width + x : -1;
}

__global__ void count_kernel(Rays rays, HitLists hits, int64_t slots, int64_t* count) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (slot < slots && pixel_of(rays, slot) >= 0) count[pixel_of(rays, slot)] = hits.count[slot];
}

__global__ void copy_kernel(Rays rays, HitLists hits, TileLists lists, int64_t slots,
                            const int64_t* offset, uint32_t gaussian_count, int32_t* gaussians) {
  const int64_t slot = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (slot >= slots || pixel_of(rays, slot) < 0) return;
  const int tile = static_cast<int>(slot / kTilePixels), p = static_cast<int>(slot % kTilePixels);
  const uint32_t* list = lists.record + lists.offset[tile];
  int32_t* out = gaussians + offset[pixel_of(rays, slot)];
  for (int k = 0; k < hits.count[slot]; ++k)
    out[k] = list[hits.word(tile, p, k) >> 16] % gaussian_count;
}

// Adds up the entries of each tile's list that some pixel has blended: a block per tile, a bit per
// entry.
__global__ void __launch_bounds__(kTilePixels)
    pairs_kernel(HitLists hits, TileLists lists, unsigned long long* pairs) {
  constexpr int kWords = (kMaxTileEntries + 32) / 32;
  __shared__ uint32_t seen[kWords];
  const int tile = blockIdx.x, p = threadIdx.x;
  const int words = static_cast<int>(lists.offset[tile + 1] - lists.offset[tile] + 31) / 32;
  for (int w = p; w < words; w += kTilePixels) seen[w] = 0;
  __syncthreads();
  const int count = hits.count[static_cast<int64_t>(tile) * kTilePixels + p];
  for (int k = 0; k < count; ++k) {
    const uint32_t entry = hits.word(tile, p, k) >> 16;
    atomicOr(&seen[entry / 32], 1u << (entry % 32));
  }
  __syncthreads();
  unsigned sum = 0;
  for (int w = p; w < words; w += kTilePixels) sum += __popc(seen[w]);
  sum = __reduce_add_sync(kFullWarp, sum);
  if (p % kWarp == 0 && sum > 0) atomicAdd(pairs, static_cast<unsigned long long>(sum));
}

// Whether trace_forward's state holds all hits of its frame.
bool complete(const Rays& rays, const tvm::ffi::Array<Tensor>& state, const HitStorage& storage) {
  return received_chunks(stored_ticket(state)[0], storage, rays.tiles()) <=
         static_cast<int64_t>(storage.view().capacity);
}

// Offsets [H*W + 1] and Gaussians, from trace_forward's state. Fails where the frame's hits did not
// fit the pool.
tvm::ffi::Array<Tensor> trace_order(TensorView means, TensorView c2w,
                                    tvm::ffi::Array<Tensor> ray_tensors,
                                    tvm::ffi::Array<Tensor> state) {
  const Rays rays = ray_view(c2w, ray_tensors);
  const DeviceScope scope(means.device());
  const TileLists lists = stored_lists(state);
  const HitStorage storage = stored_hits(state);
  const HitLists hits = storage.view();
  if (!complete(rays, state, storage)) {
    TVM_FFI_THROW(RuntimeError)
        << "the hit storage was too small for this frame; call again, it has grown";
  }
  const int64_t pixels = static_cast<int64_t>(rays.width) * rays.height;
  const int64_t slots = static_cast<int64_t>(rays.tiles()) * kTilePixels;
  Tensor offsets = scope.zeros<int64_t>({pixels + 1});
  count_kernel<<<blocks_for(slots, 256), 256, 0, scope.stream()>>>(rays, hits, slots,
                                                                   data<int64_t>(offsets) + 1);
  check_launch("count_kernel");
  std::vector<int64_t> host(pixels + 1);
  check_cuda(cudaStreamSynchronize(scope.stream()), "count_kernel");
  const size_t bytes = host.size() * sizeof(int64_t);
  check_cuda(cudaMemcpy(host.data(), offsets.data_ptr(), bytes, cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  for (int64_t p = 0; p < pixels; ++p) host[p + 1] += host[p];
  check_cuda(cudaMemcpy(offsets.data_ptr(), host.data(), bytes, cudaMemcpyHostToDevice),
             "cudaMemcpy");
  Tensor gaussians = scope.empty<int32_t>({host[pixels]});
  copy_kernel<<<blocks_for(slots, 256), 256, 0, scope.stream()>>>(
      rays, hits, lists, slots, data<int64_t>(offsets),
      static_cast<uint32_t>(std::max<int64_t>(means.size(0), 1)), data<int32_t>(gaussians));
  check_launch("copy_kernel");
  return {offsets, gaussians};
}

// How many (Gaussian, tile) pairs have a blended hit; waits for the GPU. -1 where the frame's hits
// did not fit the pool.
int64_t hit_pairs(TensorView means, TensorView c2w, tvm::ffi::Array<Tensor> ray_tensors,
                  tvm::ffi::Array<Tensor> state) {
  const Rays rays = ray_view(c2w, ray_tensors);
  const DeviceScope scope(means.device());
  const HitStorage storage = stored_hits(state);
  if (!complete(rays, state, storage)) return -1;
  Tensor pairs = scope.zeros<int64_t>({1});
  pairs_kernel<<<rays.tiles(), kTilePixels, 0, scope.stream()>>>(
      storage.view(), stored_lists(state),
      reinterpret_cast<unsigned long long*>(data<int64_t>(pairs)));
  check_launch("pairs_kernel");
  check_cuda(cudaStreamSynchronize(scope.stream()), "pairs_kernel");
  int64_t total = 0;
  check_cuda(cudaMemcpy(&total, pairs.data_ptr(), sizeof(total), cudaMemcpyDeviceToHost),
             "cudaMemcpy");
  return total;
}

}  // namespace
}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_order, gart::cuda::trace_order);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(hit_pairs, gart::cuda::hit_pairs);
