// Gaussians to splats.
//
// Schedule: a parallel loop over blocks of Gaussians, each keeping the splats it draws; the blocks
// are then joined in order. Cost: ~150 operations a Gaussian, 6 K for the colour of a drawn one,
// and 64 B written twice.
#include <algorithm>

#include "cpu/parallel.h"
#include "cpu/tilegs/pipeline.h"

namespace gart::tilegs {

std::vector<Drawn> project(const SceneView& scene, const PinholeView<float>& view,
                           const Settings& settings) {
  constexpr int64_t kBlock = 2048;
  const int64_t blocks = (scene.count + kBlock - 1) / kBlock;
  std::vector<std::vector<Drawn>> parts(blocks);
  parallel_blocks(blocks, 1, settings.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t i = b * kBlock; i < std::min(scene.count, (b + 1) * kBlock); ++i) {
        const float *m = scene.means + 3 * i, *s = scene.scales + 3 * i;
        const Vec3<float> mean{m[0], m[1], m[2]};
        Drawn out;
        if (project_splat(mean, scene.quats + 4 * i, {s[0], s[1], s[2]}, scene.opacities[i], view,
                          settings.splat, &out.splat) &&
            splat_color(mean, scene.sh + 3 * scene.coeffs * i, scene.coeffs, view.center,
                        out.splat.color)) {
          out.chords = splat_chords(out.splat, settings.splat.alpha_min);
          parts[b].push_back(out);
        }
      }
    }
  });
  std::vector<int64_t> offset(blocks + 1, 0);
  for (int64_t b = 0; b < blocks; ++b) {
    offset[b + 1] = offset[b] + static_cast<int64_t>(parts[b].size());
  }
  std::vector<Drawn> drawn(offset[blocks]);
  parallel_blocks(blocks, 1, settings.threads, [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      std::copy(parts[b].begin(), parts[b].end(), drawn.begin() + offset[b]);
    }
  });
  return drawn;
}

}  // namespace gart::tilegs
