// TileGS on the GPU: `tilegs_render`, which csrc/cpu/tilegs exports alike.
//
// Schedule: camera by camera, project -> intersect -> bin and repair -> raster (pipeline.cuh), all
// launched at once. How many spans and entries there are, and how long the longest list is, is
// known only once the GPU has counted them: everything is launched with room for what recent frames
// took and a quarter more, and the host reads the counts while the GPU still sorts and blends.
// Where something did not fit, the later kernels have done nothing, and the frame is launched again
// with the room it needs. Memory: 48 B a Gaussian, 16 B a span, 12 B an entry, in one allocation.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "bindings/tilegs.h"
#include "cuda/tilegs/pipeline.cuh"

namespace gart::cuda::tilegs {
namespace {

using gart::tilegs::check_arguments;
using gart::tilegs::Stats;
using tvm::ffi::Array;

struct Settings {
  SplatParams splat;
  BinSettings bins;
  BlendParams blend;
  bool packed, timed;
};

// Room for the next frame: follows growth at once, with a quarter to spare, and decays slowly.
std::mutex room_mutex;
Counts room_for_next{1 << 20, 1 << 20, static_cast<unsigned>(class_entries(kLargeClass)), 0};

Counts expected_counts() {
  const std::lock_guard<std::mutex> lock(room_mutex);
  return room_for_next;
}
void remember(const Counts& needed) {
  const std::lock_guard<std::mutex> lock(room_mutex);
  const auto follow = [](auto& room, auto need) {
    using T = std::decay_t<decltype(room)>;
    room = std::max<T>(need + need / 4 + 256, room - room / 64);
  };
  follow(room_for_next.spans, needed.spans);
  follow(room_for_next.entries, needed.entries);
  follow(room_for_next.longest, needed.longest);
}

// Page-locked memory that the GPU writes the counts to, and the event after it; one a host thread.
struct Report {
  Counts* counts = nullptr;
  cudaEvent_t event = nullptr;
  int device = -1;

  void prepare(int on) {
    if (counts == nullptr)
      check_cuda(cudaHostAlloc(&counts, sizeof(Counts), cudaHostAllocPortable), "cudaHostAlloc");
    if (device == on) return;
    if (event != nullptr) cudaEventDestroy(event);
    event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    device = on;
  }
  Counts wait() const {
    check_cuda(cudaEventSynchronize(event), "project_kernel or emit_kernel");
    return *counts;
  }
};

// Hands out pieces of one allocation; without memory, only measures.
class Arena {
 public:
  explicit Arena(void* memory = nullptr) : memory_(reinterpret_cast<uintptr_t>(memory)) {}
  template <typename T>
  T* take(int64_t count) {
    const uintptr_t at = memory_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return reinterpret_cast<T*>(at);
  }
  int64_t used() const { return used_; }

 private:
  uintptr_t memory_;
  int64_t used_ = 0;
};

struct Buffers {
  Counts* counts;
  Tally* tally;
  TileLists lists;
  int64_t zeroed;  // bytes at the start that are zero before a frame
  Splats splats, packed;
  Span* spans;
  Entry* entries;
  uint32_t* list;
  int64_t bytes;  // in all

