// A persistent call: everything is resolved once, a run checks only that nothing has changed.
#pragma once

#include <memory>
#include <string>

#include "ops_common.h"

namespace llcoll {

// What every plan has; collectives derive from it.
class Plan {
 public:
  virtual ~Plan() = default;
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // Throws LlcollError after shutdown, or if a tensor's storage or shape is no longer the one that was planned.
  virtual void run() = 0;
  // What all ranks must agree on, as text: they compare it when they make the plan. Begins with the collective's name.
  virtual std::string signature() const = 0;
  const Communicator& communicator() const { return *communicator_; }
  // True where a run is so short that giving up Python's lock would cost more than it frees.
  bool is_short() const { return is_short_; }

 protected:
  // Keeps the communicator and both tensors alive. `input` may be `output`.
  Plan(std::shared_ptr<Communicator> communicator, OwnedTensor input, OwnedTensor output);
  void set_short(size_t num_bytes, Algorithm algorithm);
  void check_open() const;
  void check_unchanged() const;

  std::shared_ptr<Communicator> communicator_;
  OwnedTensor input_;
  OwnedTensor output_;
  const void* input_data_;
  void* output_data_;
  size_t input_numel_;
  size_t output_numel_;
  bool is_in_place_;  // input and output are one tensor, not only one address
  bool is_short_ = false;
};

class AllReducePlan final : public Plan {
 public:
  AllReducePlan(const Checked& call, OwnedTensor input, OwnedTensor output, std::shared_ptr<Communicator> communicator);
  void run() override;
  std::string signature() const override;

 private:
  Checked call_;
  bool is_direct_;  // contiguous, disjoint or equal, served by the backend itself
};

// Plans on their way from the op that makes them to the Python object that owns them.
int64_t store_plan(std::unique_ptr<Plan> plan);
// Throws LlcollError for an id that is not there.
std::unique_ptr<Plan> take_plan(int64_t id);

}  // namespace llcoll
