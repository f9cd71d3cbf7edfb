#include <tvm/ffi/function.h>

#include "bindings/constants.h"

TVM_FFI_DLL_EXPORT_TYPED_FUNC(constants, gart::constants);
