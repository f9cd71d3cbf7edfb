// Whether rays that walk the tree by groups of lanes (csrc/cuda/bvh/bvh_group.cuh) find what each
// finds alone, to the bit: `groups FOLDER`, with what test_groups.py wrote there. Prints how many
// rays there were, how many hits, and how many rays found something else.
#include "warp.h"

#include <cstdio>

#include "cuda/bvh/bvh_group.cuh"
#include "rays.h"

using namespace rays;
using gart::cuda::kFullWarp;

namespace {

// Of a warp's rays what they find, and how often each came to its end.
struct GroupRecorder {
  const Inputs& inputs;
  long first;
  Recorder* found;
  int* ends;
  int ray = 0;

  bool begin(int k, TracedRay* traced) {
    ray = k;
    return inputs.ray(first + k, traced);
  }
  void blend(int owner, const TracedRay&, unsigned hits, int32_t gaussian, float tau, float alpha,
             float transmittance, float (*)[cuda::kGroupPlaces]) {
    const int lane = static_cast<int>(threadIdx.x);
    const int owned = __shfl_sync(kFullWarp, ray, owner);
    for (int k = 0; k < warp::kLanes; ++k)
      if (__shfl_sync(kFullWarp, hits >> lane & 1, k) && lane == k)
        found[owned].hits.push_back({gaussian, tau, alpha, transmittance});
  }
  void end(int lane, float) {
    if (lane == 0) ++ends[ray];
  }
};

}  // namespace

int main(int, char** arguments) {
  const Inputs inputs(arguments[1]);
  long rays = 0, hits = 0, others = 0;
  static cuda::GroupMemory memory[cuda::kGroups];
  for (long first = 0; first < inputs.count; first += warp::kLanes) {
    Recorder together[warp::kLanes];
    int ends[warp::kLanes] = {};
    warp::run([&](int) {
      GroupRecorder shader{inputs, first, together, ends};
      cuda::RayGroup(inputs.bvh, inputs.params, memory).trace(shader);
    });
    for (int lane = 0; lane < warp::kLanes; ++lane) {
      const Recorder alone = inputs.alone(first + lane);
      ++rays;
      hits += static_cast<long>(alone.hits.size());
      others += !(alone.hits == together[lane].hits && ends[lane] == 1);
    }
  }
  std::printf("%ld %ld %ld\n", rays, hits, others);
}
