// TileGS on the CPU: `tilegs_render`, which csrc/cuda/tilegs exports alike.
//
// Schedule: camera by camera, project -> intersect -> bin -> repair -> raster (pipeline.h), each a
// loop over threads. Memory: 64 B a drawn Gaussian, 8 B an entry.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>

#include <chrono>
#include <new>

#include "bindings/tilegs.h"
#include "cpu/tilegs/pipeline.h"

namespace gart::tilegs {
namespace {

using tvm::ffi::Array;

class Timer {
 public:
  // Runs work() and adds its ms to *ms.
  template <typename Work>
  static auto time(double* ms, const Work& work) {
    const Timer timer(ms);
    return work();
  }
  ~Timer() { *ms_ += std::chrono::duration<double, std::milli>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  explicit Timer(double* ms) : ms_(ms) {}
  double* ms_;
  Clock::time_point start_ = Clock::now();
};

void render_view(const SceneView& scene, const PinholeView<float>& view, const Grid& grid,
                 const Settings& settings, const float* background, const Image& image,
                 Stats* stats) {
  const std::vector<Drawn> drawn =
      Timer::time(&stats->project, [&] { return project(scene, view, settings); });
  Stream stream;
  Timer::time(&stats->intersect, [&] { intersect(drawn, grid, settings.threads, &stream); });
  stats->segments += Timer::time(&stats->bin, [&] { return bin(grid, settings, &stream); });
  if (settings.repair) {
    const RepairCounts repaired =
        Timer::time(&stats->repair, [&] { return repair(grid, settings, &stream); });
    stats->repaired_segments += repaired.segments;
    stats->repaired_entries += repaired.entries;
  }
  stats->tests += Timer::time(&stats->raster, [&] {
    if (settings.packed) pack(drawn, settings.threads, &stream);
    return raster(drawn, grid, settings, stream, background, image);
  });
  stats->splats += drawn.size();
  stats->entries += stream.entries.size();
  stats->bytes += stream.bytes();
}

Array<Tensor> render(TensorView means, TensorView quats, TensorView scales, TensorView opacities,
                     TensorView sh, TensorView viewmats, TensorView Ks, TensorView backgrounds,
                     int64_t width, int64_t height, double alpha_min, double alpha_max,
                     double transmittance_min, double near, double eps2d, bool antialiased,
                     int64_t bins, bool repair, bool packed, bool timed, int64_t threads) {
  const int64_t count = means.size(0), cameras = viewmats.size(0);
  const SceneView scene{checked<float>(means, "means", {kAny, 3}, kDLCPU),
                        checked<float>(quats, "quats", {count, 4}, kDLCPU),
                        checked<float>(scales, "scales", {count, 3}, kDLCPU),
                        checked<float>(opacities, "opacities", {count}, kDLCPU),
                        checked<float>(sh, "sh", {count, kAny, 3}, kDLCPU),
                        count,
                        static_cast<int>(sh.size(1))};
  const float* viewmat = checked<float>(viewmats, "viewmats", {kAny, 4, 4}, kDLCPU);
  const float* K = checked<float>(Ks, "Ks", {cameras, 3, 3}, kDLCPU);
  const bool has_background = backgrounds.numel() > 0;
  const float* background =
      has_background ? checked<float>(backgrounds, "backgrounds", {cameras, 3}, kDLCPU) : nullptr;
  check_arguments(scene.count, scene.coeffs, width, height, bins);
  const Grid grid(width, height);
  const Settings settings{{static_cast<float>(alpha_min), static_cast<float>(near),
                           static_cast<float>(eps2d), antialiased},
                          static_cast<float>(alpha_max),
                          static_cast<float>(transmittance_min),
                          static_cast<int>(bins),
                          repair,
                          packed,
                          static_cast<int>(threads)};

  const DLDevice device = means.device();
  const Tensor colors = empty<float>({cameras, height, width, 3}, device);
  const Tensor alphas = empty<float>({cameras, height, width, 1}, device);
  const Tensor depths = empty<float>({cameras, height, width, 1}, device);
  Stats stats;
  for (int64_t c = 0; c < cameras; ++c) {
    const int64_t pixel = c * width * height;
    const Image image{data<float>(colors) + 3 * pixel, data<float>(alphas) + pixel,
                      data<float>(depths) + pixel};
    try {
      const float* v = viewmat + 16 * c;
      const PinholeView<float> view =
          pinhole_view(v, camera_center(v), K + 9 * c, grid.width, grid.height);
      render_view(scene, view, grid, settings, has_background ? background + 3 * c : nullptr, image,
                  &stats);
    } catch (const std::bad_alloc&) {
      TVM_FFI_THROW(ValueError) << "the tile lists of an image of " << width << " x " << height
                                << " with " << count << " Gaussians do not fit into memory; "
                                << "render a smaller image or fewer Gaussians";
    }
  }
  if (!timed) stats.project = stats.intersect = stats.bin = stats.repair = stats.raster = 0;
  return {colors, alphas, depths, stats.tensor()};
}

}  // namespace
}  // namespace gart::tilegs

TVM_FFI_DLL_EXPORT_TYPED_FUNC(tilegs_render, gart::tilegs::render);
