// Schemas of the ops of one exchange, their CPU kernels, and the Autograd kernels of the functional ones.
#include <torch/csrc/stable/library.h>

#include "check.h"
#include "ops_collectives.h"

namespace llcoll {
namespace {

// As ops.cpp has it for the all-reduce: a call that wants a gradient goes to _exchange_grad, all others to _exchange.
template <Collective kind>
void exchange_autograd_kernel(StableIValue* stack, uint64_t, uint64_t) {
  ExchangeArguments arguments = take_arguments(kind, stack, false);
  StableIValue values[8];
  try {
    ReduceOp op = ReduceOp::kSum;
    if (arguments.reduce_op) op = parse_reduce_op(arguments.reduce_op->data(), arguments.reduce_op->length());
    const Algorithm requested = parse_algorithm(arguments.algorithm->data(), arguments.algorithm->length());
    values[1] = torch::stable::detail::from(static_cast<int64_t>(kind));
    values[2] = torch::stable::detail::from(static_cast<int64_t>(op));
    values[3] = torch::stable::detail::from(arguments.root);
    values[6] = torch::stable::detail::from(static_cast<int64_t>(requested));
    values[7] =
        torch::stable::detail::from(static_cast<int64_t>(hash_of(arguments.group->data(), arguments.group->length())));
  } catch (const std::exception& error) {
    announce(arguments, error.what());
    throw;
  }
  const char* target = wants_gradient(arguments.input.get()) ? "llcoll::_exchange_grad" : "llcoll::_exchange";
  values[0] = torch::stable::detail::from(arguments.input.release());
  values[4] = arguments.input_splits.release();
  values[5] = arguments.output_splits.release();
  DeferredError deferred(arguments.group->data());
  const AOTITorchError error = torch_call_dispatcher(target, "", values, TORCH_ABI_VERSION);
  if (deferred.any()) [[unlikely]] {
    if (error == 0) own(values[0]);
    deferred.rethrow();
  }
  check_shim(error, target);
  stack[0] = values[0];
}

}  // namespace
}  // namespace llcoll

using llcoll::Collective;

// torch 2.11 does not raise where a definition fails: a test checks that each of these exists.
STABLE_TORCH_LIBRARY_FRAGMENT(llcoll, m) {
  m.def(
      "reduce_scatter(Tensor input, str reduce_op=\"sum\", str group_name=\"\", *, SymInt[] splits=[], "
      "str algorithm=\"auto\") -> Tensor");
  m.def(
      "reduce_scatter_out(Tensor input, str reduce_op=\"sum\", str group_name=\"\", *, SymInt[] splits=[], "
      "str algorithm=\"auto\", Tensor(a!) out) -> ()");
  m.def("all_gather(Tensor input, str group_name=\"\", *, SymInt[] splits=[], str algorithm=\"auto\") -> Tensor");
  m.def(
      "all_gather_out(Tensor input, str group_name=\"\", *, SymInt[] splits=[], str algorithm=\"auto\", "
      "Tensor(a!) out) -> ()");
  m.def(
      "all_to_all(Tensor input, str group_name=\"\", *, SymInt[] input_splits=[], SymInt[] output_splits=[], "
      "str algorithm=\"auto\") -> Tensor");
  m.def(
      "all_to_all_out(Tensor input, str group_name=\"\", *, SymInt[] input_splits=[], SymInt[] output_splits=[], "
      "str algorithm=\"auto\", Tensor(a!) out) -> ()");
  m.def("broadcast(Tensor input, int root=0, str group_name=\"\", *, str algorithm=\"auto\") -> Tensor");
  m.def("broadcast_(Tensor(a!) input, int root=0, str group_name=\"\", *, str algorithm=\"auto\") -> ()");
  m.def(
      "reduce(Tensor input, int root=0, str reduce_op=\"sum\", str group_name=\"\", *, str algorithm=\"auto\") -> "
      "Tensor");
  m.def(
      "reduce_(Tensor(a!) input, int root=0, str reduce_op=\"sum\", str group_name=\"\", *, str algorithm=\"auto\") -> "
      "()");
  m.def(
      "_exchange_plan_create(Tensor input, Tensor out, int kind, str reduce_op, int root, str group_name, "
      "SymInt[] input_splits, SymInt[] output_splits, str algorithm) -> int");
  m.def(
      "_exchange(Tensor input, int kind, int reduce_op, int root, SymInt[] input_splits, SymInt[] output_splits, "
      "int algorithm, int group_hash) -> Tensor");
  m.def(
      "_exchange_grad(Tensor input, int kind, int reduce_op, int root, SymInt[] input_splits, SymInt[] output_splits, "
      "int algorithm, int group_hash) -> Tensor");
}

STABLE_TORCH_LIBRARY_IMPL(llcoll, CPU, m)
{
  m.impl("reduce_scatter", &llcoll::exchange_kernel<Collective::kReduceScatter>);
  m.impl("reduce_scatter_out", &llcoll::exchange_out_kernel<Collective::kReduceScatter>);
  m.impl("all_gather", &llcoll::exchange_kernel<Collective::kAllGather>);
  m.impl("all_gather_out", &llcoll::exchange_out_kernel<Collective::kAllGather>);
  m.impl("all_to_all", &llcoll::exchange_kernel<Collective::kAllToAll>);
  m.impl("all_to_all_out", &llcoll::exchange_out_kernel<Collective::kAllToAll>);
  m.impl("broadcast", &llcoll::exchange_kernel<Collective::kBroadcast>);
  m.impl("broadcast_", &llcoll::exchange_out_kernel<Collective::kBroadcast>);
  m.impl("reduce", &llcoll::exchange_kernel<Collective::kReduce>);
  m.impl("reduce_", &llcoll::exchange_out_kernel<Collective::kReduce>);
  m.impl("_exchange_plan_create", &llcoll::exchange_plan_create_kernel);
  m.impl("_exchange", &llcoll::exchange_numbered_kernel);
  m.impl("_exchange_grad", &llcoll::exchange_numbered_kernel);
}

STABLE_TORCH_LIBRARY_IMPL(llcoll, Autograd, m)
{
  m.impl("reduce_scatter", &llcoll::exchange_autograd_kernel<Collective::kReduceScatter>);
  m.impl("all_gather", &llcoll::exchange_autograd_kernel<Collective::kAllGather>);
  m.impl("all_to_all", &llcoll::exchange_autograd_kernel<Collective::kAllToAll>);
  m.impl("broadcast", &llcoll::exchange_autograd_kernel<Collective::kBroadcast>);
  m.impl("reduce", &llcoll::exchange_autograd_kernel<Collective::kReduce>);
}
