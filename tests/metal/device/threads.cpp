// Runs one kernel launch: every thread of the grid as a fiber, in lockstep between the places where threads meet.
//
// stdin: a plan of 64-bit words (grid, threadgroup, seeds of the orders, sampled threadgroups, buffers), then the
// inputs. stdout: the outputs. Any fault is one line on stderr and exit status 3 (the sanitizers use their own).
#include "threads.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "fibers.hpp"
#include "memory.hpp"

extern "C" unsigned char __start_threadgroup_memory[] __attribute__((weak));
extern "C" unsigned char __stop_threadgroup_memory[] __attribute__((weak));

namespace emulator {

constexpr size_t kStackBytes = 256 << 10;
constexpr size_t kThreadgroupLimitBytes = 32 << 10;

enum class State { kReady, kAtSimdgroup, kAtThreadgroup, kDone };

struct Thread {
  Fiber fiber;
  State state;
  const char* operation;
  int fence, sets;
  Position position;
  Moment moment;
};

static std::vector<Thread> threads;
static std::vector<Simdgroup> simdgroups;
static std::vector<Watch> watches;  // outputs, then threadgroup memory if the kernel has any
static std::vector<Buffer> buffers;
static std::vector<void*> arguments;
static Thread* self = nullptr;
static void* scheduler = nullptr;
static unsigned char fill = 0xA5;

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::fputs("emulator: ", stderr);
  std::vfprintf(stderr, format, arguments);
  std::fputc('\n', stderr);
  std::_Exit(3);
}

Simdgroup& simdgroup() { return simdgroups[self->position.simdgroup_index_in_threadgroup[0]]; }
int lane() { return int(self->position.thread_index_in_simdgroup[0]); }
int next_slot_set() { return self->sets++ & 1; }
unsigned char garbage() { return fill; }

static void wait(State state, const char* operation, int fence) {
  self->state = state;
  self->operation = operation;
  self->fence = fence;
  self->fiber.leave(scheduler);
}

void meet_simdgroup(const char* operation, int fence) { wait(State::kAtSimdgroup, operation, fence); }
void meet_threadgroup(int fence) { wait(State::kAtThreadgroup, "threadgroup_barrier", fence); }

static void run_thread() {
  emulator_call(arguments.data(), self->position);
  wait(State::kDone, "the end", 0);
  std::abort();
}

static void advance(uint32_t epochs[2], int fence) {
  if (fence & 1) ++epochs[kDevice];
  if (fence & 2) ++epochs[kThreadgroup];
}

// Runs the lanes of one simd-group until all of them are done or wait at a threadgroup barrier.
static void run_simdgroup(const std::vector<int>& order) {
  for (;;) {
    for (int index : order) {
      self = &threads[index];
      if (self->state == State::kReady) self->fiber.resume(&scheduler);
    }
    Thread& first = threads[order[0]];
    for (int index : order) {
      Thread& other = threads[index];
      if (other.state != first.state || other.operation != first.operation)
        fail("divergence: threads of one simd-group wait at %s and at %s", first.operation, other.operation);
    }
    if (first.state != State::kAtSimdgroup) return;
    for (int index : order) {
      advance(threads[index].moment.simd_epoch, threads[index].fence);
      threads[index].state = State::kReady;
    }
  }
}

static void run_threadgroup(const std::vector<std::vector<int>>& orders) {
  for (;;) {
    for (const auto& order : orders) run_simdgroup(order);
    State state = threads[orders[0][0]].state;
    for (const auto& order : orders)
      if (threads[order[0]].state != state)
        fail("barrier: not all threads of the threadgroup reach a threadgroup_barrier");
    if (state == State::kDone) return;
    for (const auto& order : orders)
      for (int index : order) {
        advance(threads[index].moment.group_epoch, threads[index].fence);
        threads[index].state = State::kReady;
      }
  }
}

