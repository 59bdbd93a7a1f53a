#include "capi/cuda_library.h"

#include <dlfcn.h>

#include <string>

#include "check.h"

namespace llcoll::capi {
namespace {

// The folder of the shared object that this code is in.
std::string own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_folder), &info) == 0 || info.dli_fname == nullptr) return "";
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1);
}

const CudaLibrary* load() {
  const std::string path = own_folder() + "libllcoll_cuda.so";
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never closed: device code is registered in it
  if (handle == nullptr) {
    const char* reason = dlerror();
    fail_with("communicators on a GPU need the CUDA build of llcoll: ", reason == nullptr ? path : reason);
  }
  using Get = const CudaLibrary* (*)();
  const auto get = reinterpret_cast<Get>(dlsym(handle, kCudaLibrarySymbol));
  check_that(get != nullptr, path, " is not llcoll's");
  const CudaLibrary* library = get();
  check_that(library->version == kCudaLibraryVersion, path, " is of another build: its interface is ", library->version,
             ", this one's ", kCudaLibraryVersion);
  return library;
}

}  // namespace

const CudaLibrary& cuda_library() {
  static const CudaLibrary* const library = load();  // tried again where it threw
  return *library;
}

}  // namespace llcoll::capi
