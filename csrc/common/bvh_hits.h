// The hits of one ray in exact order, whoever walks the tree.
//
// A ray looks for its nearest hits in a sorted buffer, the k-buffer of 3DGRT (Moenne-Loccoz et al.
// 2024, section 4.1), blends them, and looks again beyond the last one, its tau and its Gaussian,
// so that none is lost and none comes twice.
//
// A Gaussian's hit lies in its box: where the response peaks it is at least alpha_min, so that the
// point o + tau d is inside the ellipsoid of that response, and the ellipsoid is inside the box.
// Hence near <= tau <= far for the interval in which the ray is in the box, and cutting tau to the
// interval, as is done here, changes it by rounding alone. A box holds the boxes below it, and the
// arithmetic of the interval (subtract, multiply, least, most) is monotone in the planes, also when
// rounded; so the interval of any node above holds tau without a tolerance. Nothing that is skipped
// because near > limit or far < last.tau can hold a hit that counts, and nothing to be visited at
// `near` one that is nearer than that.
//
// Once a ray's hits make it opaque none behind them is looked for: it cannot be seen whatever else
// is found. Cost: ~100 operations a node, ~70 a leaf, ~10 a hit and place that it moves past.
#pragma once

#include <cmath>
#include <limits>

#include "common/bvh.h"
#include "common/bvh_ellipsoid.h"
#include "common/fast_exp2.h"
#include "common/macros.h"

namespace gart {

constexpr float kFar = std::numeric_limits<float>::infinity();

struct BvhView {
  int64_t count;                // N
  const BvhNode* nodes;         // [max(1, N - 1)]
  const Ellipsoid* ellipsoids;  // [N] in order of the leaves
  const int32_t* order;         // [N] Gaussian of a leaf
};

struct RayParams {
  float log2_alpha_min, alpha_max, transmittance_min;
};

struct TracedRay {
  Vec3<float> origin, direction, inverse;  // inverse < 0: meets an axis' high plane first
  float t_min;
};

// False for rays that can hit nothing: not finite, or without a direction.
GART_HD bool make_ray(Vec3<float> origin, Vec3<float> direction, float t_min, TracedRay* ray) {
  const float sum = dot(origin, origin) + dot(direction, direction);
  if (!std::isfinite(sum) || !(dot(direction, direction) > 0) || t_min != t_min) return false;
  ray->origin = origin;
  ray->direction = direction;
  ray->t_min = t_min;
  for (int a = 0; a < 3; ++a) {
    const float d = direction[a];
    // Parallel to the planes: in between them always, or never.
    ray->inverse[a] = std::abs(d) > 1e-30f ? 1 / d : (d < 0 ? -1e30f : 1e30f);
  }
  return true;
}

// A ray's waiting hits, nearest first: place k at k * stride.
struct HitBuffer {
  float *tau, *alpha;
  int32_t* leaf;
  int stride;
};

template <typename T>
GART_HD T load_whole(const T* source) {
#ifdef __CUDA_ARCH__
  T value;
#pragma unroll
  for (int k = 0; k < static_cast<int>(sizeof(T) / 16); ++k)
    reinterpret_cast<float4*>(&value)[k] = __ldg(reinterpret_cast<const float4*>(source) + k);
  return value;
#else
  return *source;
#endif
}

// Of numbers, one of which may be infinite and none NaN: one instruction on a GPU.
GART_HD float nearer(float a, float b) {
#ifdef __CUDA_ARCH__
  return fminf(a, b);
#else
  return least(a, b);
#endif
}
GART_HD float farther(float a, float b) {
#ifdef __CUDA_ARCH__
  return fmaxf(a, b);
#else
  return most(a, b);
#endif
}

// In which a ray is in a box; near > far where it is not.
struct Interval {
  float near, far;
};
GART_HD Interval interval(const TracedRay& ray, const float (*plane)[2]) {
  Interval in{-kFar, kFar};
  for (int a = 0; a < 3; ++a) {
    const bool is_back = ray.inverse[a] < 0;
    const float enter = is_back ? plane[a][1] : plane[a][0];
    const float leave = is_back ? plane[a][0] : plane[a][1];
    in.near = farther((enter - ray.origin[a]) * ray.inverse[a], in.near);
    in.far = nearer((leave - ray.origin[a]) * ray.inverse[a], in.far);
  }
  // Rounding of the two products must not lose a box that the ray grazes (Ize 2013).
  in.far += std::abs(in.far) * 4e-7f;
  return in;
}

// Of two hits the nearer, of equally near ones the Gaussian that comes first.
GART_HD bool comes_before(const BvhView& bvh, float tau, int32_t leaf, float other_tau,
                          int32_t other_leaf) {
  return tau < other_tau || (tau == other_tau && bvh.order[leaf] < bvh.order[other_leaf]);
}

// Where a ray looks for hits.
struct HitSearch {
  float last_tau = -kFar;  // of the last hit blended
  int32_t last_gaussian = -1;
  float first;         // nearer hits are blended or do not count
  float limit = kFar;  // farther hits are left to the next walk

