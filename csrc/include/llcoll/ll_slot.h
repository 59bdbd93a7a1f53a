// One element in one slot of an LLBuffer: padded to whole packets, stored, polled, emptied. Thread level, no state.
#pragma once

#include <type_traits>

#include "llcoll/element.h"
#include "llcoll/ll_memory.h"
#include "llcoll/sentinel.h"

namespace llcoll {
inline namespace LLC_ISA {

// The element type that T is made of: which NaN stands in for a word that equals the empty pattern, and what a failed
// recv() returns. Specialise it for structs of your own; a type of 4 bytes or more without it cannot go by sentinel.
template <class T>
struct ElementOf {
  using type = void;
};
template <>
struct ElementOf<float> {
  using type = Float32;
};
template <>
struct ElementOf<double> {
  using type = Float64;
};
#if defined(__CUDACC__)
template <>
struct ElementOf<float2> : ElementOf<float> {};
template <>
struct ElementOf<float4> : ElementOf<float> {};
template <>
struct ElementOf<double2> : ElementOf<double> {};
template <>
struct ElementOf<__half> {
  using type = Float16;
};
template <>
struct ElementOf<__half2> : ElementOf<__half> {};
template <>
struct ElementOf<__nv_bfloat16> {
  using type = BFloat16;
};
template <>
struct ElementOf<__nv_bfloat162> : ElementOf<__nv_bfloat16> {};
#endif

// What a packet carries besides data. Sentinel slots need neither.
struct LlFlag {
  uint64_t wide;
  uint32_t narrow;  // 1 to 2^32 - 1 in turn: never 0, the flag of an empty slot
};
template <LlMode mode>
LLC_FN LlFlag flag_of_epoch(uint64_t epoch) {
  return {epoch, mode == LlMode::kLlNarrow ? static_cast<uint32_t>(epoch % 0xFFFFFFFFu) + 1 : 0};
}

template <LlMode mode, class T>
struct LlSlot {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 16);
  static constexpr int kWordBytes = sizeof(T) <= 4 ? 4 : sizeof(T) <= 8 ? 8 : 16;
  using Words = Bytes<kWordBytes>;
  static constexpr uint32_t kBytes = slot_bytes(mode, sizeof(T));
  static constexpr uint32_t kPacketBytes = packet_bytes(mode);
  static constexpr uint32_t kPackets = kBytes / kPacketBytes;
  using Element = typename ElementOf<T>::type;
  // Below 4 bytes the padding keeps a word from being all ones, whatever the type.
  using Sentinels = std::conditional_t<sizeof(T) < 4, Float32, Element>;
  static_assert(mode != LlMode::kSentinel || !std::is_void_v<Sentinels>,
                "no spare bit pattern: use LlMode::kLl, or specialise ElementOf");

  static LLC_FN Words encode(const T& data) {
    Words words{};
    __builtin_memcpy(&words, &data, sizeof(T));
    if constexpr (mode == LlMode::kSentinel) words = without_sentinel<Sentinels>(words);
    return words;
  }
  static LLC_FN T decode(const Words& words) {
    T data;
    __builtin_memcpy(&data, &words, sizeof(T));
    return data;
  }
  // What a failed receive gives: NaN, 0 for integers.
  static LLC_FN T poisoned() {
    if constexpr (std::is_void_v<Element>) {
      return decode(Words{});
    } else {
      return decode(poison<Element, Words>());
    }
  }

  // relaxed.sys, each packet (sentinel: the whole slot) in one access; pairs with try_load(). `to_all`: `at` is a
  // multicast address.
  template <bool to_all, class Memory>
  static LLC_FN void store(const Memory& mem, char* at, const Words& words, LlFlag flag) {
    if constexpr (mode == LlMode::kSentinel) {
      if constexpr (to_all) {
        mem.multicast_unit(reinterpret_cast<Words*>(at), words);
      } else {
        mem.store_unit(reinterpret_cast<Words*>(at), words);
      }
    } else {
      LLC_UNROLL
      for (uint32_t k = 0; k < kPackets; ++k) store_packet<to_all>(mem, at + k * kPacketBytes, payload(words, k), flag);
    }
  }

  // True once all of the slot is here; `words` means nothing before.
  template <class Memory>
  static LLC_FN bool try_load(const Memory& mem, const char* at, LlFlag flag, Words& words) {
    if constexpr (mode == LlMode::kSentinel) {
      words = mem.load_unit(reinterpret_cast<const Words*>(at));
      return !has_sentinel<Sentinels>(words);
    } else {
      bool here = true;
      LLC_UNROLL
      for (uint32_t k = 0; k < kPackets; ++k) {
        if constexpr (mode == LlMode::kLl) {
          const Packet p = mem.load_packet(reinterpret_cast<const Packet*>(at) + k);
          here &= p.flag == flag.wide;
          words.words[2 * k] = static_cast<uint32_t>(p.payload);
          if constexpr (kWordBytes > 4) words.words[2 * k + 1] = static_cast<uint32_t>(p.payload >> 32);
        } else {
          const NarrowPacket p = mem.load_narrow(reinterpret_cast<const NarrowPacket*>(at) + k);
          here &= p.flag == flag.narrow;
          words.words[k] = p.payload;
        }
      }
      return here;
    }
  }

  template <class Memory>
  static LLC_FN void clear(const Memory& mem, char* at) {
    if constexpr (mode == LlMode::kSentinel) {
      Words empty;
      for (uint32_t& word : empty.words) word = kSentinelWord;
      mem.store_unit(reinterpret_cast<Words*>(at), empty);
    } else {
      for (uint32_t k = 0; k < kPackets; ++k) store_packet<false>(mem, at + k * kPacketBytes, 0, LlFlag{0, 0});
    }
  }

 private:
  template <bool to_all, class Memory>
  static LLC_FN void store_packet(const Memory& mem, char* at, uint64_t payload, LlFlag flag) {
    if constexpr (mode == LlMode::kLl) {
      const Packet packet{payload, flag.wide};
      if constexpr (to_all) {
        mem.multicast_packet(reinterpret_cast<Packet*>(at), packet);
      } else {
        mem.store_packet(reinterpret_cast<Packet*>(at), packet);
      }
    } else {
      const NarrowPacket packet{static_cast<uint32_t>(payload), flag.narrow};
      if constexpr (to_all) {
        mem.multicast_narrow(reinterpret_cast<NarrowPacket*>(at), packet);
      } else {
        mem.store_narrow(reinterpret_cast<NarrowPacket*>(at), packet);
      }
    }
  }
  static LLC_FN uint64_t payload(const Words& words, uint32_t k) {
    if constexpr (mode == LlMode::kLlNarrow) return words.words[k];
    if constexpr (kWordBytes == 4) return words.words[0];
    return words.words[2 * k] | uint64_t{words.words[2 * k + 1]} << 32;
  }
};

}  // namespace LLC_ISA
}  // namespace llcoll
