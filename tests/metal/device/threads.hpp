// What kernel code sees of the emulated GPU: who it is, where it meets the other threads. Defined in threads.cpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace emulator {

constexpr int kLanes = 32;
constexpr int kSlotBytes = 16;

struct Position {
  uint32_t thread_position_in_grid[3], thread_position_in_threadgroup[3], threadgroup_position_in_grid[3];
  uint32_t threads_per_grid[3], threads_per_threadgroup[3], threadgroups_per_grid[3];
  uint32_t thread_index_in_threadgroup[3], thread_index_in_simdgroup[3], simdgroup_index_in_threadgroup[3];
  uint32_t simdgroups_per_threadgroup[3], threads_per_simdgroup[3];
};

// One rendezvous of a simd-group leaves every lane's value in `slots`; two sets alternate, so that a fast lane
// cannot overwrite what a slow one has yet to read.
struct Simdgroup {
  unsigned char slots[2][kLanes][kSlotBytes];
  int lanes;
};

Simdgroup& simdgroup();
int lane();
int next_slot_set();
void meet_simdgroup(const char* operation, int fence);
void meet_threadgroup(int fence);
unsigned char garbage();
[[noreturn]] void fail(const char* format, ...);

template <typename T>
class Exchange {
 public:
  Exchange(const char* operation, T value) : set_(next_slot_set()) {
    static_assert(sizeof(T) <= kSlotBytes, "a simd-group exchanges values of up to 16 bytes");
    std::memcpy(simdgroup().slots[set_][lane()], &value, sizeof(T));
    meet_simdgroup(operation, 0);
  }
  bool has(int from) const { return from >= 0 && from < simdgroup().lanes; }
  T at(int from) const {
    T value;
    if (has(from)) std::memcpy(&value, simdgroup().slots[set_][from], sizeof(T));
    else std::memset(static_cast<void*>(&value), garbage(), sizeof(T));
    return value;
  }

 private:
  int set_;
};

}  // namespace emulator

// The generated launcher: calls the kernel once, for one thread.
void emulator_call(void* const* buffers, const emulator::Position& position);