  GART_HD explicit HitSearch(float t_min) : first(t_min) {}
  // A walk that goes on behind the last hit.
  GART_HD void begin() {
    first = most(first, last_tau);
    limit = kFar;
  }
  // Whether a child with this interval may hold one.
  GART_HD bool meets(Interval in) const {
    return in.near <= in.far && in.far >= first && in.near <= limit;
  }
  // The hit of a leaf that meets, if it counts.
  GART_HD bool finds(const BvhView& bvh, const TracedRay& ray, const RayParams& params,
                     int32_t leaf, Interval in, float* tau, float* alpha) const {
    const Ellipsoid e = load_whole(bvh.ellipsoids + leaf);
    const EllipsoidHit h = respond_along(e, ray.origin, ray.direction);
    const float level = log2_alpha_of(e, h);
    *tau = least(most(h.tau, in.near), in.far);
    *alpha = least(fast_exp2(level), params.alpha_max);
    if (!(level >= params.log2_alpha_min && h.tau == h.tau)) return false;
    if (!(*tau >= first && *tau <= limit)) return false;
    return *tau != last_tau || bvh.order[leaf] > last_gaussian;
  }
};

// The nearest hits of a ray that are not blended yet, at most kPlaces of them.
template <int kPlaces>
class RayHits {
 public:
  GART_HD RayHits(const BvhView& bvh, const TracedRay& ray, const RayParams& params,
                  HitBuffer buffer)
      : bvh_(bvh), ray_(ray), params_(params), buffer_(buffer), search_(ray.t_min) {
    begin();
  }

  GART_HD bool meets(Interval in) const { return search_.meets(in); }
  GART_HD float first() const { return search_.first; }
  GART_HD float limit() const { return search_.limit; }
  GART_HD float transmittance() const { return transmittance_; }

  // A leaf that meets.
  GART_HD void visit(int32_t leaf, Interval in) {
    float tau, alpha;
    if (!search_.finds(bvh_, ray_, params_, leaf, in, &tau, &alpha)) return;
    if (tau == search_.limit && !comes_before_place(tau, leaf, count_ - 1)) return;
    insert(tau, leaf, alpha);
  }

  // Blends them, front to back, until the ray is dark, and begins anew behind the last one; false
  // if nothing is left to look for. `shader` takes them: blend(gaussian, tau, alpha, transmittance
  // before it).
  template <typename Shader>
  GART_HD bool blend(Shader& shader) {
    for (int k = 0; k < count_ && !is_dark(); ++k) {
      const int place = k * buffer_.stride;
      const float alpha = buffer_.alpha[place];
      search_.last_tau = buffer_.tau[place];
      search_.last_gaussian = bvh_.order[buffer_.leaf[place]];
      shader.blend(search_.last_gaussian, search_.last_tau, alpha, transmittance_);
      transmittance_ *= 1 - alpha;
    }
    const bool more = search_.limit < kFar && !is_dark();
    begin();
    return more;
  }

 private:
  GART_HD bool is_dark() const { return transmittance_ < params_.transmittance_min; }

  GART_HD void begin() {
    count_ = 0;
    light_ = transmittance_;
    search_.begin();
  }

  GART_HD void insert(float tau, int32_t leaf, float alpha) {
    if (count_ == kPlaces) drop_farthest();
    int k = count_++;
    for (; k > 0 && comes_before_place(tau, leaf, k - 1); --k) {
      const int to = k * buffer_.stride, from = to - buffer_.stride;
      buffer_.tau[to] = buffer_.tau[from];
      buffer_.leaf[to] = buffer_.leaf[from];
      buffer_.alpha[to] = buffer_.alpha[from];
    }
    const int place = k * buffer_.stride;
    buffer_.tau[place] = tau;
    buffer_.leaf[place] = leaf;
    buffer_.alpha[place] = alpha;
    light_ *= 1 - alpha;
    // A little less than the minimum, since `light_` has rounding of its own.
    const float dark = 0.999f * params_.transmittance_min;
    const auto last_alpha = [&] { return buffer_.alpha[(count_ - 1) * buffer_.stride]; };
    while (count_ > 1 && light_ < dark * (1 - last_alpha())) drop_farthest();
    if (count_ == kPlaces || light_ < dark)
      search_.limit = buffer_.tau[(count_ - 1) * buffer_.stride];
  }
  GART_HD void drop_farthest() {
    --count_;
    light_ *= reciprocal(1 - buffer_.alpha[count_ * buffer_.stride]);
  }

  GART_HD bool comes_before_place(float tau, int32_t leaf, int k) const {
    const int place = k * buffer_.stride;
    return comes_before(bvh_, tau, leaf, buffer_.tau[place], buffer_.leaf[place]);
  }

  const BvhView& bvh_;
  const TracedRay& ray_;
  const RayParams& params_;
  const HitBuffer buffer_;
  float transmittance_ = 1;
  HitSearch search_;
  int count_ = 0;
  float light_ = 1;  // that passes everything blended and everything in the buffer
};

}  // namespace gart
