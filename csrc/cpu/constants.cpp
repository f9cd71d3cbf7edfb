#include "bindings/constants.h"

#include <tvm/ffi/function.h>

TVM_FFI_DLL_EXPORT_TYPED_FUNC(constants, gart::constants);
