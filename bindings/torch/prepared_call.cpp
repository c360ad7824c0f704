#include "prepared_call.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "scratch.hpp"
#include "tensors.hpp"
#include "type.hpp"

namespace scoremod::torch_binding {
namespace {

/// The C interface's structs of one call.
class Arguments {
 public:
  explicit Arguments(const CallSignature& signature)
      : signature_(signature), operands_(signature.operands), gradients_(signature.gradients) {
    options_.struct_size = sizeof(options_);
    options_.has_scale = signature.scale ? 1 : 0;
    options_.scale = signature.scale.value_or(0);
    forward_.struct_size = sizeof(forward_);
    backward_.struct_size = sizeof(backward_);
    forward_.options = backward_.options = &options_;
    forward_.operands = backward_.operands = operands_.empty() ? nullptr : operands_.data();
    forward_.operand_count = backward_.operand_count = operands_.size();
    backward_.d_operands = gradients_.empty() ? nullptr : gradients_.data();
    backward_.d_operand_count = gradients_.size();
  }
  Arguments(const Arguments&) = delete;
  Arguments& operator=(const Arguments&) = delete;

  void put(std::size_t tensor, void* address, std::int64_t bytes) {
    const scoremod_buffer buffer{address, static_cast<std::size_t>(bytes)};
    const std::size_t fields = signature_.fields.size();
    if (tensor < fields) return put_field(signature_.fields[tensor], buffer);
    tensor -= fields;
    if (tensor < operands_.size()) {
      operands_[tensor].buffer = {buffer.data, buffer.bytes};
    } else {
      gradients_[tensor - operands_.size()].buffer = buffer;
    }
  }
  void put_workspace(void* address, std::size_t bytes) { forward_.workspace = backward_.workspace = {address, bytes}; }
  scoremod_call_options& options() { return options_; }

  /// Calls the library, without Python's lock. Raises what it reports.
  void run(const PreparedCall& at) const {
    scoremod_prepared_call prepared{};
    prepared.struct_size = sizeof(prepared);
    prepared.attention = at.attention;
    prepared.forward = signature_.is_forward ? &forward_ : nullptr;
    prepared.backward = signature_.is_forward ? nullptr : &backward_;
    prepared.sizes = at.sizes == nullptr ? nullptr : at.sizes->get();
    char* message = nullptr;
    PyThreadState* const state = PyEval_SaveThread();
    const scoremod_status status = signature_.function(&prepared, &message);
    PyEval_RestoreThread(state);
    if (status == SCOREMOD_OK) return;
    const Ref code = checked(PyLong_FromLong(status)), text = checked(PyLong_FromVoidPtr(message));
    call(signature_.refuse, code.get(), text.get());
    throw PythonError{};
  }

 private:
  /// Buffers of constants and others are alike in memory.
  void put_field(std::size_t place, const scoremod_buffer& buffer) {
    static_assert(sizeof(scoremod_buffer) == sizeof(scoremod_const_buffer));
    std::byte* const arguments =
        signature_.is_forward ? reinterpret_cast<std::byte*>(&forward_) : reinterpret_cast<std::byte*>(&backward_);
    std::memcpy(arguments + place, &buffer, sizeof(buffer));
  }

