// Blocks and their threads. Each thread of a CTA is a context of its own that runs until it synchronizes with others.
// It then waits for the other 31 of its warp, or for the CTA, as the device does. All threads of a warp must wait for
// one thing. Warps run one after the other, in another order each time. Copies to shared memory are made as late as
// possible, so that a missing barrier or wait shows.
#include <random>

#include "emulated/state.hpp"

namespace emulated {

unsigned current, block, block_count;
unsigned char* shared;
std::vector<Thread> threads;
std::vector<Warp> warps;
std::vector<unsigned char> shared_memory;
int events;
bool has_bf16;
Beside beside;

namespace {

struct Team {
  int arrived, generation;
};
struct Meeting {
  int arrived, generation;
  bool any, result;
};
constexpr size_t kGuard = 4096, kStack = 1 << 18;

std::vector<Team> teams;
Meeting meetings[16];  // by their numbers
jmp_buf scheduler;
void (*body)();
Encode encode;

__attribute__((noinline)) void resume() {
  Thread& thread = threads[current];
  if (_setjmp(scheduler) != 0) return;
  if (thread.begun) _longjmp(thread.place, 1);
  thread.begun = true;
  setcontext(&thread.context);
}

void run_thread() {
  body();
  if (!threads[current].copies.empty()) fail("a thread ends before its copies");
  threads[current].done = true;
  for (;;) give_way();
}

/// Arrives at a meeting of `count` threads; returns its generation.
int arrive(int number, int count, bool condition) {
  Meeting& meeting = meetings[number];
  const int now = meeting.generation;
  meeting.any = meeting.any || condition;
  if (++meeting.arrived > count) fail("more threads at a barrier than it is for");
  if (meeting.arrived == count) {
    meeting.result = meeting.any;
    meeting.any = false;
    meeting.arrived = 0;
    ++meeting.generation;
    ++events;
  }
  return now;
}

void begin_threads(size_t shared_bytes) {
  shared_memory.assign(shared_bytes + kGuard, 0xff);
  shared = shared_memory.data();
  for (Meeting& meeting : meetings) meeting.arrived = 0;
  for (Warp& warp : warps) warp.arrived = 0;
  for (Team& team : teams) team.arrived = 0;
  if (beside.begin_block != nullptr) beside.begin_block();
  for (Thread& thread : threads) {
    thread.stack.resize(kStack);
    thread.copies.clear();
    thread.done = thread.begun = false;
    thread.group = 0;
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.data();
    thread.context.uc_stack.ss_size = thread.stack.size();
    makecontext(&thread.context, run_thread, 0);
  }
}

/// Runs a warp until all of it are at a barrier or at their end; whether it came further.
bool run_warp(int warp) {
  for (bool progress = false;; progress = true) {
    const unsigned before = warps[warp].generation;
    for (unsigned lane = 0; lane < 32; ++lane) {
      current = warp * 32 + lane;
      if (!threads[current].done) resume();
    }
    if (warps[warp].generation == before) return progress;
  }
}

void run_block(size_t shared_bytes, std::mt19937& random) {
  begin_threads(shared_bytes);
  std::vector<int> order(warps.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = (int)i;
  for (;;) {
    const int passed = events;
    std::shuffle(order.begin(), order.end(), random);
    bool progress = false;
    for (const int warp : order) progress = run_warp(warp) || progress;
    if (std::all_of(threads.begin(), threads.end(), [](const Thread& t) { return t.done; })) break;
    progress = progress || events != passed;
    if (beside.go_on != nullptr) progress = beside.go_on(!progress, random()) || progress;
    if (!progress) fail("threads wait for each other forever");
  }
  if (beside.end_block != nullptr) beside.end_block();
  for (size_t i = shared_bytes; i < shared_memory.size(); ++i)
    if (shared_memory[i] != 0xff) fail("a write beyond shared memory");
}

}  // namespace

void fail(const char* what, const char* more) {
  fprintf(stderr, "emulated device: %s %s (block %u, thread %u)\n", what, more, block, current);
  abort();
}

void give_way() {
  if (_setjmp(threads[current].place) == 0) _longjmp(scheduler, 1);
}

void run(void (*all)(), long long blocks, int count, size_t shared_bytes, unsigned seed) {
  body = all;
  std::mt19937 random(seed);
  threads.resize(count);
  warps.resize(count / 32);
  teams.resize(count / 32);
  block_count = (unsigned)blocks;
  std::vector<unsigned> turns(blocks);
  for (size_t i = 0; i < turns.size(); ++i) turns[i] = (unsigned)i;
  std::shuffle(turns.begin(), turns.end(), random);
  for (const unsigned turn : turns) {
    block = turn;
    run_block(shared_bytes, random);
  }
}

void begin_program(bool bf16, Encode how) {
  has_bf16 = bf16;
  encode = how;
}

unsigned short encoded(float value, bool bf16) { return encode(value, bf16); }

bool meet_at(int number, int count, bool condition) {
  const int now = arrive(number, count, condition);
  while (meetings[number].generation == now) give_way();
  return meetings[number].result;
}

void arrive_at(int number, int count) { arrive(number, count, false); }

bool meet_all(bool condition) { return meet_at(0, (int)threads.size(), condition); }

void team_meet(int team, int count) {
  const int now = teams[team].generation;
  if (++teams[team].arrived == count) {
    teams[team].arrived = 0;
    ++teams[team].generation;
    ++events;
  }
  while (teams[team].generation == now) give_way();
}

}  // namespace emulated

void cta_sync() { emulated::meet_all(false); }
