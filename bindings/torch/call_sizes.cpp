#include "call_sizes.hpp"

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <utility>

#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

constexpr Py_ssize_t kCounts = 9;

std::size_t place_of_strides(std::string_view tensor) {
  static constexpr std::array<std::pair<std::string_view, std::size_t>, 8> kPlaces{
      {{"q", offsetof(scoremod_sizes, q)},
       {"k", offsetof(scoremod_sizes, k)},
       {"v", offsetof(scoremod_sizes, v)},
       {"o", offsetof(scoremod_sizes, o)},
       {"d_o", offsetof(scoremod_sizes, d_o)},
       {"dq", offsetof(scoremod_sizes, dq)},
       {"dk", offsetof(scoremod_sizes, dk)},
       {"dv", offsetof(scoremod_sizes, dv)}}};
  for (const auto& [name, place] : kPlaces) {
    if (name == tensor) return place;
  }
  fail(PyExc_ValueError, "expected the name of a tensor that has strides");
}

/// SizesLayout.make(owner, handle, strided, operands).
PyObject* make(PyObject* type, PyObject* arguments) {
  return answer([&] {
    PyObject *owner = nullptr, *handle = nullptr, *strided = nullptr, *operands = nullptr;
    if (PyArg_ParseTuple(arguments, "OOOO", &owner, &handle, &strided, &operands) == 0) throw PythonError{};
    Ref made = call(Ref::to(type));
    SizesLayout& layout = Type<SizesLayout>::known(made.get());
    layout.owner = Ref::to(owner);
    layout.open = static_cast<const scoremod_attention*>(pointer(handle));
    for (Py_ssize_t i = 0; i < size_of(strided); ++i)
      layout.strided.push_back(place_of_strides(text_of(item(strided, i))));
    for (Py_ssize_t i = 0; i < size_of(operands); ++i) {
      PyObject* const operand = item(operands, i);
      layout.operands.push_back({static_cast<const char*>(pointer(item(operand, 0))),
                                 static_cast<std::size_t>(integer(item(operand, 1))), integer(item(operand, 2)) != 0});
    }
    return made;
  });
}

PyMethodDef methods_of_type[] = {{"make", make, METH_VARARGS | METH_CLASS, "The layout of a structure's sizes."}, {}};

}  // namespace

Ref make_sizes_layout_type() {
  return Type<SizesLayout>::make("scoremod_torch.SizesLayout", "Which numbers describe the sizes of calls.",
                                 methods_of_type, nullptr);
}

CallSizes::CallSizes(const SizesLayout& layout, PyObject* sizes, PyObject* numbers) {
  if (size_of(sizes) != kCounts) fail(PyExc_ValueError, "expected the nine sizes of a call");
  std::size_t count = 4 * layout.strided.size();
  for (const SizesLayout::Operand& operand : layout.operands) count += operand.rank * (operand.has_strides ? 2 : 1);
  if (size_of(numbers) != static_cast<Py_ssize_t>(count))
    fail(PyExc_ValueError, "expected the numbers of the layout's tensors and operands");
  sizes_.struct_size = sizeof(sizes_);
  std::array<std::int64_t*, kCounts> counts{&sizes_.batch,     &sizes_.heads_q, &sizes_.heads_kv,
                                            &sizes_.seq_q,     &sizes_.seq_kv,  &sizes_.tokens_q,
                                            &sizes_.tokens_kv, &sizes_.blocks,  &sizes_.blocks_per_sequence};
  for (Py_ssize_t i = 0; i < kCounts; ++i) *counts[static_cast<std::size_t>(i)] = integer(item(sizes, i));
  numbers_.resize(count);
  for (std::size_t i = 0; i < count; ++i) numbers_[i] = integer(item(numbers, static_cast<Py_ssize_t>(i)));
  const std::int64_t* next = numbers_.data();
  for (const std::size_t place : layout.strided) {
    static_assert(sizeof(scoremod_strides) == 4 * sizeof(std::int64_t));
    std::memcpy(reinterpret_cast<std::byte*>(&sizes_) + place, reinterpret_cast<const std::byte*>(&next), sizeof(next));
    next += 4;
  }
  operands_.reserve(layout.operands.size());
  for (const auto& [name, rank, has_strides] : layout.operands) {
    operands_.push_back({name, rank, next, has_strides ? next + rank : nullptr});
    next += rank * (has_strides ? 2 : 1);
  }
  sizes_.operands = operands_.empty() ? nullptr : operands_.data();
  sizes_.operand_count = operands_.size();
}

}  // namespace scoremod::torch_binding
