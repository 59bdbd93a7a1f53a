// What llcoll uses of the DLPack 1.x C interface (https://dmlc.github.io/dlpack/latest/c_api.html): a framework's
// tensor looked at from C, without a Python call. The layouts are the standard's.
#pragma once

#include <cstddef>
#include <cstdint>

namespace llcoll::dlpack {

constexpr int32_t kCpu = 1;
enum TypeCode : uint8_t { kInt = 0, kUInt = 1, kFloat = 2, kBFloat = 4, kBool = 6 };

struct Device {
  int32_t type;
  int32_t id;
};

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  Device device;
  int32_t num_dims;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements
  uint64_t byte_offset;
};
static_assert(sizeof(Tensor) == 48 && offsetof(Tensor, shape) == 24 && offsetof(Tensor, byte_offset) == 40);

// Reached through the capsule __dlpack_c_exchange_api__ of a tensor type, for as long as the major version is 1.
struct ExchangeApi {
  uint32_t major;
  uint32_t minor;
  ExchangeApi* older;
  void* managed_tensor_allocator;
  void* managed_tensor_from_py_object;
  void* managed_tensor_to_py_object;
  // Fills a view that lasts as long as the object. 0, or -1 with the Python error set. May be null.
  int (*tensor_from_py_object)(void* py_object, Tensor* out);
  void* current_work_stream;
};
constexpr const char* kExchangeApiCapsule = "dlpack_exchange_api";

}  // namespace llcoll::dlpack
