// The ops of one exchange: reduce_scatter, all_gather, broadcast, reduce, all_to_all. Compiled into each shared object.
#pragma once

#include <optional>

#include "ops_common.h"

namespace llcoll {

// An `int[]` argument: empty where none was given. Owns the list.
class IntList {
 public:
  IntList() = default;
  explicit IntList(StableIValue value);
  IntList(IntList&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)), size_(other.size_) {}
  IntList& operator=(IntList&& other) noexcept {
    std::swap(handle_, other.handle_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~IntList();
  size_t size() const { return size_; }
  int64_t operator[](size_t idx) const;
  // As an argument of another op, which takes it over.
  StableIValue release();

 private:
  StableListHandle handle_ = nullptr;
  size_t size_ = 0;
};

// The arguments of one of these ops as they came, out of torch's stack. Schemas order them as the members are; each
// has those that its collective takes.
struct ExchangeArguments {
  Collective kind;
  OwnedTensor input;
  int64_t root = 0;
  std::optional<StableString> reduce_op;
  std::optional<StableString> group;
  IntList input_splits;
  IntList output_splits;
  std::optional<StableString> algorithm;
  OwnedTensor out;
};
ExchangeArguments take_arguments(Collective kind, StableIValue* stack, bool has_out);

constexpr bool reduces(Collective kind) { return kind == Collective::kReduceScatter || kind == Collective::kReduce; }
constexpr bool has_root(Collective kind) { return kind == Collective::kReduce || kind == Collective::kBroadcast; }

// In debug mode, tells the group's peers that this rank raised instead of calling.
void announce(const ExchangeArguments& arguments, const char* what);

// Boxed kernels, a row of them for each collective: functional, and the form that writes (`out`, or in place for those
// with a root).
template <Collective kind>
void exchange_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
template <Collective kind>
void exchange_out_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);
// llcoll::_exchange: any functional one, with numbers for the names (Autograd's way in; see ops.cpp).
void exchange_numbered_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

// llcoll::_exchange_plan_create: stores a plan, returns its id.
void exchange_plan_create_kernel(StableIValue* stack, uint64_t num_inputs, uint64_t num_outputs);

}  // namespace llcoll
