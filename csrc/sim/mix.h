// Hashing and random numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace llcoll::sim {

inline uint64_t mix(uint64_t a, uint64_t b) {
  a ^= b + 0x9E3779B97F4A7C15ull + (a << 6) + (a >> 2);
  a *= 0xFF51AFD7ED558CCDull;
  return a ^ (a >> 32);
}

inline uint64_t mix_bytes(const void* data, size_t bytes, uint64_t h) {
  const char* at = static_cast<const char*>(data);
  for (; bytes >= 8; bytes -= 8, at += 8) {
    uint64_t word;
    std::memcpy(&word, at, 8);
    h = mix(h, word);
  }
  uint64_t word = 0;
  std::memcpy(&word, at, bytes);
  return mix(h, word + bytes);
}

// splitmix64 of Steele, Lea and Flood: any seed will do.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  uint32_t below(uint32_t n) { return static_cast<uint32_t>((next() >> 32) * n >> 32); }
  bool one_in(uint32_t n) { return n != 0 && below(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace llcoll::sim
