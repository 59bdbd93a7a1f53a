// llcoll.h: nothing but the way from C to the core and back. No exception leaves a function.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "capi/call.h"
#include "capi/cuda_library.h"
#include "capi/settings.h"
#include "check.h"
#include "cpu/cpu_communicator.h"
#include "flight_recorder.h"

struct llcoll_comm {
  std::shared_ptr<llcoll::Communicator> communicator;
};

struct llcoll_plan {
  std::shared_ptr<llcoll::Communicator> communicator;
  llcoll::capi::CheckedCall checked;
  std::vector<size_t> send_counts;
  std::vector<size_t> recv_counts;
};

namespace llcoll::capi {
namespace {

thread_local std::string last_error;

constexpr std::pair<const char*, llcoll_result_t> kPrefixes[] = {
    {"LlcollError: ", LLCOLL_ERROR},
    {"CollectiveTimeout: ", LLCOLL_TIMEOUT},
    {"CollectiveMismatch: ", LLCOLL_MISMATCH},
    {"CollectiveAborted: ", LLCOLL_ABORTED},
};

llcoll_result_t failed(const char* text) noexcept {
  llcoll_result_t result = LLCOLL_ERROR;
  for (const auto& [prefix, kind] : kPrefixes) {
    const size_t length = std::strlen(prefix);
    if (std::strncmp(text, prefix, length) != 0) continue;
    text += length;
    result = kind;
    break;
  }
  try {
    last_error = text;
  } catch (...) {
    last_error.clear();
  }
  return result;
}

template <class F>
llcoll_result_t guarded(F&& fn) noexcept {
  try {
    fn();
    return LLCOLL_SUCCESS;
  } catch (const std::exception& error) {
    return failed(error.what());
  } catch (...) {
    return failed("an exception that is not a std::exception");
  }
}

Communicator& core_of(llcoll_comm_t comm) {
  check_that(comm != nullptr, "comm is NULL");
  return *comm->communicator;
}

// In debug mode the peers learn of an error here, instead of waiting for this rank.
CheckedCall checked_or_announced(Communicator& core, const llcoll_call_t& call) {
  try {
    return check_call(core, call);
  } catch (const std::exception& error) {
    if (core.options().debug) core.announce_error(error.what());
    throw;
  }
}

std::shared_ptr<Communicator> create(int rank, int world_size, llcoll_all_gather_fn all_gather, void* context,
                                     const llcoll_config_t& config) {
  check_that(world_size >= 1 && world_size <= kMaxRanks && rank >= 0 && rank < world_size, "rank ", rank, " of ",
             world_size, ": world sizes 1 to ", kMaxRanks, " are supported");
  check_that(all_gather != nullptr, "all_gather is NULL");
  const AllGather bootstrap = bootstrap_from(all_gather, context, world_size);
  const bool is_cuda = config.device >= 0;
  Options options;
  agree(bootstrap, rank, "reading the settings", [&] {
    check_that(config.struct_bytes == sizeof(llcoll_config_t), "struct_bytes is ", config.struct_bytes,
               "; llcoll_config_t has ", sizeof(llcoll_config_t), " bytes: use LLCOLL_CONFIG_INITIALIZER");
    options = read_options(rank, world_size, config);
  });
  agree_on_options(bootstrap, options, is_cuda);
  if (!is_cuda) return make_cpu_communicator(options, bootstrap);
  agree(bootstrap, rank, "loading libllcoll_cuda.so", [] { cuda_library(); });
  return cuda_library().make(options, bootstrap);
}

llcoll_call_t make_call(llcoll_collective_t collective, const void* send, void* recv, size_t count,
                        llcoll_dtype_t dtype, llcoll_op_t op, int root, void* stream) {
  return {sizeof(llcoll_call_t), collective, send, recv, count, dtype, op, root, LLCOLL_AUTO, stream, nullptr, nullptr};
}

}  // namespace
}  // namespace llcoll::capi

using namespace llcoll;
using namespace llcoll::capi;

llcoll_result_t llcoll_comm_create(llcoll_comm_t* comm, int rank, int world_size, llcoll_all_gather_fn all_gather,
                                   void* context, const llcoll_config_t* config) {
  return guarded([&] {
    check_that(comm != nullptr, "comm is NULL");
    *comm = nullptr;
    const llcoll_config_t defaults = LLCOLL_CONFIG_INITIALIZER;
    auto made = std::make_unique<llcoll_comm>();
    made->communicator = create(rank, world_size, all_gather, context, config == nullptr ? defaults : *config);
    *comm = made.release();
  });
}

llcoll_result_t llcoll_comm_destroy(llcoll_comm_t comm) {
  return guarded([&] {
    if (comm == nullptr) return;
    comm->communicator->close();
    delete comm;
  });
}

llcoll_result_t llcoll_comm_abort(llcoll_comm_t comm) {
  return guarded([&] { core_of(comm).abort("llcoll_comm_abort"); });
}

llcoll_result_t llcoll_comm_check(llcoll_comm_t comm) {
  return guarded([&] { core_of(comm).check(); });
}