  Buffers(Arena arena, const SceneView& scene, const Grid& grid, const Counts& room, bool pack) {
    const int64_t tiles = grid.tiles(), entry_room = static_cast<int64_t>(room.entries);
    counts = arena.take<Counts>(1);
    tally = arena.take<Tally>(1);
    lists.class_size = arena.take<unsigned int>(kClasses);
    lists.count = arena.take<unsigned int>(tiles);
    zeroed = arena.used();
    lists.begin = arena.take<int64_t>(tiles);
    lists.cursor = arena.take<unsigned long long>(tiles);
    lists.of_class = arena.take<int32_t>(kClasses * tiles);
    lists.tiles = static_cast<int>(tiles);
    splats = {arena.take<float4>(2 * scene.count), arena.take<float4>(scene.count)};
    spans = arena.take<Span>(static_cast<int64_t>(room.spans));
    entries = arena.take<Entry>(entry_room);
    list = arena.take<uint32_t>(entry_room);
    packed = {arena.take<float4>(pack ? 2 * entry_room : 0),
              arena.take<float4>(pack ? entry_room : 0)};
    bytes = arena.used();
  }
};

void add_times(StageTimer& timer, const Tally& tally, Stats* stats) {
  const std::vector<double> ms = timer.milliseconds();
  stats->project += ms[0];
  stats->intersect += ms[1];
  // One kernel bins and repairs: its time is divided as its blocks' cycles are.
  const double cycles = static_cast<double>(tally.bin_cycles + tally.repair_cycles);
  const double share = cycles > 0 ? static_cast<double>(tally.repair_cycles) / cycles : 0;
  stats->bin += ms[2] * (1 - share);
  stats->repair += ms[2] * share;
  stats->raster += ms[3];
  stats->segments += static_cast<double>(tally.segments);
  stats->repaired_segments += static_cast<double>(tally.repaired_segments);
  stats->repaired_entries += static_cast<double>(tally.repaired_entries);
  stats->tests += static_cast<double>(tally.tests);
}

void render_view(const DeviceScope& scope, const SceneView& scene, const CameraView& camera,
                 const Grid& grid, const Settings& settings, const Image& image, Stats* stats) {
  const cudaStream_t stream = scope.stream();
  thread_local Report report;
  report.prepare(scope.device().device_id);
  for (;;) {
    const Counts room = expected_counts();
    const int64_t bytes = Buffers(Arena(), scene, grid, room, settings.packed).bytes;
    const Tensor memory = scope.empty<int32_t>({bytes / 4});
    const Buffers b(Arena(memory.data_ptr()), scene, grid, room, settings.packed);
    Tally* tally = settings.timed ? b.tally : nullptr;

    StageTimer timer(settings.timed, stream);
    check_cuda(cudaMemsetAsync(b.counts, 0, b.zeroed, stream), "cudaMemsetAsync");
    project(scene, camera, grid, settings.splat, b.splats, b.spans, room, b.lists, b.counts,
            stream);
    timer.mark();
    intersect(b.spans, room, b.lists, b.entries, b.counts, report.counts, stream);
    check_cuda(cudaEventRecord(report.event, stream), "cudaEventRecord");
    timer.mark();
    bin_and_repair(settings.bins, room, b.lists, b.entries, b.list, b.counts, tally, stream);
    timer.mark();
    if (settings.packed) pack(b.splats, b.list, room, b.counts, b.packed, stream);
    raster(settings.packed ? b.packed : b.splats, settings.packed ? nullptr : b.list, grid,
           settings.blend, camera.background, room, b.lists, b.counts, image, tally, stream);
    timer.mark();

    const Counts needed = report.wait();
    remember(needed);
    if (!needed.fits(room)) continue;
    stats->splats += needed.drawn;
    stats->entries += static_cast<double>(needed.entries);
    stats->bytes += static_cast<double>(
        needed.entries * (sizeof(Entry) + sizeof(uint32_t) + (settings.packed ? 48 : 0)) +
        needed.spans * sizeof(Span) + grid.tiles() * (4 + 8 + 8 + 4 * kClasses));
    if (settings.timed) {
      Tally counted;
      check_cuda(cudaMemcpyAsync(&counted, b.tally, sizeof(Tally), cudaMemcpyDeviceToHost, stream),
                 "cudaMemcpyAsync");
      check_cuda(cudaStreamSynchronize(stream), "raster_kernel");
      add_times(timer, counted, stats);
    }
    return;
  }
}

SceneView scene_view(const TensorView& means, const TensorView& quats, const TensorView& scales,
                     const TensorView& opacities, const TensorView& sh) {
  const int64_t count = means.size(0);
  const SceneView scene{
      checked<float>(means, "means", {kAny, 3}, kDLCUDA),
      reinterpret_cast<const float4*>(checked<float>(quats, "quats", {count, 4}, kDLCUDA)),
      checked<float>(scales, "scales", {count, 3}, kDLCUDA),
      checked<float>(opacities, "opacities", {count}, kDLCUDA),
      checked<float>(sh, "sh", {count, kAny, 3}, kDLCUDA),
      count,
      static_cast<int>(sh.size(1))};
  for (const auto& [tensor, name] : {std::pair(&quats, "quats"), std::pair(&sh, "sh")}) {
    if (reinterpret_cast<uintptr_t>(tensor->data_ptr()) % sizeof(float4) != 0) {
      TVM_FFI_THROW(ValueError) << name << " does not begin at a multiple of 16 bytes; pass "
                                << name << ".clone()";
    }
  }
  return scene;
}

// Returns what csrc/cpu/tilegs/render.cpp returns.
Array<Tensor> render(TensorView means, TensorView quats, TensorView scales, TensorView opacities,
                     TensorView sh, TensorView viewmats, TensorView Ks, TensorView backgrounds,
                     int64_t width, int64_t height, double alpha_min, double alpha_max,
                     double transmittance_min, double near, double eps2d, bool antialiased,
                     int64_t bins, bool repair, bool packed, bool timed, int64_t /*threads*/) {
  const SceneView scene = scene_view(means, quats, scales, opacities, sh);
  const int64_t cameras = viewmats.size(0);
  const float* viewmat = checked<float>(viewmats, "viewmats", {kAny, 4, 4}, kDLCUDA);
  const float* K = checked<float>(Ks, "Ks", {cameras, 3, 3}, kDLCUDA);
  const bool has_background = backgrounds.numel() > 0;
  const float* background =
      has_background ? checked<float>(backgrounds, "backgrounds", {cameras, 3}, kDLCUDA) : nullptr;
  for (const TensorView* t : {&quats, &scales, &opacities, &sh, &viewmats, &Ks, &backgrounds}) {
    if (t->numel() > 0 && t->device().device_id != means.device().device_id) {
      TVM_FFI_THROW(ValueError) << "the tensors are on CUDA devices " << means.device().device_id
                                << " and " << t->device().device_id << "; expected one";
    }
  }
  check_arguments(scene.count, scene.coeffs, width, height, bins);
  const auto tiles = [](int64_t pixels) {
    return static_cast<int>((pixels + kTileGSTile - 1) / kTileGSTile);
  };
  const Grid grid{static_cast<int>(width), static_cast<int>(height), tiles(width), tiles(height)};
  const float near_plane = static_cast<float>(near);
  const Settings settings{
      {static_cast<float>(alpha_min), near_plane, static_cast<float>(eps2d), antialiased},
      {near_plane, static_cast<int>(bins), repair},
      {std::log2(static_cast<float>(alpha_min)), static_cast<float>(alpha_max),
       static_cast<float>(transmittance_min)},
      packed,
      timed};

  const DeviceScope scope(means.device());
  const Tensor colors = scope.empty<float>({cameras, height, width, 3});
  const Tensor alphas = scope.empty<float>({cameras, height, width, 1});
  const Tensor depths = scope.empty<float>({cameras, height, width, 1});
  Stats stats;
  for (int64_t c = 0; c < cameras; ++c) {
    const int64_t pixel = c * width * height;
    const Image image{data<float>(colors) + 3 * pixel, data<float>(alphas) + pixel,
                      data<float>(depths) + pixel};
    const CameraView camera{viewmat + 16 * c, K + 9 * c,
                            has_background ? background + 3 * c : nullptr};
    render_view(scope, scene, camera, grid, settings, image, &stats);
  }
  if (!timed) stats.segments = stats.repaired_segments = stats.repaired_entries = stats.tests = -1;
  return {colors, alphas, depths, stats.tensor()};
}

}  // namespace
}  // namespace gart::cuda::tilegs

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tilegs_render, gart::cuda::tilegs::render);
