#include "cudnn_reference.hpp"

#include <map>

#include "scoremod/error.hpp"

namespace scoremod::bench {
namespace {

using Pointers = std::map<std::string, void*>;

void add(Pointers& pointers, const std::string& name, const ConstBuffer& buffer) {
  pointers[name] = const_cast<void*>(buffer.data);
}
void add(Pointers& pointers, const std::string& name, const Buffer& buffer) { pointers[name] = buffer.data; }

Pointers pointers_of(const ForwardArgs& args) {
  Pointers pointers;
  add(pointers, "q", args.q);
  add(pointers, "k", args.k);
  add(pointers, "v", args.v);
  add(pointers, "o", args.o);
  add(pointers, "lse", args.lse);
  for (const OperandBuffer& operand : args.operands) add(pointers, operand.name, operand.buffer);
  return pointers;
}

Pointers pointers_of(const ForwardArgs& forward, const BackwardArgs& args) {
  Pointers pointers = pointers_of(forward);
  add(pointers, "d_o", args.d_o);
  add(pointers, "dq", args.dq);
  add(pointers, "dk", args.dk);
  add(pointers, "dv", args.dv);
  for (const OperandGradient& gradient : args.d_operands) add(pointers, "d_" + gradient.name, gradient.buffer);
  return pointers;
}

class CudnnReference final : public measure::Reference {
 public:
  CudnnReference(std::unique_ptr<CudnnGraph> graph, const BenchCase& bench_case, measure::AttentionRun& run)
      : graph_(std::move(graph)), workspace_(run.scratch(graph_->workspace_bytes())) {
    graph_->use_stream(run.stream());
    for (std::size_t set = 0; set < run.sets(); ++set) {
      const Pointers pointers = bench_case.direction == Direction::kForward
                                    ? pointers_of(run.forward_args(set))
                                    : pointers_of(run.forward_args(set), run.backward_args(set));
      std::vector<void*>& ordered = pointers_.emplace_back();
      for (const std::string& name : graph_->tensors()) {
        const auto found = pointers.find(name);
        if (found == pointers.end()) throw Error(ErrorCode::kBug, "no tensor is called '" + name + "'");
        ordered.push_back(found->second);
      }
    }
  }

  void run(std::size_t set) override { graph_->execute(pointers_[set], workspace_.data); }
  bool writes_outputs() const override { return true; }

 private:
  std::unique_ptr<CudnnGraph> graph_;
  Buffer workspace_;
  std::vector<std::vector<void*>> pointers_;  ///< of each set, in the graph's order
};

}  // namespace

std::unique_ptr<measure::Reference> cudnn_reference(const BenchCase& bench_case, measure::AttentionRun& run) {
  const auto form = reference_form(bench_case);
  if (!form) return nullptr;
  return std::make_unique<CudnnReference>(CudnnGraph::build(bench_case, *form), bench_case, run);
}

}  // namespace scoremod::bench
