#include "nccl/real.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <initializer_list>

namespace llcoll::nccl {
namespace {

// dlsym of RTLD_NEXT sees only libraries in the global scope; Python loads its modules' libraries outside it.
void* find(void* handle, const char* name) {
  void* found = handle != nullptr ? dlsym(handle, name) : dlsym(RTLD_NEXT, name);
  return found;
}

void* library_handle() {
  const char* path = std::getenv("LLCOLL_NCCL_LIBRARY");
  if (path != nullptr && *path != '\0') {
    void* handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      std::fprintf(stderr, "llcoll: LLCOLL_NCCL_LIBRARY: %s\n", dlerror());
      std::exit(127);
    }
    return handle;
  }
  if (find(nullptr, "ncclCommInitRank") != nullptr) return nullptr;  // RTLD_NEXT
  for (const int only_loaded : {RTLD_NOLOAD, 0}) {
    void* handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | only_loaded);
    if (handle != nullptr) return handle;
  }
  std::fprintf(stderr, "llcoll: no NCCL behind libllcoll_nccl.so: LLCOLL_NCCL_LIBRARY names its file\n");
  std::exit(127);
}

char path_of_real[1024] = "";  // read while the process ends, behind every destructor

Real load() {
  Real r{};
  void* const handle = library_handle();
#define LLC_FIND(name, parameters) r.name = reinterpret_cast<decltype(r.name)>(find(handle, "nccl" #name));
  LLC_NCCL_FUNCTIONS(LLC_FIND)
#undef LLC_FIND
  r.GetLastError = reinterpret_cast<decltype(r.GetLastError)>(find(handle, "ncclGetLastError"));
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(r.CommInitRank), &info) != 0) {
    std::snprintf(path_of_real, sizeof path_of_real, "%s", info.dli_fname);
  }
  return r;
}

}  // namespace

const Real& real() {
  static const Real instance = load();
  return instance;
}

const char* real_path() { return path_of_real; }

}  // namespace llcoll::nccl
