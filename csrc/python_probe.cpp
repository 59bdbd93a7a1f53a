// Measurements of the CPU backend for Python: the cache line's latency, calls repeated without Python between them.
#include <chrono>
#include <cstring>

#include "check.h"
#include "cpu/probe.h"
#include "python_common.h"

namespace llcoll {
namespace {

using Clock = std::chrono::steady_clock;

PyObject* list_of(const std::vector<double>& values) {
  PyObject* list = PyList_New(0);
  for (const double value : values) {
    PyObject* item = list == nullptr ? nullptr : PyFloat_FromDouble(value);
    if (item == nullptr || PyList_Append(list, item) != 0) Py_CLEAR(list);
    Py_XDECREF(item);
  }
  return list;
}

// ping_pong(cpu_a, cpu_b, trips, batches) -> ns one way, a figure a batch
PyObject* ping_pong(PyObject*, PyObject* args) {
  int cpu_a = 0, cpu_b = 0, batches = 0;
  unsigned long long trips = 0;
  if (!PyArg_ParseTuple(args, "iiKi", &cpu_a, &cpu_b, &trips, &batches)) return nullptr;
  std::vector<double> result;
  try {
    const WithoutLock without_lock;
    result = ping_pong_ns(cpu_a, cpu_b, trips, batches);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return list_of(result);
}

// repeat(group_name, input_address, output_address, numel, dtype, reduce_op, algorithm, calls, batches)
//   -> us per call, a figure a batch. The caller keeps the memory: contiguous, numel elements.
PyObject* repeat(PyObject*, PyObject* args) {
  const char *group_name, *dtype_name, *op, *algorithm;
  unsigned long long input = 0, output = 0, numel = 0, calls = 0;
  int batches = 0;
  if (!PyArg_ParseTuple(args, "sKKKsssKi", &group_name, &input, &output, &numel, &dtype_name, &op, &algorithm, &calls,
                        &batches)) {
    return nullptr;
  }
  std::vector<double> result;
  try {
    int dtype = 0;
    while (dtype < kNumDTypes && std::strcmp(name_of(static_cast<DType>(dtype)), dtype_name) != 0) ++dtype;
    check_that(dtype < kNumDTypes && calls > 0 && numel > 0, "repeat: ", calls, " calls of ", numel, " ", dtype_name);
    const std::shared_ptr<Communicator> communicator = share_communicator(group_name);
    CollectiveCall call{reinterpret_cast<const void*>(input),
                        reinterpret_cast<void*>(output),
                        numel,
                        static_cast<DType>(dtype),
                        parse_reduce_op(op, std::strlen(op)),
                        parse_algorithm(algorithm, std::strlen(algorithm)),
                        nullptr};
    call.algorithm = communicator->resolve(Collective::kAllReduce, numel, call.dtype, call.op, call.algorithm);
    check_that(call.algorithm != Algorithm::kTorch, "repeat: the torch fallback is not a call of the backend");
    const WithoutLock without_lock;
    for (int batch = 0; batch < batches; ++batch) {
      const auto start = Clock::now();
      for (unsigned long long i = 0; i < calls; ++i) communicator->run(call);
      const std::chrono::duration<double, std::micro> took = Clock::now() - start;
      result.push_back(took.count() / static_cast<double>(calls));
    }
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return list_of(result);
}

}  // namespace

PyMethodDef probe_methods[] = {
    {"ping_pong", ping_pong, METH_VARARGS, nullptr},
    {"repeat", repeat, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace llcoll
