#include "backend/cudnn/graph/engine.hpp"

#include <mutex>

#include <nlohmann/json.hpp>

#include "backend/cuda/device/retirement.hpp"
#include "backend/cudnn/graph/frontend_engine.hpp"
#include "backend/cudnn/graph/frontend_graph.hpp"
#include "backend/cudnn/graph/handle.hpp"
#include "backend/cudnn/graph/library.hpp"
#include "backend/cudnn/graph/plan_key.hpp"
#include "base/timeline.hpp"

// The frontend finds cuDNN's functions through this handle.
namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}

namespace scoremod::backend::cudnn {
namespace {

/// The format of serialize()'s bytes; counts up when they change.
constexpr int kFormat = 3;

void use_library() {
  require_library();
  fe::cudnn_dlhandle = library().cudnn;
}

std::vector<std::uint8_t> octets(std::string_view text) { return {text.begin(), text.end()}; }

/// The engine of a plan, and those that cuDNN names behind it.
struct EngineNames {
  std::string built;
  std::vector<std::string> next;
};

class FrontendPlan final : public EnginePlan {
 public:
  /// `identity` describes the device that it was built for; `bytes` are those that it was loaded from, if it was.
  FrontendPlan(std::shared_ptr<Graph> graph, EngineNames engines, std::string identity, std::vector<std::byte> bytes)
      : graph_(std::move(graph)),
        engines_(std::move(engines)),
        identity_(std::move(identity)),
        bytes_(std::move(bytes)) {
    // Reading the template makes it where loading did not.
    const auto& slots = graph_->varpack_template;
    if (!slots.prepared) check(graph_->prepare_variant_pack_template(), "prepare_variant_pack_template");
    for (const int slot : slots.user_slots) uids_.push_back(slots.all_uids[static_cast<std::size_t>(slot)]);
    std::int64_t workspace = 0;
    check(graph_->get_workspace_size(workspace), "get_workspace_size");
    workspace_ = static_cast<std::size_t>(workspace);
    // cuDNN loads NVRTC for engine configurations, and unloads it with the last one. So the thread that frees plans
    // would unload it while exit() runs its destructors.
    cuda::keep_loaded_nvrtc();
  }

  ~FrontendPlan() override {
    cuda::retire([graph = std::move(graph_)]() mutable {
      const std::lock_guard lock(construction_turns());
      graph.reset();
    });
  }

  using EnginePlan::execute;

  std::size_t workspace_bytes() const override { return workspace_; }
  std::span<const std::int64_t> uids() const override { return uids_; }
  const std::string& engine() const override { return engines_.built; }
  const std::vector<std::string>& next_engines() const override { return engines_.next; }

  void execute(void* handle, std::span<void* const> pointers, void* workspace) const override {
    // The frontend takes pointers that it doesn't change as void**.
    const auto status = graph_->execute(static_cast<cudnnHandle_t>(handle), const_cast<void**>(pointers.data()),
                                        static_cast<int>(pointers.size()), workspace);
    check(status, "execute");
  }

  std::vector<std::byte> serialize() const override {
    if (!bytes_.empty()) return bytes_;
    std::vector<std::uint8_t> graph;
    {
      const std::lock_guard lock(construction_turns());
      check(graph_->serialize(graph), "serialize");
    }
    const nlohmann::json document{{"format", kFormat},
                                  {"cudnn", library().cudnn_version},
                                  {"frontend", CUDNN_FRONTEND_VERSION},
                                  {"device", identity_},
                                  {"workspace_bytes", workspace_},
                                  {"graph", nlohmann::json::binary(std::move(graph))},
                                  {"engine", engines_.built},
                                  {"next_engines", engines_.next}};
    const std::vector<std::uint8_t> cbor = nlohmann::json::to_cbor(document);
    const auto view = std::as_bytes(std::span(cbor));
    return {view.begin(), view.end()};
  }

