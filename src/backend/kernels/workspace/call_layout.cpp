#include "backend/kernels/workspace/call_layout.hpp"

#include <atomic>
#include <random>

namespace scoremod::backend::kernels {
namespace {

constexpr std::size_t kAlignment = 16;

/// A call id unique across processes (48 bits). It tags counters in a workspace that is never cleared.
std::uint64_t next_call_number() {
  static std::atomic<std::uint64_t> last{std::uint64_t{std::random_device{}()} << 16};
  return ++last & 0xffff'ffff'ffff;
}

}  // namespace

void CallLayout::Pieces::add(std::size_t size, std::function<void(ArgumentBytes&, std::byte*)> point, bool behind) {
  if (!behind) bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  pieces.push_back({bytes, std::move(point)});
  bytes += size;
}

void CallLayout::Pieces::write(ArgumentBytes& to, std::byte* memory) const {
  if (memory == nullptr) return;
  for (const Piece& piece : pieces) piece.point(to, memory + piece.at);
}

void CallLayout::add_sums(std::uint32_t operand, std::size_t bytes, bool behind) {
  workspace_.add(
      bytes, [operand](ArgumentBytes& to, std::byte* at) { to.operand(operand).sums = as<float>(at); }, behind);
}

void CallLayout::write(ArgumentBytes& to, std::byte* workspace, std::byte* once) const {
  device::AttentionArguments& call = to.call();
  call.query_tiles = query_tiles;
  call.key_tiles = key_tiles;
  call.heads_together = heads_together;
  call.splits = splits;
  call.blocks = blocks;
  if (tags_calls) call.number = next_call_number();
  workspace_.write(to, workspace);
  once_.write(to, once);
}

}  // namespace scoremod::backend::kernels
