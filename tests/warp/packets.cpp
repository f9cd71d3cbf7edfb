// Whether rays that walk the tree as a packet (csrc/cuda/bvh/bvh_packet.cuh) find what each finds
// alone, to the bit: `packets FOLDER`, with what test_packets.py wrote there. Prints how many warps
// were packets, how many rays these had, how many hits, and how many rays found something else.
#include "warp.h"

#include <cstdio>

#include "cuda/bvh/bvh_packet.cuh"
#include "rays.h"

using namespace rays;
using gart::cuda::kFullWarp;

int main(int, char** arguments) {
  const Inputs inputs(arguments[1]);
  long packets = 0, rays = 0, hits = 0, others = 0;
  static cuda::PacketStack stack;
  static Places places[warp::kLanes];
  for (long first = 0; first < inputs.count; first += warp::kLanes) {
    Recorder together[warp::kLanes];
    bool was_packet = false;
    warp::run([&](int lane) {
      TracedRay ray{};
      bool goes_on = inputs.ray(first + lane, &ray);
      RayHits<kPlaces> nearest(inputs.bvh, ray, inputs.params, places[lane].buffer());
      if (!cuda::is_packet(inputs.bvh, ray, goes_on)) return;
      was_packet = true;
      while (__any_sync(kFullWarp, goes_on)) {
        cuda::walk_packet(inputs.bvh, ray, goes_on, nearest, stack);
        goes_on = goes_on && nearest.blend(together[lane]);
      }
    });
    if (!was_packet) continue;
    ++packets;
    for (int lane = 0; lane < warp::kLanes && first + lane < inputs.count; ++lane) {
      const Recorder alone = inputs.alone(first + lane);
      ++rays;
      hits += static_cast<long>(alone.hits.size());
      others += !(alone.hits == together[lane].hits);
    }
  }
  std::printf("%ld %ld %ld %ld\n", packets, rays, hits, others);
}