 private:
  static void check(const fe::error_t& status, const char* what) {
    if (status.is_bad()) fail_environment("cuDNN plan: ", what, ": ", status.err_msg);
  }

  std::shared_ptr<Graph> graph_;
  EngineNames engines_;
  std::string identity_;
  std::vector<std::byte> bytes_;
  std::vector<std::int64_t> uids_;
  std::size_t workspace_ = 0;
};

/// A frontend graph that is refused if it is too large for the frontend's arrays. The frontend copies a graph's
/// operations without a bound and so overwrites its own stack and heap, which looks like a crash of cuDNN. The code is
/// in cudnn_frontend_OperationGraph.h of 1.23.0, ops and ops_raw; cmake/FrontendHeaders.cmake makes the arrays larger.
class BoundedGraph final : public Graph {
  fe::error_t create_cudnn_operations(
      std::unordered_set<fe::graph::Tensor_attributes::uid_t>& uids,
      std::vector<std::shared_ptr<fe::Operation>>& backend_operations, fe::graph::managed_backend_descriptor_t& raw,
      std::unordered_map<std::int64_t, std::shared_ptr<fe::Tensor>>& tensors) const override {
    auto status = INode::create_cudnn_operations(uids, backend_operations, raw, tensors);
    const std::size_t count = backend_operations.size() + raw.size();
    if (status.is_bad() || count <= static_cast<std::size_t>(max_operations())) return status;
    return {fe::error_code_t::GRAPH_NOT_SUPPORTED, concat("the graph has ", count, " operations; cudnn-frontend holds ",
                                                          max_operations(), " and crashes above")};
  }
};

/// Builds for a handle's device or, where there is none, for `device`.
BuildOutcome build(const AttentionGraph& spec, cudnnHandle_t handle, const DeviceProperties& device) {
  auto graph = std::make_shared<BoundedGraph>();
  graph->set_sm_version(device.compute_capability);
  if (handle == nullptr) {
    const auto properties = std::make_shared<fe::DeviceProperties>();
    if (const auto status = properties->deserialize(octets(device.json)); status.is_bad()) {
      return {BuildStatus::kFailed, concat("device properties: ", status.err_msg), nullptr};
    }
    graph->set_device_properties(properties);
  }
  fill_graph(spec, *graph);
  if (const auto status = graph->validate(); status.is_bad()) return outcome_of(status, "validate");
  if (const auto status = graph->build_operation_graph(handle); status.is_bad()) {
    return outcome_of(status, "build_operation_graph");
  }
  EngineBuild engine(*graph, spec.engine);
  if (auto none = engine.run()) return *none;
  EngineNames engines{engine.built(), engine.next()};
  return {BuildStatus::kBuilt, "",
          std::make_shared<FrontendPlan>(std::move(graph), std::move(engines), device.identity(),
                                         std::vector<std::byte>{})};
}

BuildOutcome build_in_turn(const AttentionGraph& spec, cudnnHandle_t handle, const DeviceProperties& device) {
  const std::lock_guard lock(construction_turns());
  const TimedStep step("cuDNN's build", plan_label(spec));
  return outcome_of_build([&] { return build(spec, handle, device); });
}

DeviceProperties read_properties(cudnnHandle_t handle) {
  fe::DeviceProperties properties;
  // The handle says which device; cuDNN refuses a number beside it.
  properties.set_handle(handle).set_device_id(-1);
  std::vector<std::uint8_t> json;
  auto status = properties.build();
  if (status.is_good()) status = properties.serialize(json);
  if (status.is_bad()) fail_environment("cuDNN could not describe the device: ", status.err_msg);
  while (!json.empty() && json.back() == 0) json.pop_back();
  return DeviceProperties::parse({reinterpret_cast<const char*>(json.data()), json.size()});
}

[[noreturn]] void fail_load(const std::string& why) {
  fail_environment("this stored cuDNN plan can't be used: ", why, "; delete it and build it anew");
}

/// A stored plan, once all that names its versions and device is as it must be here.
struct StoredPlan {
  std::vector<std::uint8_t> graph;  ///< the frontend's bytes
  EngineNames engines;
};

StoredPlan checked_plan(std::span<const std::byte> bytes, const DeviceProperties& device) {
  const auto first = reinterpret_cast<const std::uint8_t*>(bytes.data());
  const auto document = nlohmann::json::from_cbor(first, first + bytes.size());
  const auto expect = [&](const char* key, const nlohmann::json& here) {
    if (document.at(key) != here) fail_load(concat("its ", key, " is ", document.at(key), ", and here it is ", here));
  };
  expect("format", kFormat);
  expect("cudnn", library().cudnn_version);
  expect("frontend", CUDNN_FRONTEND_VERSION);
  expect("device", device.identity());
  return {document.at("graph").get_binary(),
          {document.at("engine").get<std::string>(), document.at("next_engines").get<std::vector<std::string>>()}};
}

}  // namespace

int max_operations() { return static_cast<int>(MAX_OPGRAPH_OPS); }

BuildOutcome outcome_of_build(const std::function<BuildOutcome()>& build) {
  try {
    return build();
  } catch (const Error&) {
    throw;
  } catch (const std::system_error& error) {
    return {BuildStatus::kFailed, error.what(), nullptr};
  } catch (const std::runtime_error& error) {
    return {BuildStatus::kRefused, error.what(), nullptr};
  }
}

void EnginePlan::execute(void* handle, const std::unordered_map<std::int64_t, void*>& pointers, void* workspace) const {
  std::vector<void*> ordered;
  for (const std::int64_t uid : uids()) {
    const auto found = pointers.find(uid);
    if (found == pointers.end()) fail_bug("no pointer is bound to the plan's tensor ", uid);
    ordered.push_back(found->second);
  }
  execute(handle, ordered, workspace);
}

std::string frontend_objection(const AttentionGraph& spec, int compute_capability) {
  fe::cudnn_dlhandle = library().cudnn;
  return outcome_of_build([&]() -> BuildOutcome {
           Graph graph;
           graph.set_sm_version(compute_capability);
           fill_graph(spec, graph);
           const auto status = graph.validate();
           return {BuildStatus::kRefused, status.is_bad() ? status.err_msg : std::string(), nullptr};
         })
      .text;
}

BuildOutcome build_plan(const AttentionGraph& graph, void* handle) {
  use_library();
  return build_in_turn(graph, static_cast<cudnnHandle_t>(handle), device_properties(handle));
}

BuildOutcome build_plan(const AttentionGraph& graph, const DeviceProperties& device) {
  use_library();
  return build_in_turn(graph, nullptr, device);
}

std::shared_ptr<EnginePlan> load_plan(std::span<const std::byte> bytes, void* handle) {
  use_library();
  const auto cudnn_handle = static_cast<cudnnHandle_t>(handle);
  const std::lock_guard lock(construction_turns());
  const DeviceProperties device = read_properties(cudnn_handle);
  try {
    auto graph = std::make_shared<Graph>();
    StoredPlan stored = checked_plan(bytes, device);
    const auto status = graph->deserialize(cudnn_handle, stored.graph);
    if (status.is_bad()) fail_load(status.err_msg);
    return std::make_shared<FrontendPlan>(std::move(graph), std::move(stored.engines), device.identity(),
                                          std::vector<std::byte>(bytes.begin(), bytes.end()));
  } catch (const nlohmann::json::exception& error) {
    fail_load(concat("it is damaged: ", error.what()));
  }
}

DeviceProperties device_properties(void* handle) {
  use_library();
  const std::lock_guard lock(construction_turns());
  return read_properties(static_cast<cudnnHandle_t>(handle));
}

}  // namespace scoremod::backend::cudnn
