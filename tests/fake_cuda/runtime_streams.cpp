// The runtime's functions for streams, events and graphs: those that the library and its tests call.
#include "fake_cuda/runtime.hpp"

namespace scoremod::test::fake_cuda {
namespace {

void wait_for(Call& call, cudaStream_t handle) {
  // This includes waiting for another stream than the one that captures.
  call.must_not_meet_captures();
  must_not_capture(call, stream_of(call, handle));
  ++state().waits;
}

/// Checks the launches again: memory that they pointed to may be gone by now.
void run_again(Call& call, const Graph& graph, int device) {
  for (const Work& work : graph.work) {
    if (!state().modules.contains(work.module))
      call.refuse(cudaErrorInvalidDeviceFunction, work.kernel, ": its module was unloaded");
    else
      check_addresses(call, work.kernel, device, work.words);
    if (call.fails()) return;
    state().launches.push_back({work.kernel, device, work.words.size() * sizeof(std::uint64_t)});
  }
}

cudaError_t create_event(const char* name, cudaEvent_t* event) {
  Call call(name);
  call.bind_device();
  if (!call.fails()) keep(state().events, Event{thread_state().contexts.back()->device}, event);
  return result(call);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  Call call("cudaStreamCreateWithFlags");
  call.must_not_meet_captures();
  call.bind_device();
  if (call.fails()) return result(call);
  Stream made;
  made.device = thread_state().contexts.back()->device;
  keep(state().streams, std::move(made), stream);
  return result(call);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  Call call("cudaStreamDestroy");
  destroy(call, state().streams, stream, "a stream");
  return result(call);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  Call call("cudaStreamSynchronize");
  wait_for(call, stream);
  return result(call);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  Call call("cudaStreamIsCapturing");
  const Stream* const stream = stream_of(call, handle);
  if (call.fails()) return result(call);
  const bool captures = stream != nullptr && stream->captured != nullptr;
  *status = !captures        ? cudaStreamCaptureStatusNone
            : stream->broken ? cudaStreamCaptureStatusInvalidated
                             : cudaStreamCaptureStatusActive;
  return result(call);
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Call call("cudaStreamBeginCapture");
  Stream* const stream = stream_of(call, handle);
  if (stream == nullptr) return result(call);
  stream->captured = std::make_unique<Graph>();
  stream->mode = mode;
  stream->captured_by = std::this_thread::get_id();
  stream->broken = false;
  return result(call);
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* graph) {
  Call call("cudaStreamEndCapture");
  Stream* const stream = stream_of(call, handle);
  if (stream == nullptr) return result(call);
  const auto captured = std::move(stream->captured);
  *graph = nullptr;
  if (captured == nullptr || stream->broken)
    call.refuse(cudaErrorStreamCaptureInvalidated, "the capture ended before");
  else
    keep(state().graphs, std::move(*captured), graph);
  return result(call);
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  Call call("cudaGraphDestroy");
  destroy(call, state().graphs, graph, "a graph");
  return result(call);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  Call call("cudaGraphInstantiate");
  if (is_known(call, state().graphs, graph, "a graph"))
    keep(state().graphs, Graph{*reinterpret_cast<Graph*>(graph)}, executable);
  return result(call);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  Call call("cudaGraphExecDestroy");
  destroy(call, state().graphs, executable, "a graph");
  return result(call);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t handle) {
  Call call("cudaGraphLaunch");
  const Stream* const stream = stream_of(call, handle);
  if (stream != nullptr && is_known(call, state().graphs, executable, "a graph"))
    run_again(call, *reinterpret_cast<Graph*>(executable), stream->device);
  return result(call);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return create_event("cudaEventCreateWithFlags", event);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return create_event("cudaEventCreate", event); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Call call("cudaEventDestroy");
  destroy(call, state().events, event, "an event");
  return result(call);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  Call call("cudaEventRecord");
  fail_if_broken(call, stream_of(call, stream));
  if (is_known(call, state().events, event, "an event") && !call.fails())
    *reinterpret_cast<Event*>(event) = {reinterpret_cast<Event*>(event)->device, true, true};
  return result(call);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Call call("cudaEventSynchronize");
  call.must_not_meet_captures();
  if (is_known(call, state().events, event, "an event")) reinterpret_cast<Event*>(event)->is_ahead = false;
  ++state().waits;
  return result(call);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned) {
  Call call("cudaStreamWaitEvent");
  const Stream* const stream = stream_of(call, handle);
  if (is_known(call, state().events, event, "an event") && stream != nullptr && stream->captured != nullptr)
    call.refuse(cudaErrorStreamCaptureIsolation, "the graph would depend on work outside of it");
  return result(call);
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  Call call("cudaEventElapsedTime");
  for (const cudaEvent_t event : {begin, end}) {
    if (is_known(call, state().events, event, "an event") && !reinterpret_cast<Event*>(event)->is_recorded)
      call.refuse(cudaErrorInvalidResourceHandle, "an event that was not recorded");
  }
  if (!call.fails()) *milliseconds = 1;
  return result(call);
}

}  // extern "C"

}  // namespace scoremod::test::fake_cuda
