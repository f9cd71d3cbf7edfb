// Checked views of tensors that arrive through apache-tvm-ffi, and allocation in the caller's
// framework. Every failed check is a ValueError that names the tensor, what it is and what it must
// be.
#pragma once

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdint>
#include <initializer_list>
#include <string>

namespace gart {

using tvm::ffi::Tensor;
using tvm::ffi::TensorView;

constexpr int64_t kAny = -1;  // in an expected shape: any extent

template <typename T>
constexpr DLDataType dtype_of();
template <>
constexpr DLDataType dtype_of<float>() {
  return {kDLFloat, 32, 1};
}
template <>
constexpr DLDataType dtype_of<double>() {
  return {kDLFloat, 64, 1};
}
template <>
constexpr DLDataType dtype_of<int32_t>() {
  return {kDLInt, 32, 1};
}
template <>
constexpr DLDataType dtype_of<int64_t>() {
  return {kDLInt, 64, 1};
}
template <>
constexpr DLDataType dtype_of<uint8_t>() {
  return {kDLUInt, 8, 1};
}

inline std::string shape_text(const int64_t* shape, int ndim) {
  std::string text = "[";
  for (int i = 0; i < ndim; ++i) {
    text += (i ? ", " : "") + (shape[i] == kAny ? std::string("any") : std::to_string(shape[i]));
  }
  return text + "]";
}

// Data pointer of a contiguous tensor of type T and the given shape on `device_type`.
template <typename T>
const T* checked(const TensorView& t, const char* name, std::initializer_list<int64_t> shape,
                 int device_type) {
  const DLDataType want = dtype_of<T>();
  const DLDataType got = t.dtype();
  if (got.code != want.code || got.bits != want.bits || got.lanes != 1) {
    TVM_FFI_THROW(ValueError) << name << " has dtype code " << int(got.code) << " with "
                              << int(got.bits) << " bits; expected "
                              << (want.code == kDLFloat  ? "float"
                                  : want.code == kDLUInt ? "uint"
                                                         : "int")
                              << int(want.bits);
  }
  if (t.device().device_type != device_type) {
    TVM_FFI_THROW(ValueError) << name << " is on device type " << int(t.device().device_type)
                              << "; expected " << device_type << " (1 is the CPU, 2 is CUDA)";
  }
  bool ok = t.ndim() == static_cast<int>(shape.size());
  for (int i = 0; ok && i < t.ndim(); ++i)
    ok = shape.begin()[i] == kAny || shape.begin()[i] == t.size(i);
  if (!ok) {
    TVM_FFI_THROW(ValueError) << name << " has shape " << shape_text(t.shape().data(), t.ndim())
                              << "; expected "
                              << shape_text(shape.begin(), static_cast<int>(shape.size()));
  }
  if (!t.IsContiguous())
    TVM_FFI_THROW(ValueError) << name << " is not contiguous; pass " << name << ".contiguous()";
  return static_cast<const T*>(t.data_ptr());
}

template <typename T>
Tensor empty(std::initializer_list<int64_t> shape, DLDevice device) {
  return Tensor::FromEnvAlloc(TVMFFIEnvTensorAlloc,
                              tvm::ffi::ShapeView(shape.begin(), shape.size()), dtype_of<T>(),
                              device);
}

template <typename T>
T* data(const Tensor& t) {
  return static_cast<T*>(t.data_ptr());
}

}  // namespace gart
