// Measurements of the CUDA backend for Python.
#include <cuda_runtime.h>

#include <cstring>

#include "check.h"
#include "cuda/cuda_communicator.h"
#include "cuda/probe.cuh"
#include "python_common.h"

namespace llcoll {
namespace {

// probe_memory(stream) -> (dependent load, store and fence, store), ns each, on the current device
PyObject* probe_memory_of(PyObject*, PyObject* args) {
  unsigned long long stream = 0;
  if (!PyArg_ParseTuple(args, "K", &stream)) return nullptr;
  MemoryTimes times{};
  try {
    const WithoutLock without_lock;
    times = probe_memory(reinterpret_cast<cudaStream_t>(stream));
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return Py_BuildValue("ddd", times.dependent_load_ns, times.fenced_store_ns, times.store_ns);
}

// ping_pong(group_name, peer, trips) -> ns one way
PyObject* ping_pong(PyObject*, PyObject* args) {
  const char* group_name;
  int peer = 0;
  unsigned int trips = 0;
  if (!PyArg_ParseTuple(args, "siI", &group_name, &peer, &trips)) return nullptr;
  double ns = 0;
  try {
    const WithoutLock without_lock;
    ns = ping_pong_ns(*share_communicator(group_name), peer, trips);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return PyFloat_FromDouble(ns);
}

// repeat_in_kernel(group_name, address, bytes, algorithm, iterations) -> us per all-reduce, inside one launch
PyObject* repeat_in_kernel(PyObject*, PyObject* args) {
  const char *group_name, *algorithm;
  unsigned long long address = 0, bytes = 0;
  unsigned int iterations = 0;
  if (!PyArg_ParseTuple(args, "sKKsI", &group_name, &address, &bytes, &algorithm, &iterations)) return nullptr;
  double us = 0;
  try {
    const Algorithm chosen = parse_algorithm(algorithm, std::strlen(algorithm));
    const WithoutLock without_lock;
    us = time_in_kernel(*share_communicator(group_name), reinterpret_cast<void*>(address), bytes, chosen, iterations);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
  return PyFloat_FromDouble(us);
}

}  // namespace

PyMethodDef cuda_probe_methods[] = {
    {"probe_memory", probe_memory_of, METH_VARARGS, nullptr},
    {"ping_pong", ping_pong, METH_VARARGS, nullptr},
    {"repeat_in_kernel", repeat_in_kernel, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace llcoll
