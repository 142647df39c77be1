// The emulated GPU's memory: guarded buffers, and a shadow that knows who touched what since which barrier.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace emulator {

// A moment of one thread: where it is among the barriers that order device (0) and threadgroup (1) memory.
struct Moment {
  int64_t thread, simdgroup, group;  // numbered over the whole grid
  uint32_t group_epoch[2], simd_epoch[2];
};

enum Space { kDevice = 0, kThreadgroup = 1 };

struct Buffer {
  unsigned char* data;
  size_t bytes, granule;
  bool output;
};

Buffer allocate(size_t bytes, size_t granule, bool output);
void protect(const Buffer& input);

// Watches one stretch of writable memory. `granule` is the size of an element.
class Watch {
 public:
  Watch(const char* name, Space space, unsigned char* base, size_t bytes, size_t granule);
  bool holds(uintptr_t address) const { return address - base_ < bytes_; }
  void load(uintptr_t address, size_t size, const Moment& now);
  void store(uintptr_t address, size_t size, const Moment& now);
  void clear(unsigned char fill);
  size_t unwritten() const;  // index of the first element never written, or the number of elements

 private:
  struct Cell {
    Moment written, read;
    bool has_write, has_read, many_readers, many_simdgroups;
  };
  bool before(const Moment& past, const Moment& now) const;
  Cell& cell(size_t index) { return cells_[index]; }

  const char* name_;
  Space space_;
  uintptr_t base_;
  size_t bytes_, granule_;
  std::vector<Cell> cells_;
};

}  // namespace emulator
