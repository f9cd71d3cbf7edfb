// Three-vectors and 3x3 matrices, as small as the maths of a Gaussian needs.
#pragma once

#include <cmath>

#include "common/macros.h"

namespace gart {

template <typename T>
struct Vec3 {
  T x, y, z;
  GART_HD T& operator[](int i) { return (&x)[i]; }
  GART_HD T operator[](int i) const { return (&x)[i]; }
};

template <typename T>
GART_HD Vec3<T> operator+(Vec3<T> a, Vec3<T> b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}
template <typename T>
GART_HD Vec3<T> operator-(Vec3<T> a, Vec3<T> b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}
template <typename T>
GART_HD Vec3<T> operator*(T s, Vec3<T> a) {
  return {s * a.x, s * a.y, s * a.z};
}
template <typename T>
GART_HD T dot(Vec3<T> a, Vec3<T> b) {
  return a.x * b.x + a.y * b.y + a.z * b.z;
}
template <typename T>
GART_HD Vec3<T> cross(Vec3<T> a, Vec3<T> b) {
  return {a.y * b.z - a.z * b.y, a.z * b.x - a.x * b.z, a.x * b.y - a.y * b.x};
}
template <typename T>
GART_HD Vec3<T> scale(Vec3<T> a, Vec3<T> b) {
  return {a.x * b.x, a.y * b.y, a.z * b.z};
}
template <typename T>
GART_HD T length(Vec3<T> a) {
  return std::sqrt(dot(a, a));
}

// Rows r[0], r[1], r[2].
template <typename T>
struct Mat3 {
  Vec3<T> r[3];
};

template <typename T>
GART_HD Vec3<T> operator*(const Mat3<T>& m, Vec3<T> v) {
  return {dot(m.r[0], v), dot(m.r[1], v), dot(m.r[2], v)};
}
// m^T v
template <typename T>
GART_HD Vec3<T> tmul(const Mat3<T>& m, Vec3<T> v) {
  return v.x * m.r[0] + v.y * m.r[1] + v.z * m.r[2];
}
template <typename T>
GART_HD Mat3<T> operator*(const Mat3<T>& a, const Mat3<T>& b) {
  return {{tmul(b, a.r[0]), tmul(b, a.r[1]), tmul(b, a.r[2])}};
}

// Rotation matrix of a unit quaternion (w, x, y, z).
template <typename T>
GART_HD Mat3<T> rotation(T w, T x, T y, T z) {
  return {{{1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)},
           {2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)},
           {2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)}}};
}

}  // namespace gart
