// Selection as a pure function of Python values: for the tuner, for tests, for `what would auto pick`.
#include <cstring>

#include "check.h"
#include "python_common.h"
#include "select.h"

namespace llcoll {
namespace {

DType parse_dtype(const char* text) {
  int dtype = 0;
  while (dtype < kNumDTypes && std::strcmp(name_of(static_cast<DType>(dtype)), text) != 0) ++dtype;
  check_that(dtype < kNumDTypes, "unsupported dtype ", text);
  return static_cast<DType>(dtype);
}

// select(table, cuda, shares_device, compute_capability, world_size, policy, allow_low_precision, bytes, dtype,
//        reduce_op) -> the algorithm's name. An empty table: the built-in one.
PyObject* select(PyObject*, PyObject* args) {
  const char *table, *policy, *dtype, *op;
  Topology topology;
  Options options;
  int cuda = 0, shares = 0, low_precision = 0;
  unsigned long long bytes = 0;
  if (!PyArg_ParseTuple(args, "sppiispKss", &table, &cuda, &shares, &topology.compute_capability, &options.world_size,
                        &policy, &low_precision, &bytes, &dtype, &op)) {
    return nullptr;
  }
  try {
    topology.cuda = cuda != 0;
    topology.shares_device = shares != 0;
    topology.line_atomics = topology.cuda && topology.compute_capability >= 90;  // GPUs joined by NVLink, or one
    options.table = table;
    options.policy = parse_policy(policy);
    options.allow_low_precision = low_precision != 0;
    check_that(options.world_size >= 1 && options.world_size <= kMaxRanks, "world size ", options.world_size);
    const Selection selection(options, topology);
    return PyUnicode_FromString(name_of(selection(bytes, parse_dtype(dtype), parse_reduce_op(op, std::strlen(op)))));
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

// default_table(cuda, shares_device, compute_capability, world_size) -> (name, provenance, rows)
PyObject* default_table_of(PyObject*, PyObject* args) {
  Topology topology;
  int cuda = 0, shares = 0, world_size = 0;
  if (!PyArg_ParseTuple(args, "ppii", &cuda, &shares, &topology.compute_capability, &world_size)) return nullptr;
  try {
    topology.cuda = cuda != 0;
    topology.shares_device = cuda != 0 && shares != 0;
    check_that(world_size >= 1 && world_size <= kMaxRanks, "world size ", world_size);
    const DefaultTable& table = default_table(topology, world_size);
    return Py_BuildValue("sss", table.name, table.provenance, table.rows);
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

// usable(algorithm, dtype, reduce_op, policy, allow_low_precision) -> whether selection may pick it, on a machine that
// has all it needs
PyObject* usable(PyObject*, PyObject* args) {
  const char *algorithm, *dtype, *op, *policy;
  int low_precision = 0;
  if (!PyArg_ParseTuple(args, "ssssp", &algorithm, &dtype, &op, &policy, &low_precision)) return nullptr;
  try {
    const Algorithm a = parse_algorithm(algorithm, std::strlen(algorithm));
    const DType type = parse_dtype(dtype);
    const ReduceOp reduce_op = parse_reduce_op(op, std::strlen(op));
    Topology best;
    best.cuda = best.line_atomics = true;
    return PyBool_FromLong(supports(a, type, reduce_op, best) &&
                           is_allowed(a, type, reduce_op, parse_policy(policy), low_precision != 0));
  } catch (const std::exception& error) {
    return raise_python(error);
  }
}

}  // namespace

PyMethodDef select_methods[] = {
    {"select", select, METH_VARARGS, nullptr},
    {"default_table", default_table_of, METH_VARARGS, nullptr},
    {"usable", usable, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace llcoll