// How threads are ordered: 0 forwards, 1 backwards, anything else shuffled by that seed.
static void arrange(std::vector<int>& items, uint64_t seed) {
  if (seed == 1) std::reverse(items.begin(), items.end());
  if (seed > 1) {
    std::mt19937_64 random(seed);
    std::shuffle(items.begin(), items.end(), random);
  }
}

struct Plan {
  uint32_t grid[3], group[3];
  std::vector<uint64_t> seeds, sample;
};

static std::vector<std::vector<int>> place_threads(const Plan& plan, uint64_t group_index, uint64_t seed,
                                                   unsigned char* stacks) {
  uint32_t groups[3], at[3], size[3];
  for (int axis = 0; axis < 3; ++axis) groups[axis] = (plan.grid[axis] + plan.group[axis] - 1) / plan.group[axis];
  at[0] = group_index % groups[0];
  at[1] = group_index / groups[0] % groups[1];
  at[2] = group_index / groups[0] / groups[1];
  for (int axis = 0; axis < 3; ++axis)
    size[axis] = std::min(plan.group[axis], plan.grid[axis] - at[axis] * plan.group[axis]);
  int count = int(size[0] * size[1] * size[2]);
  int simds = (count + kLanes - 1) / kLanes;
  int full = int(plan.group[0] * plan.group[1] * plan.group[2]);
  threads.resize(count);
  simdgroups.resize(simds);
  std::vector<std::vector<int>> members(simds);
  for (int index = 0; index < count; ++index) {
    Thread& it = threads[index];
    Position& p = it.position;
    p = {};
    uint32_t inside[3] = {index % size[0], index / size[0] % size[1], index / size[0] / size[1]};
    for (int axis = 0; axis < 3; ++axis) {
      p.thread_position_in_threadgroup[axis] = inside[axis];
      p.threadgroup_position_in_grid[axis] = at[axis];
      p.thread_position_in_grid[axis] = at[axis] * plan.group[axis] + inside[axis];
      p.threads_per_grid[axis] = plan.grid[axis];
      p.threads_per_threadgroup[axis] = size[axis];
      p.threadgroups_per_grid[axis] = groups[axis];
    }
    p.thread_index_in_threadgroup[0] = index;
    p.thread_index_in_simdgroup[0] = index % kLanes;
    p.simdgroup_index_in_threadgroup[0] = index / kLanes;
    p.simdgroups_per_threadgroup[0] = simds;
    p.threads_per_simdgroup[0] = kLanes;
    it.state = State::kReady;
    it.sets = 0;
    it.moment = {int64_t(group_index) * full + index, int64_t(group_index) * (full / kLanes + 1) + index / kLanes,
                 int64_t(group_index), {0, 0}, {0, 0}};
    it.fiber.start(stacks + size_t(index) * kStackBytes, kStackBytes, run_thread);
    members[index / kLanes].push_back(index);
  }
  std::vector<int> order(simds);
  std::iota(order.begin(), order.end(), 0);
  arrange(order, seed);
  std::vector<std::vector<int>> arranged;
  for (int simd : order) {
    simdgroups[simd].lanes = int(members[simd].size());
    arrange(members[simd], seed ? seed + (seed > 1 ? simd : 0) : 0);
    arranged.push_back(members[simd]);
  }
  return arranged;
}

static void run_grid(const Plan& plan, uint64_t seed, size_t outputs, unsigned char* stacks) {
  uint64_t total = 1;
  for (int axis = 0; axis < 3; ++axis) total *= (plan.grid[axis] + plan.group[axis] - 1) / plan.group[axis];
  std::vector<int> order(plan.sample.begin(), plan.sample.end());
  if (order.empty()) {
    order.resize(total);
    std::iota(order.begin(), order.end(), 0);
  }
  arrange(order, seed);
  fill = seed ? 0x5A : 0xA5;
  for (size_t index = 0; index < outputs; ++index) watches[index].clear(fill);
  for (int group : order) {
    for (size_t index = outputs; index < watches.size(); ++index) watches[index].clear(fill);
    run_threadgroup(place_threads(plan, group, seed, stacks));
  }
}

