// Host side of the forward pass: allocation, launches and the one count that comes back.
//
// Sizes: entries (P) are counted before they are allocated, and that count is the only wait for the
// GPU. Hit storage cannot be known before compositing; it is taken from a pool sized by recent
// frames, counted in full even when it runs out, and the backward pass repeats the compositing with
// the exact size if it did (trace_backward.cu).
#include "cuda/trace_forward.cuh"

#include <cub/block/block_scan.cuh>

#include <algorithm>
#include <atomic>
#include <cmath>

#include "cuda/hit_storage.cuh"
#include "cuda/tile_lists.cuh"

namespace gart {
namespace cuda {
namespace {

constexpr int kScanThreads = 1024;
constexpr int kLengths = 48;  // classes of list lengths, two to an octave

struct Counts {
  int64_t entries, longest;
  unsigned long long big_items;
};

// 0 for no entries; the class of the longest lists holds whatever is longer.
__device__ __forceinline__ int length_class(int entries) {
  if (entries == 0) return 0;
  const uint32_t bits = __float_as_uint(static_cast<float>(entries)) >> 22;
  return min(static_cast<int>(bits) - 2 * 127 + 1, kLengths - 1);
}

// Adds 1 to a counter in shared memory for every thread of the warp whose `key` is at least 0,
// lanes with equal keys together, and returns what was there before that thread's.
__device__ __forceinline__ int count_key(int* counters, int key) {
  const int lane = threadIdx.x & 31;
  const unsigned same = __match_any_sync(kFullWarp, key);
  const int leader = __ffs(same) - 1;
  int before = 0;
  if (key >= 0 && lane == leader) before = atomicAdd(&counters[key], __popc(same));
  return __shfl_sync(kFullWarp, before, leader) + __popc(same & ((1u << lane) - 1));
}

// Exclusive sum of the tiles' entry counts, their total and their maximum, and the tiles in the
// order in which the passes over them begin: long lists first, or a block that begins late works
// alone at the end. Neighbours stay together where their lists are about as long. By one block.
__global__ void __launch_bounds__(kScanThreads)
    scan_tiles_kernel(const int32_t* count, int tiles, int64_t* offset, int32_t* order,
                      const unsigned long long* big_items, Counts* out) {
  using Scan = cub::BlockScan<int64_t, kScanThreads>;
  __shared__ typename Scan::TempStorage storage;
  __shared__ int longest, of_length[kLengths];
  if (threadIdx.x < kLengths) of_length[threadIdx.x] = 0;
  if (threadIdx.x == 0) longest = 0;
  __syncthreads();
  int most = 0;
  int64_t before = 0;  // entries of the tiles scanned so far
  for (int base = 0; base < tiles; base += kScanThreads) {
    const int t = base + threadIdx.x;
    const int mine = t < tiles ? count[t] : 0;
    most = max(most, mine);
    count_key(of_length, t < tiles ? length_class(mine) : -1);
    int64_t begin, sum;
    Scan(storage).ExclusiveSum(int64_t{mine}, begin, sum);
    if (t < tiles) offset[t] = before + begin;
    before += sum;
    __syncthreads();
  }
  atomicMax(&longest, most);
  int place = 0;  // of the first tile of a class
  if (threadIdx.x < kLengths) {
    for (int k = threadIdx.x + 1; k < kLengths; ++k) place += of_length[k];
  }
  __syncthreads();
  if (threadIdx.x < kLengths) of_length[threadIdx.x] = place;
  __syncthreads();
  for (int base = 0; base < tiles; base += kScanThreads) {
    const int t = base + threadIdx.x;
    const int at = count_key(of_length, t < tiles ? length_class(count[t]) : -1);
    if (t < tiles) order[at] = t;
  }
  if (threadIdx.x == 0) {
    offset[tiles] = before;
    *out = {before, longest, *big_items};
  }
}

// Page-locked memory for counts that come back; one a host thread.
Counts* pinned_counts() {
  thread_local Counts* memory = nullptr;
  if (memory == nullptr) check_cuda(cudaMallocHost(&memory, sizeof(Counts)), "cudaMallocHost");
  return memory;
}

// Returns what csrc/cpu/trace_forward.cpp returns up to `stats` (zero times and counts unless
// `timed`); the state is record [R,12], color [R,4], offset [T+1], list [P], bound [P],
// order [T], then hit storage: pool, table, warp_table, own_chunk, count, transmittance, used [2],
// ticket [2] (CPU: the counts' page-locked slot, the longest list).
tvm::ffi::Array<Tensor> trace_forward(TensorView means, TensorView quats, TensorView log_scales,
                                      TensorView opacity_logits, TensorView sh, TensorView c2w,
                                      tvm::ffi::Array<Tensor> ray_tensors, double alpha_min,
                                      double alpha_max, double transmittance_min, double near,
                                      int64_t ring_size, bool sh_at_ray, bool keep_hits, bool timed,
                                      int64_t /*threads*/) {
  if (ring_size != kRingSize && ring_size != 0) {
    TVM_FFI_THROW(ValueError) << "ring_size is " << ring_size << "; the CUDA tracer's ring holds "
                              << kRingSize << ", or 0: every pixel takes the exact pass";
  }
  const Scene scene = scene_view(means, quats, log_scales, opacity_logits, sh);
  const Rays rays = ray_view(c2w, ray_tensors);
  const Params params =
      make_params(alpha_min, alpha_max, transmittance_min, near, sh_at_ray, ring_size);
  const DeviceScope scope(means.device());
  const cudaStream_t stream = scope.stream();
  const int64_t tiles = rays.tiles(), record_count = rays.faces * scene.count;
  if (record_count > UINT32_MAX - 1) {
    TVM_FFI_THROW(ValueError) << "means has " << scene.count << " rows and the lens " << rays.faces
                              << " faces; at most 2^32 - 2 records fit";
  }

  StageTimer timer(timed, stream);
  Tensor record = scope.empty<float>({record_count, kRecordFloats});
  Tensor color = scope.empty<float>({sh_at_ray ? 0 : record_count, 4});
  const Records records{reinterpret_cast<float4*>(data<float>(record)),
                        reinterpret_cast<float4*>(data<float>(color))};
  Tensor spans = scope.empty<int32_t>(
      {record_count, static_cast<int64_t>(sizeof(RecordSpan) / sizeof(int32_t))});
  RecordSpan* span = reinterpret_cast<RecordSpan*>(data<int32_t>(spans));
  Tensor offset = scope.empty<int64_t>({tiles + 1});
  Tensor order = scope.empty<int32_t>({tiles});
  Tensor device_counts = scope.empty<int64_t>({sizeof(Counts) / sizeof(int64_t)});
  Counts* counts = pinned_counts();
  static std::atomic<int64_t> big_hint{1 << 14};
  Tensor big_items;
  BigItems big{};
  Tensor zeros;  // what big items there are; entries counted and entries placed, by tile
  int32_t* tile_count = nullptr;
  for (;;) {
    const int64_t capacity = big_hint;
    big_items = scope.empty<int32_t>({capacity, 2});
    zeros = scope.zeros<int64_t>({1 + tiles});
    tile_count = reinterpret_cast<int32_t*>(data<int64_t>(zeros) + 1);
    big = {reinterpret_cast<BigItem*>(data<int32_t>(big_items)),
           reinterpret_cast<unsigned long long*>(data<int64_t>(zeros)),
           static_cast<unsigned long long>(capacity)};
    count_entries(scene, rays, params, records, span, tile_count, big, stream);
    scan_tiles_kernel<<<1, kScanThreads, 0, stream>>>(
        tile_count, static_cast<int>(tiles), data<int64_t>(offset), data<int32_t>(order), big.count,
        reinterpret_cast<Counts*>(data<int64_t>(device_counts)));
    check_launch("scan_tiles_kernel");
    check_cuda(cudaMemcpyAsync(counts, device_counts.data_ptr(), sizeof(Counts),
                               cudaMemcpyDeviceToHost, stream),
               "cudaMemcpyAsync");
    check_cuda(cudaStreamSynchronize(stream), "project_kernel");
    if (counts->big_items <= big.capacity) break;
    big_hint = static_cast<int64_t>(counts->big_items + counts->big_items / 2);
  }
  timer.mark();
  const int64_t entries = counts->entries, longest = counts->longest;
  if (longest > kMaxTileEntries) {
    TVM_FFI_THROW(ValueError) << "a tile of " << kTraceTile << " x " << kTraceTile << " pixels has "
                              << longest << " Gaussians in view; the CUDA tracer takes at most "
                              << kMaxTileEntries
                              << ": render larger or nearer, or trace on the CPU";
  }
  Tensor entry = scope.empty<int32_t>({entries, 3});
  Tensor list = scope.empty<int32_t>({entries});
  Tensor bound = scope.empty<float>({entries});
  const EmitTarget target{data<int64_t>(offset), tile_count + tiles,
                          reinterpret_cast<Entry*>(data<int32_t>(entry))};
  emit_entries(scene, rays, params, records, span, big, target, stream);
  sort_entries(static_cast<int>(tiles), data<int64_t>(offset), target.entry, longest,
               reinterpret_cast<uint32_t*>(data<int32_t>(list)), data<float>(bound), stream);
  timer.mark();

  const TileLists lists{data<int64_t>(offset), reinterpret_cast<uint32_t*>(data<int32_t>(list)),
                        data<float>(bound), data<int32_t>(order)};
  HitStorage storage(scope, tiles, keep_hits ? expected_chunks(tiles) : 0, keep_hits);
  Tensor out_color = scope.empty<float>({rays.height, rays.width, 3});
  Tensor out_opacity = scope.empty<float>({rays.height, rays.width});
  Tensor out_depth = scope.empty<float>({rays.height, rays.width});
  Tensor flagged = scope.empty<int32_t>({tiles * kTilePixels + 1});
  const ForwardTarget outputs{data<float>(out_color), data<float>(out_opacity),
                              data<float>(out_depth),
                              reinterpret_cast<uint32_t*>(data<int32_t>(flagged)) + 1,
                              reinterpret_cast<unsigned int*>(data<int32_t>(flagged))};
  composite(scene, rays, params, records, lists, longest, keep_hits, storage.view(), outputs,
            stream);
  timer.mark();
  Tensor ticket = empty<int64_t>({2}, DLDevice{kDLCPU, 0});
  data<int64_t>(ticket)[0] = keep_hits ? storage.send_counts(stream) : -1;
  data<int64_t>(ticket)[1] = longest;

  Tensor stats = empty<double>({8}, DLDevice{kDLCPU, 0});
  double* s = data<double>(stats);
  std::fill(s, s + 8, 0.0);
  if (timed) {
    const std::vector<double> ms = timer.milliseconds();
    std::copy(ms.begin(), ms.end(), s);
    unsigned int repaired = 0;
    check_cuda(
        cudaMemcpy(&repaired, outputs.flagged_count, sizeof(repaired), cudaMemcpyDeviceToHost),
        "cudaMemcpy");
    s[3] = static_cast<double>(record_count);
    s[4] = static_cast<double>(entries);
    s[5] = keep_hits ? storage.total_hits() : -1.0;  // not counted
    s[6] = repaired;
    s[7] = keep_hits ? storage.bytes_used(tiles) : 0.0;
  }
  tvm::ffi::Array<Tensor> result{out_color, out_opacity, out_depth, stats, record,
                                 color,     offset,      list,      bound, order};
  for (const Tensor& t : storage.tensors()) result.push_back(t);
  result.push_back(ticket);
  return result;
}

}  // namespace

Scene scene_view(const TensorView& means, const TensorView& quats, const TensorView& log_scales,
                 const TensorView& opacity_logits, const TensorView& sh) {
  Scene s;
  s.means = checked<float>(means, "means", {kAny, 3}, kDLCUDA);
  s.count = means.size(0);
  s.quats = reinterpret_cast<const float4*>(checked<float>(quats, "quats", {s.count, 4}, kDLCUDA));
  s.log_scales = checked<float>(log_scales, "log_scales", {s.count, 3}, kDLCUDA);
  s.opacity_logits = checked<float>(opacity_logits, "opacity_logits", {s.count}, kDLCUDA);
  s.sh = checked<float>(sh, "sh", {s.count, kAny, 3}, kDLCUDA);
  s.sh_coeffs = static_cast<int>(sh.size(1));
  if (s.sh_coeffs != 1 && s.sh_coeffs != 4 && s.sh_coeffs != 9 && s.sh_coeffs != 16) {
    TVM_FFI_THROW(ValueError) << "sh has " << s.sh_coeffs
                              << " coefficients; expected 1, 4, 9 or 16";
  }
  for (const TensorView* t : {&quats, &log_scales, &opacity_logits, &sh}) {
    if (t->device().device_id != means.device().device_id) {
      TVM_FFI_THROW(ValueError) << "the scene's tensors are on CUDA devices "
                                << means.device().device_id << " and " << t->device().device_id
                                << "; expected one";
    }
  }
  return s;
}

Rays ray_view(const TensorView& c2w, const tvm::ffi::Array<Tensor>& rays) {
  if (rays.size() != 7)
    TVM_FFI_THROW(ValueError) << "rays has " << rays.size() << " tensors; expected 7";
  Rays r;
  const TensorView face_axes = rays[0], ray_xy = rays[1], tile_face = rays[2], tile_rect = rays[3];
  std::copy_n(checked<float>(c2w, "c2w", {3, 4}, kDLCPU), 12, r.c2w);
  r.face_axes = checked<float>(face_axes, "face_axes", {kAny, 3, 3}, kDLCUDA);
  r.ray_xy =
      reinterpret_cast<const float2*>(checked<float>(ray_xy, "ray_xy", {kAny, kAny, 2}, kDLCUDA));
  r.height = static_cast<int>(ray_xy.size(0));
  r.width = static_cast<int>(ray_xy.size(1));
  r.faces = static_cast<int>(face_axes.size(0));
  r.tiles_x = (r.width + kTraceTile - 1) / kTraceTile;
  r.tiles_y = (r.height + kTraceTile - 1) / kTraceTile;
  r.tile_face = checked<int32_t>(tile_face, "tile_face", {r.tiles()}, kDLCUDA);
  r.tile_rect = reinterpret_cast<const Rect<float>*>(
      checked<float>(tile_rect, "tile_rect", {r.tiles(), 4}, kDLCUDA));
  r.columns = checked<float>(rays[4], "columns", {r.faces, 2, r.tiles_x}, kDLCUDA);
  r.rows = checked<float>(rays[5], "rows", {r.faces, 2, r.tiles_y}, kDLCUDA);
  r.block_rect = reinterpret_cast<const Rect<float>*>(
      checked<float>(rays[6], "block_rect", {r.blocks(), 4}, kDLCUDA));
  return r;
}

Params make_params(double alpha_min, double alpha_max, double transmittance_min, double near,
                   bool sh_at_ray, int64_t ring_size) {
  return {static_cast<float>(alpha_min),
          static_cast<float>(alpha_max),
          static_cast<float>(transmittance_min),
          static_cast<float>(near),
          static_cast<float>(std::log2(alpha_min)),
          sh_at_ray,
          static_cast<int>(ring_size)};
}

}  // namespace cuda
}  // namespace gart

TVM_FFI_DLL_EXPORT_TYPED_FUNC(trace_forward, gart::cuda::trace_forward);
