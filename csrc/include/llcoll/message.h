// A rank's own input and output, seen as units. What lies past the end reads as zeros and is not written.
#pragma once

#include "llcoll/word.h"

namespace llcoll {
inline namespace LLC_ISA {

// Alignment is this rank's own business: it changes how the rank reads, never what travels. A unit below
// `wide_inputs` (`wide_outputs`) may be accessed whole; every other one goes by single elements.
struct Message {
  const char* input;
  char* output;
  uint64_t num_bytes;
  uint32_t wide_inputs;
  uint32_t wide_outputs;
  uint32_t element_bytes;

  template <class Unit, class Memory>
  LLC_FN Unit read(const Memory& mem, uint32_t unit_idx) const {
    if (LLC_LIKELY(unit_idx < wide_inputs)) return mem.template read<Unit>(input + uint64_t{unit_idx} * Unit::kBytes);
    return mem.template read_part<Unit>(input, uint64_t{unit_idx} * Unit::kBytes, num_bytes, element_bytes);
  }
  template <class Unit, class Memory>
  LLC_FN Unit read_whole(const Memory& mem, uint32_t unit_idx) const {
    return mem.template read<Unit>(input + uint64_t{unit_idx} * Unit::kBytes);
  }

  template <class Unit, class Memory>
  LLC_FN void write(const Memory& mem, uint32_t unit_idx, Unit value) const {
    if (LLC_LIKELY(unit_idx < wide_outputs)) {
      mem.template write<Unit>(output + uint64_t{unit_idx} * Unit::kBytes, value);
    } else {
      mem.template write_part<Unit>(output, uint64_t{unit_idx} * Unit::kBytes, num_bytes, element_bytes, value);
    }
  }
  template <class Unit, class Memory>
  LLC_FN void write_whole(const Memory& mem, uint32_t unit_idx, const Unit& value) const {
    mem.template write<Unit>(output + uint64_t{unit_idx} * Unit::kBytes, value);
  }
};

// `whole_input`: the pointer allows whole-unit reads (CUDA: aligned to the unit; CPU: always).
inline Message make_message(const void* input, void* output, uint64_t num_bytes, int element_bytes, int unit_bytes,
                            bool whole_input, bool whole_output) {
  Message message{};
  message.input = static_cast<const char*>(input);
  message.output = static_cast<char*>(output);
  message.num_bytes = num_bytes;
  message.wide_inputs = whole_input ? static_cast<uint32_t>(num_bytes / unit_bytes) : 0;
  message.wide_outputs = whole_output ? static_cast<uint32_t>(num_bytes / unit_bytes) : 0;
  message.element_bytes = static_cast<uint32_t>(element_bytes);
  return message;
}

}  // namespace LLC_ISA
}  // namespace llcoll
