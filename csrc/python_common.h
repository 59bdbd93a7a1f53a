// What the two extension modules, _C and _cuda, share: errors, signals, the Plan type, set-up. Limited API only.
#pragma once

// torch's build defines Py_LIMITED_API.
#include <Python.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "communicator.h"

namespace llcoll {

// Sets the Python error for a C++ one, by the class name that its text begins with. Always null.
PyObject* raise_python(const std::exception& error);

// Gives up Python's lock for a scope.
class WithoutLock {
 public:
  WithoutLock() : thread_(PyEval_SaveThread()) {}
  ~WithoutLock() { PyEval_RestoreThread(thread_); }
  WithoutLock(const WithoutLock&) = delete;
  WithoutLock& operator=(const WithoutLock&) = delete;

 private:
  PyThreadState* thread_;
};

// Runs body(argument), which may wait for peers, from a function that Python called. `is_short`: with Python's lock
// held until the wait lasts. False: the Python error is set, a signal handler's where one ended the wait.
bool run_wait(bool is_short, void (*body)(void*), void* argument);
template <class F>
bool run_wait(bool is_short, F& f) {
  return run_wait(
      is_short, [](void* argument) { (*static_cast<F*>(argument))(); }, &f);
}

// The bootstrap's all_gather over a Python callable (bytes) -> list of bytes. It is called without Python's lock. A
// Python exception comes out as a C++ one; restore() sets the original again, true if there was one.
class PythonAllGather {
 public:
  explicit PythonAllGather(PyObject* callable) : callable_(callable) {}
  ~PythonAllGather();
  PythonAllGather(const PythonAllGather&) = delete;
  PythonAllGather& operator=(const PythonAllGather&) = delete;
  std::vector<std::string> operator()(const std::string& own);
  bool restore();

 private:
  PyObject* callable_;
  PyObject* raised_[3] = {nullptr, nullptr, nullptr};
};

// The leading arguments of both modules' create(), in this order, for PyArg_ParseTuple: kOptionsFormat and then
// LLC_OPTIONS_ARGS(text) for an OptionsText `text`.
struct OptionsText {
  const char* group_name;
  int rank;
  int world_size;
  int is_default;
  double timeout_s;
  const char* policy;
  int allow_low_precision;
  unsigned long long scratch_bytes;
  const char* algorithm;
  int debug;
  unsigned long long first_epoch;
  const char* table;
  unsigned long long pool_bytes;
  int patient;

  Options options(int max_ranks = kMaxRanks) const;  // throws LlcollError
};
#define LLC_OPTIONS_FORMAT "siipdspKspKsKp"
#define LLC_OPTIONS_ARGS(t)                                                                                            \
  &(t).group_name, &(t).rank, &(t).world_size, &(t).is_default, &(t).timeout_s, &(t).policy, &(t).allow_low_precision, \
      &(t).scratch_bytes, &(t).algorithm, &(t).debug, &(t).first_epoch, &(t).table, &(t).pool_bytes, &(t).patient

// Runs `make` without Python's lock, registers what it returns. None, or null with the Python error set.
PyObject* create_and_register(const OptionsText& text, PythonAllGather& all_gather,
                              const std::function<std::shared_ptr<Communicator>(const Options&)>& make);

// More functions, for measurements and for selection as a pure function: of both modules, of _C, of _cuda.
extern PyMethodDef select_methods[];
extern PyMethodDef nodes_methods[];
extern PyMethodDef front_methods[];
extern PyMethodDef probe_methods[];
extern PyMethodDef cuda_probe_methods[];

// Adds the Plan type and the common functions to a module; installs the signal check. False: Python error set.
bool add_common(PyObject* module);

}  // namespace llcoll