static uint64_t word() {
  uint64_t value;
  if (std::fread(&value, sizeof value, 1, stdin) != 1) fail("the plan ends early");
  return value;
}

static int run_plan() {
  Plan plan;
  for (uint32_t& size : plan.grid) size = word();
  for (uint32_t& size : plan.group) size = word();
  plan.seeds.resize(word());
  for (uint64_t& seed : plan.seeds) seed = word();
  plan.sample.resize(word());
  for (uint64_t& group : plan.sample) group = word();
  for (size_t count = word(); count; --count) {
    uint64_t output = word(), bytes = word(), granule = word();
    buffers.push_back(allocate(bytes, granule, output));
    arguments.push_back(buffers.back().data);
  }
  for (const Buffer& buffer : buffers) {
    if (buffer.output) {
      std::string* name = new std::string("output " + std::to_string(watches.size()));
      watches.emplace_back(name->c_str(), kDevice, buffer.data, buffer.bytes, buffer.granule);
      continue;
    }
    if (std::fread(buffer.data, 1, buffer.bytes, stdin) != buffer.bytes) fail("the inputs end early");
    protect(buffer);
  }
  size_t outputs = watches.size();
  size_t shared = __start_threadgroup_memory ? size_t(__stop_threadgroup_memory - __start_threadgroup_memory) : 0;
  if (shared > kThreadgroupLimitBytes) fail("threadgroup memory is %zu bytes: a threadgroup has 32768", shared);
  if (shared)
    watches.emplace_back("threadgroup memory (2-byte units)", kThreadgroup, __start_threadgroup_memory, shared, 2);

  size_t most = size_t(plan.group[0]) * plan.group[1] * plan.group[2];
  if (most > 1024) fail("a threadgroup of %zu threads: 1024 is the most", most);
  void* stacks = mmap(nullptr, most * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) fail("the emulator has no memory left for %zu stacks", most);

  std::vector<std::vector<unsigned char>> first;
  for (size_t run = 0; run < plan.seeds.size(); ++run) {
    run_grid(plan, plan.seeds[run], outputs, static_cast<unsigned char*>(stacks));
    size_t output = 0;
    for (const Buffer& buffer : buffers) {
      if (!buffer.output) continue;
      size_t missing = watches[output].unwritten();
      if (plan.sample.empty() && missing * buffer.granule < buffer.bytes)
        fail("unwritten: element %zu of output %zu was never written", missing, output);
      if (run == 0) first.emplace_back(buffer.data, buffer.data + buffer.bytes);
      else if (plan.sample.empty() && std::memcmp(first[output].data(), buffer.data, buffer.bytes))
        fail("order: output %zu changes with the order in which threads run", output);
      ++output;
    }
  }
  for (const auto& result : first) std::fwrite(result.data(), 1, result.size(), stdout);
  return std::fflush(stdout) ? 1 : 0;
}

}  // namespace emulator

// The compiler calls these before every load and store of the kernel.
#define EMULATOR_TRACE(bytes)                                                          \
  extern "C" void __sanitizer_cov_load##bytes(void* address) {                         \
    for (auto& watch : emulator::watches)                                              \
      if (watch.holds(uintptr_t(address))) watch.load(uintptr_t(address), bytes, emulator::self->moment);  \
  }                                                                                    \
  extern "C" void __sanitizer_cov_store##bytes(void* address) {                        \
    for (auto& watch : emulator::watches)                                              \
      if (watch.holds(uintptr_t(address))) watch.store(uintptr_t(address), bytes, emulator::self->moment); \
  }
EMULATOR_TRACE(1)
EMULATOR_TRACE(2)
EMULATOR_TRACE(4)
EMULATOR_TRACE(8)
EMULATOR_TRACE(16)

int main() { return emulator::run_plan(); }
