#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "scoremod/c_api.h"

#include "c_structs/call_memory.hpp"
#include "c_structs/choices.hpp"
#include "c_structs/drawn_call.hpp"
#include "c_structs/given_struct.hpp"

namespace scoremod::fuzz {

/// A prepared call: which fields of the struct of its forward or backward it puts other memory into.
struct DrawnPrepared {
  struct Put {
    std::size_t offset = 0;
    bool is_null = false;  ///< a null pointer in place of the field's
    Place place;
  };

  std::vector<Put> puts;
  int mistake = 0;
  DrawnSize size;
};

template <class Args>
DrawnPrepared draw_prepared(Choices& choices, const CallMemory& memory, const GivenStruct<Args>& args) {
  static constexpr std::size_t kEnds[] = {
      offsetof(scoremod_prepared_call, sizes), offsetof(scoremod_prepared_call, count),
      offsetof(scoremod_prepared_call, forward), offsetof(scoremod_prepared_call, attention)};
  DrawnPrepared drawn;
  for (int left = choices.byte() % 3; left > 0; --left) {
    const TensorField& field = fields<Args>()[choices.byte() % fields<Args>().size()];
    if (!args.has(field.offset, sizeof(scoremod_buffer))) continue;
    const Place place = draw_place(choices, memory, field.tensor);
    drawn.puts.push_back({field.offset, choices.byte() == 1, place});
  }
  drawn.mistake = choices.byte();
  drawn.size = draw_size(choices, sizeof(scoremod_prepared_call), kEnds);
  return drawn;
}

/// The prepared call of C on a made call's struct.
template <class Args>
class MadePrepared {
 public:
  MadePrepared(const DrawnPrepared& drawn, const scoremod_attention* attention, Args* args, const CallMemory& memory)
      : given_(struct_of(drawn, attention, args, memory), drawn.size) {}

  const scoremod_prepared_call* get() { return given_.get(); }

  /// Does to the struct what the library has to, before it calls. Throws Error(kInvalidArgument).
  void put() const {
    const scoremod_prepared_call call = given_.understood();
    if (call.count > 0 && (call.buffers == nullptr || call.addresses == nullptr || call.bytes == nullptr))
      refuse("NULL");
    if ((call.forward == nullptr) == (call.backward == nullptr)) refuse("neither or both");
    for (std::size_t i = 0; i < call.count; ++i) {
      if (call.buffers[i] == nullptr) refuse("a buffer that is NULL");
      *call.buffers[i] = {call.addresses[i], call.bytes[i]};
    }
    if (call.attention == nullptr) refuse("an attention that is NULL");
  }

 private:
  scoremod_prepared_call struct_of(const DrawnPrepared& drawn, const scoremod_attention* attention, Args* args,
                                   const CallMemory& memory) {
    for (const DrawnPrepared::Put& put : drawn.puts) {
      auto* field = reinterpret_cast<std::byte*>(args) + put.offset;
      buffers_.push_back(put.is_null ? nullptr : reinterpret_cast<scoremod_buffer*>(field));
      addresses_.push_back(memory.address(put.place));
      bytes_.push_back(put.place.bytes);
    }
    scoremod_prepared_call call{};
    call.attention = drawn.mistake == 1 ? nullptr : attention;
    set(call, drawn.mistake == 2 ? nullptr : args);
    call.buffers = drawn.mistake == 3 ? nullptr : buffers_.data();
    call.addresses = drawn.mistake == 4 ? nullptr : addresses_.data();
    call.bytes = drawn.mistake == 5 ? nullptr : bytes_.data();
    const bool is_absurd = drawn.mistake == 6;
    if (is_absurd) call.buffers = nullptr;
    call.count = is_absurd ? std::numeric_limits<std::size_t>::max() : buffers_.size();
    return call;
  }

  static void set(scoremod_prepared_call& call, const scoremod_forward_args* args) { call.forward = args; }
  static void set(scoremod_prepared_call& call, const scoremod_backward_args* args) { call.backward = args; }

  std::vector<scoremod_buffer*> buffers_;
  std::vector<void*> addresses_;
  std::vector<std::size_t> bytes_;
  GivenStruct<scoremod_prepared_call> given_;
};

}  // namespace scoremod::fuzz