  const CallSignature& signature_;
  std::vector<scoremod_operand> operands_;
  std::vector<scoremod_operand_gradient> gradients_;
  scoremod_call_options options_{};
  scoremod_forward_args forward_{};
  scoremod_backward_args backward_{};
};

Ref list_of(std::span<PyObject* const> tensors) {
  Ref list = checked(PyList_New(0));
  for (PyObject* const tensor : tensors) checked(PyList_Append(list.get(), tensor));
  return list;
}

/// Raises what is wrong with tensors whose storage ends before they do.
[[noreturn]] void refuse_short(PyObject* self, std::span<PyObject* const> tensors) {
  const Ref name = checked(PyUnicode_FromString("refuse_short"));
  checked(PyObject_CallMethodObjArgs(self, name.get(), list_of(tensors).get(), nullptr));
  fail(PyExc_RuntimeError, "expected a tensor whose storage ends before it does");
}

/// Puts copies of tensors that begin in between in their places; what the copies belong to.
Ref put_aligned(const CallSignature& signature, std::span<PyObject* const> tensors, std::span<void*> addresses) {
  const Ref given = list_of(tensors), words = checked(PyList_New(0));
  for (void* const address : addresses) checked(PyList_Append(words.get(), checked(PyLong_FromVoidPtr(address)).get()));
  Ref copies = call(signature.put_aligned, words.get(), given.get());
  for (std::size_t i = 0; i < addresses.size(); ++i)
    addresses[i] = pointer(checked_borrowed(PyList_GetItem(words.get(), static_cast<Py_ssize_t>(i))));
  return copies;
}

/// The workspace of a call, which goes back to the others after it.
class Workspace {
 public:
  Workspace(const CallSignature& signature, void* stream, std::size_t bytes, bool is_kept)
      : device_(signature.device), stream_(stream) {
    if (bytes == 0) return;
    // None that replays within a graph is another call's.
    is_kept_ = is_kept && bytes <= kKeptScratch && (!signature.stream || !is_true(call(torch().is_capturing)));
    scratch_ = is_kept_ ? take_scratch(device_, stream_, signature.scratch) : new_scratch(signature.scratch, bytes);
  }
  void* address() const { return scratch_.address; }
  /// The call is on its stream.
  void give_back() {
    if (is_kept_) keep_scratch(device_, stream_, std::move(scratch_));
  }

 private:
  int device_;
  void* stream_;
  bool is_kept_ = false;
  Scratch scratch_;
};

void put_extras(const CallExtras& extras, scoremod_call_options& options) {
  if (extras.dropout != Py_None) {
    const Ref name = checked(PyUnicode_FromString("tolist"));
    const Ref pair = checked(PyObject_CallMethodObjArgs(extras.dropout, name.get(), nullptr));
    options.dropout_seed = static_cast<std::uint64_t>(integer(checked_borrowed(PyList_GetItem(pair.get(), 0))));
    options.dropout_offset = static_cast<std::uint64_t>(integer(checked_borrowed(PyList_GetItem(pair.get(), 1))));
  }
  if (extras.offsets != Py_None) {
    const auto offset = [&](Py_ssize_t at) { return static_cast<std::int32_t>(integer(item(extras.offsets, at))); };
    options.batch_offset = offset(0);
    options.head_offset = offset(1);
    options.query_offset = offset(2);
    options.key_offset = offset(3);
  }
}

}  // namespace

Ref& observer() {
  static auto& own = *new Ref;
  return own;
}

void run(PyObject* self, std::span<PyObject* const> tensors, const CallExtras& extras) {
  const PreparedCall& at = Type<PreparedCall>::known(self);
  if (!at.signature) fail(PyExc_RuntimeError, "expected a call that was prepared");
  const CallSignature& signature = Type<CallSignature>::known(at.signature.get());
  if (tensors.size() != signature.count()) fail(PyExc_TypeError, "expected the tensors that the call was prepared for");
  if (observer()) call(observer(), self, list_of(tensors).get());
  Arguments arguments(signature);
  std::vector<void*> addresses(tensors.size());
  std::uintptr_t low = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    addresses[i] = address_of(tensors[i]);
    low |= reinterpret_cast<std::uintptr_t>(addresses[i]);
  }
  void* stream = nullptr;
  Ref copies;
  if (signature.stream) {
    // After the call PyTorch's allocator keeps the copies' memory in the stream's order.
    if (low % kTensorAlignment != 0) copies = put_aligned(signature, tensors, addresses);
    stream = pointer(call(signature.stream).get());
    arguments.options().stream = stream;
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    std::int64_t bytes = at.bytes.empty() ? 0 : at.bytes[i];
    if (at.bytes.empty() || !signature.is_made_here[i]) {
      const std::int64_t held = bytes_from_beginning(tensors[i], signature.itemsizes[i]);
      if (held < bytes) refuse_short(self, tensors);
      if (at.bytes.empty()) bytes = held;
    }
    arguments.put(i, addresses[i], bytes);
  }
  Workspace workspace(signature, stream, at.workspace_bytes, extras.keeps_scratch);
  arguments.put_workspace(workspace.address(), at.workspace_bytes);
  put_extras(extras, arguments.options());
  arguments.run(at);
  workspace.give_back();
}

}  // namespace scoremod::torch_binding
