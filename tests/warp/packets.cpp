// Whether rays that walk the tree as a packet (csrc/cuda/bvh/bvh_packet.cuh) find what each finds
// alone, to the bit: `packets FOLDER`, with what test_packets.py wrote there. Prints how many warps
// were packets, how many rays these had, how many hits, and how many rays found something else.
#include "warp.h"

#include <cstdio>
#include <fstream>
#include <string>

#include "cuda/bvh/bvh_packet.cuh"

namespace {

using namespace gart;
using gart::cuda::kFullWarp;

constexpr int kPlaces = 24;

struct Hit {
  int32_t gaussian;
  float tau, alpha, transmittance;
  bool operator==(const Hit& other) const { return std::memcmp(this, &other, sizeof(Hit)) == 0; }
};

struct Recorder {
  std::vector<Hit> hits;
  void blend(int32_t gaussian, float tau, float alpha, float transmittance) {
    hits.push_back({gaussian, tau, alpha, transmittance});
  }
};

// Room for a ray's waiting hits.
struct Places {
  float tau[kPlaces], alpha[kPlaces];
  int32_t leaf[kPlaces];
  HitBuffer buffer() { return {tau, alpha, leaf, 1}; }
};

template <typename T>
std::vector<T> load(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("no file " + path);
  std::vector<T> values(static_cast<size_t>(file.tellg()) / sizeof(T));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()),
            static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

}  // namespace

int main(int, char** arguments) {
  const std::string folder = std::string(arguments[1]) + "/";
  const auto nodes = load<BvhNode>(folder + "nodes");
  const auto ellipsoids = load<Ellipsoid>(folder + "ellipsoids");
  const auto order = load<int32_t>(folder + "order");
  const auto origins = load<float>(folder + "origins"),
             directions = load<float>(folder + "directions");
  const auto model = load<float>(folder + "model");  // log2 alpha_min, alpha_max, T_min, t_min
  const BvhView bvh{static_cast<int64_t>(order.size()), nodes.data(), ellipsoids.data(),
                    order.data()};
  const RayParams params{model[0], model[1], model[2]};
  const long count = static_cast<long>(origins.size() / 3);
  const auto ray_at = [&](long r, TracedRay* ray) {
    const float *o = &origins[3 * r], *d = &directions[3 * r];
    return make_ray({o[0], o[1], o[2]}, {d[0], d[1], d[2]}, model[3], ray);
  };
  long packets = 0, rays = 0, hits = 0, others = 0;
  static cuda::PacketStack stack;
  static Places places[warp::kLanes];
  for (long first = 0; first < count; first += warp::kLanes) {
    Recorder together[warp::kLanes];
    bool was_packet = false;
    warp::run([&](int lane) {
      TracedRay ray{};
      bool goes_on = first + lane < count && ray_at(first + lane, &ray);
      RayHits<kPlaces> nearest(bvh, ray, params, places[lane].buffer());
      if (!cuda::is_packet(bvh, ray, goes_on)) return;
      was_packet = true;
      while (__any_sync(kFullWarp, goes_on)) {
        cuda::walk_packet(bvh, ray, goes_on, nearest, stack);
        goes_on = goes_on && nearest.blend(together[lane]);
      }
    });
    if (!was_packet) continue;
    ++packets;
    for (int lane = 0; lane < warp::kLanes && first + lane < count; ++lane) {
      TracedRay ray{};
      bool goes_on = ray_at(first + lane, &ray);
      Recorder alone;
      RayHits<kPlaces> nearest(bvh, ray, params, places[lane].buffer());
      while (goes_on) {
        walk(bvh, ray, nearest);
        goes_on = nearest.blend(alone);
      }
      ++rays;
      hits += static_cast<long>(alone.hits.size());
      others += !(alone.hits == together[lane].hits);
    }
  }
  std::printf("%ld %ld %ld %ld\n", packets, rays, hits, others);
}
