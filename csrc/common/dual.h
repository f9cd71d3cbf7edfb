// Dual numbers, value + slope eps with eps^2 = 0: a polynomial evaluated on them yields its
// derivative along a direction too, exactly (forward-mode differentiation).
#pragma once

#include "common/macros.h"

namespace gart {

template <typename T>
struct Dual {
  T value, slope;

  Dual() = default;
  GART_HD Dual(T v, T s = T(0)) : value(v), slope(s) {}

  friend GART_HD Dual operator+(Dual a, Dual b) { return {a.value + b.value, a.slope + b.slope}; }
  friend GART_HD Dual operator-(Dual a, Dual b) { return {a.value - b.value, a.slope - b.slope}; }
  friend GART_HD Dual operator-(Dual a) { return {-a.value, -a.slope}; }
  friend GART_HD Dual operator*(Dual a, Dual b) {
    return {a.value * b.value, a.value * b.slope + a.slope * b.value};
  }
  friend GART_HD Dual operator*(T a, Dual b) { return {a * b.value, a * b.slope}; }
  GART_HD Dual& operator+=(Dual b) { return *this = *this + b; }
};

}  // namespace gart
