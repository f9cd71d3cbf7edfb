// The scene and the rays that test_packets.py and test_groups.py write to a folder, and what rays
// find alone.
#pragma once

#include <cstdint>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/bvh/bvh_traversal.h"

namespace rays {

using namespace gart;

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

struct Inputs {
  std::vector<BvhNode> nodes;
  std::vector<Ellipsoid> ellipsoids;
  std::vector<int32_t> order;
  std::vector<float> origins, directions;
  std::vector<float> model;  // log2 alpha_min, alpha_max, T_min, t_min
  BvhView bvh;
  RayParams params;
  long count;

  explicit Inputs(const std::string& folder)
      : nodes(load<BvhNode>(folder + "/nodes")),
        ellipsoids(load<Ellipsoid>(folder + "/ellipsoids")),
        order(load<int32_t>(folder + "/order")),
        origins(load<float>(folder + "/origins")),
        directions(load<float>(folder + "/directions")),
        model(load<float>(folder + "/model")),
        bvh{static_cast<int64_t>(order.size()), nodes.data(), ellipsoids.data(), order.data()},
        params{model[0], model[1], model[2]},
        count(static_cast<long>(origins.size() / 3)) {}

  // False if there is no ray r, or it can hit nothing.
  bool ray(long r, TracedRay* ray) const {
    if (r >= count) return false;
    const float *o = &origins[3 * r], *d = &directions[3 * r];
    return make_ray({o[0], o[1], o[2]}, {d[0], d[1], d[2]}, model[3], ray);
  }

  // What ray r finds alone.
  Recorder alone(long r) const {
    Recorder found;
    Places places;
    TracedRay traced{};
    bool goes_on = ray(r, &traced);
    RayHits<kPlaces> nearest(bvh, traced, params, places.buffer());
    while (goes_on) {
      walk(bvh, traced, nearest);
      goes_on = nearest.blend(found);
    }
    return found;
  }
};

}  // namespace rays
