// A persistent all-reduce: everything is resolved once, a run checks only that nothing has changed.
#pragma once

#include <memory>
#include <string>

#include "ops_common.h"

namespace llcoll {

class Plan {
 public:
  // Keeps both tensors and the communicator alive. `input` may be `output`.
  Plan(const Checked& call, OwnedTensor input, OwnedTensor output, std::shared_ptr<Communicator> communicator);

  // Throws LlcollError after shutdown, or if a tensor's storage or shape is no longer the one that was planned.
  void run();

  // What all ranks must agree on, as text: they compare it when they make the plan.
  std::string signature() const;
  const Communicator& communicator() const { return *communicator_; }
  // True where a run is so short that giving up Python's lock would cost more than it frees.
  bool is_short() const { return is_short_; }

 private:
  void check_unchanged() const;

  Checked call_;
  OwnedTensor input_;
  OwnedTensor output_;
  std::shared_ptr<Communicator> communicator_;
  const void* input_data_;
  void* output_data_;
  bool is_in_place_;  // input and output are one tensor, not only one address
  bool is_direct_;    // contiguous, disjoint or equal, served by the backend itself
  bool is_short_;
};

// Plans on their way from the op that makes them to the Python object that owns them.
int64_t store_plan(std::unique_ptr<Plan> plan);
// Throws LlcollError for an id that is not there.
std::unique_ptr<Plan> take_plan(int64_t id);

}  // namespace llcoll