llcoll_result_t llcoll_comm_is_idle(llcoll_comm_t comm, int* idle) {
  return guarded([&] {
    check_that(idle != nullptr, "idle is NULL");
    *idle = core_of(comm).is_idle() ? 1 : 0;
  });
}

llcoll_result_t llcoll_order_begin(llcoll_comm_t comm, void* stream) {
  return guarded([&] { core_of(comm).enter_stream(stream); });
}

llcoll_result_t llcoll_order_end(llcoll_comm_t comm, void* stream) {
  return guarded([&] { core_of(comm).leave_stream(stream); });
}

llcoll_result_t llcoll_comm_dump(llcoll_comm_t comm, const char* path) {
  return guarded([&] {
    Communicator& core = core_of(comm);
    check_that(path != nullptr && *path != 0, "path is NULL or empty");
    write_record(path, core.flight_record("llcoll_comm_dump was called"));
  });
}

int llcoll_comm_rank(llcoll_comm_t comm) { return comm == nullptr ? -1 : comm->communicator->rank(); }
int llcoll_comm_size(llcoll_comm_t comm) { return comm == nullptr ? -1 : comm->communicator->world_size(); }

llcoll_result_t llcoll_run(llcoll_comm_t comm, const llcoll_call_t* call) {
  return guarded([&] {
    Communicator& core = core_of(comm);
    check_that(call != nullptr, "call is NULL");
    const CheckedCall checked = checked_or_announced(core, *call);
    if (!checked.empty) core.run(checked.call);
  });
}

llcoll_result_t llcoll_barrier(llcoll_comm_t comm, void* stream) {
  return guarded([&] { core_of(comm).barrier(stream); });
}

llcoll_result_t llcoll_all_reduce(const void* send, void* recv, size_t count, llcoll_dtype_t dtype, llcoll_op_t op,
                                  llcoll_comm_t comm, void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_ALL_REDUCE, send, recv, count, dtype, op, 0, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_reduce_scatter(const void* send, void* recv, size_t recv_count, llcoll_dtype_t dtype,
                                      llcoll_op_t op, llcoll_comm_t comm, void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_REDUCE_SCATTER, send, recv, recv_count, dtype, op, 0, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_all_gather(const void* send, void* recv, size_t send_count, llcoll_dtype_t dtype,
                                  llcoll_comm_t comm, void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_ALL_GATHER, send, recv, send_count, dtype, LLCOLL_SUM, 0, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_broadcast(const void* send, void* recv, size_t count, llcoll_dtype_t dtype, int root,
                                 llcoll_comm_t comm, void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_BROADCAST, send, recv, count, dtype, LLCOLL_SUM, root, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_reduce(const void* send, void* recv, size_t count, llcoll_dtype_t dtype, llcoll_op_t op,
                              int root, llcoll_comm_t comm, void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_REDUCE, send, recv, count, dtype, op, root, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_all_to_all(const void* send, void* recv, size_t count, llcoll_dtype_t dtype, llcoll_comm_t comm,
                                  void* stream) {
  const llcoll_call_t call = make_call(LLCOLL_ALL_TO_ALL, send, recv, count, dtype, LLCOLL_SUM, 0, stream);
  return llcoll_run(comm, &call);
}

llcoll_result_t llcoll_plan_create(llcoll_plan_t* plan, llcoll_comm_t comm, const llcoll_call_t* call) {
  return guarded([&] {
    check_that(plan != nullptr, "plan is NULL");
    *plan = nullptr;
    Communicator& core = core_of(comm);
    check_that(call != nullptr, "call is NULL");
    auto made = std::make_unique<llcoll_plan>();
    made->communicator = comm->communicator;
    made->checked = check_call(core, *call);
    CollectiveCall& own = made->checked.call;
    if (own.input_splits != nullptr) {
      made->send_counts.assign(own.input_splits, own.input_splits + core.world_size());
      own.input_splits = made->send_counts.data();
    }
    if (own.output_splits != nullptr) {
      made->recv_counts.assign(own.output_splits, own.output_splits + core.world_size());
      own.output_splits = made->recv_counts.data();
    }
    *plan = made.release();
  });
}

llcoll_result_t llcoll_plan_run(llcoll_plan_t plan, void* stream) {
  return guarded([&] {
    check_that(plan != nullptr, "plan is NULL");
    if (plan->checked.empty) return;
    plan->checked.call.stream = stream;
    plan->communicator->run(plan->checked.call);
  });
}

llcoll_result_t llcoll_plan_destroy(llcoll_plan_t plan) {
  delete plan;
  return LLCOLL_SUCCESS;
}

const char* llcoll_last_error(void) { return last_error.c_str(); }

const char* llcoll_result_name(llcoll_result_t result) {
  constexpr const char* kNames[] = {"LLCOLL_SUCCESS", "LLCOLL_ERROR", "LLCOLL_TIMEOUT", "LLCOLL_MISMATCH",
                                    "LLCOLL_ABORTED"};
  return result >= LLCOLL_SUCCESS && result <= LLCOLL_ABORTED ? kNames[result] : "an unknown llcoll_result_t";
}

int llcoll_version(void) { return LLCOLL_VERSION; }
