#include "nccl/decide.h"

namespace llcoll::nccl {
namespace {

bool reduces(Kind kind) { return kind == kAllReduce || kind == kReduce || kind == kReduceScatter; }

bool is_float(Type type) { return type >= kFloat16 && type <= kBfloat16; }

// Sums and products of unsigned integers have the bits of the signed ones.
bool translate_type(Type type, llcoll_dtype_t& dtype) {
  switch (type) {
    case kInt8:
      dtype = LLCOLL_INT8;
      return true;
    case kUint8:
      dtype = LLCOLL_UINT8;
      return true;
    case kInt32:
    case kUint32:
      dtype = LLCOLL_INT32;
      return true;
    case kInt64:
    case kUint64:
      dtype = LLCOLL_INT64;
      return true;
    case kFloat16:
      dtype = LLCOLL_FLOAT16;
      return true;
    case kFloat32:
      dtype = LLCOLL_FLOAT32;
      return true;
    case kFloat64:
      dtype = LLCOLL_FLOAT64;
      return true;
    case kBfloat16:
      dtype = LLCOLL_BFLOAT16;
      return true;
    default:
      return false;
  }
}

bool translate_op(Op op, Type type, llcoll_op_t& translated) {
  const bool has_order = type != kUint32 && type != kUint64;
  switch (op) {
    case kSum:
      translated = LLCOLL_SUM;
      return true;
    case kProd:
      translated = LLCOLL_PROD;
      return true;
    case kMax:
      translated = LLCOLL_MAX;
      return has_order;
    case kMin:
      translated = LLCOLL_MIN;
      return has_order;
    case kAvg:
      translated = LLCOLL_AVG;
      return is_float(type);
    default:
      return false;
  }
}

}  // namespace

const char* name_of(Kind kind) {
  constexpr const char* kNames[kNumKinds] = {"AllReduce", "Reduce",        "Broadcast",
                                             "AllGather", "ReduceScatter", "Send/Recv"};
  return kNames[kind];
}

size_t bytes_of(Type type) {
  constexpr size_t kBytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return type >= kInt8 && type <= kFloat8e5m2 ? kBytes[type] : 0;
}

size_t message_bytes(Kind kind, size_t count, Type type, int num_ranks) {
  const size_t parts = kind == kAllGather || kind == kReduceScatter ? static_cast<size_t>(num_ranks) : 1;
  return count * bytes_of(type) * parts;
}

bool translate(Kind kind, size_t count, Type type, Op op, int num_ranks, size_t max_bytes, Translated& translated) {
  const size_t element = bytes_of(type);
  // Before the product, which could overflow.
  if (count == 0 || element == 0 || count > max_bytes) return false;
  if (message_bytes(kind, count, type, num_ranks) > max_bytes) return false;
  if (reduces(kind)) {
    translated.elements = 1;
    return translate_type(type, translated.dtype) && translate_op(op, type, translated.op);
  }
  translated = {LLCOLL_UINT8, LLCOLL_SUM, element};
  return kind != kSendRecv;
}

bool is_known(Kind kind, size_t count, Type type, Op op) {
  return kind != kSendRecv && count != 0 && bytes_of(type) != 0 && op >= kSum && op <= kAvg;
}

}  // namespace llcoll::nccl
