// Op parameters of schema type `str`, without the leak of torch 2.11's std::string conversion.
#pragma once

#include <torch/csrc/stable/stableivalue_conversions.h>

#include <cstddef>
#include <string>
#include <utility>

namespace llcoll {

// Owns the handle that the dispatcher hands over; reads its text in place, without a copy.
class StableString {
 public:
  explicit StableString(StringHandle handle) : handle_(handle) {
    // Both calls only read the handle: they cannot fail on one that the dispatcher made.
    torch_string_length(handle_, &length_);
    torch_string_c_str(handle_, &data_);
  }
  explicit StableString(StableIValue value) : StableString(torch::stable::detail::to<StringHandle>(value)) {}
  StableString(StableString&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)), data_(other.data_), length_(other.length_) {}
  StableString(const StableString&) = delete;
  StableString& operator=(const StableString&) = delete;
  StableString& operator=(StableString&&) = delete;
  ~StableString() {
    if (handle_ != nullptr) torch_delete_string(handle_);
  }

  const char* data() const { return data_; }
  size_t length() const { return length_; }
  std::string str() const { return {data_, length_}; }

 private:
  StringHandle handle_;
  const char* data_ = "";
  size_t length_ = 0;
};

}  // namespace llcoll

// Lets TORCH_BOX take StableString parameters.
template <>
struct torch::stable::detail::ToImpl<llcoll::StableString> {
  static llcoll::StableString call(StableIValue value, uint64_t, bool) { return llcoll::StableString(value); }
};
