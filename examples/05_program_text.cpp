// Programs have a text form (docs/reference/program_text.md). Mistakes in it are reported with line, column and a
// caret.
#include <cstdio>
#include <string>

#include <scoremod/dsl.hpp>
#include <scoremod/error.hpp>

using namespace scoremod;

int main() {
  const Program parsed = Program::parse(
      "operand slopes: f32 [h]\n"
      "value = score + slopes * f32(kv_idx - q_idx)\n"
      "keep = q_idx >= kv_idx\n");
  const Operand<Float> slopes("slopes", {Axis::kHead});
  const Program traced =
      trace([slopes](Score s, Index i) { return s + slopes * f32(i.kv - i.q); }, [](Index i) { return i.q >= i.kv; });
  std::printf("%sequal to its C++ twin: %s\n\n", parsed.to_string().c_str(), parsed == traced ? "yes" : "no");

  std::string message;
  try {
    Program::parse("value = score + q_idx");
  } catch (const Error& error) {
    message = error.what();
  }
  std::printf("%s\n", message.c_str());
  return parsed == traced && !message.empty() ? 0 : 1;
}
