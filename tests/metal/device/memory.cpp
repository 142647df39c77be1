#include "memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "threads.hpp"

extern "C" void __asan_poison_memory_region(void const volatile*, size_t) __attribute__((weak));

namespace emulator {

constexpr size_t kGuard = size_t(64) << 20;

static size_t pages(size_t bytes) {
  size_t page = size_t(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Untouchable address space on both sides; the rest of the last page is poisoned, so that the first byte past the
// end counts.
Buffer allocate(size_t bytes, size_t granule, bool output) {
  size_t room = pages(bytes ? bytes : 1);
  void* space = mmap(nullptr, room + 2 * kGuard, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) fail("the emulator has no address space left for a buffer of %zu bytes", bytes);
  unsigned char* data = static_cast<unsigned char*>(space) + kGuard;
  if (mprotect(data, room, PROT_READ | PROT_WRITE)) fail("the emulator has no memory left for %zu bytes", bytes);
  if (__asan_poison_memory_region) __asan_poison_memory_region(data + bytes, room - bytes);
  return {data, bytes, granule, output};
}

void protect(const Buffer& input) { mprotect(input.data, pages(input.bytes ? input.bytes : 1), PROT_READ); }

Watch::Watch(const char* name, Space space, unsigned char* base, size_t bytes, size_t granule)
    : name_(name), space_(space), base_(uintptr_t(base)), bytes_(bytes), granule_(granule),
      cells_((bytes + granule - 1) / granule) {
  clear(0);
}

void Watch::clear(unsigned char fill) {
  if (bytes_) std::memset(reinterpret_cast<void*>(base_), fill, bytes_);
  for (Cell& each : cells_) each.has_write = each.has_read = false;
}

size_t Watch::unwritten() const {
  size_t index = 0;
  while (index < cells_.size() && cells_[index].has_write) ++index;
  return index;
}

bool Watch::before(const Moment& past, const Moment& now) const {
  if (past.thread == now.thread) return true;
  if (past.group != now.group) return false;
  if (past.group_epoch[space_] < now.group_epoch[space_]) return true;
  return past.simdgroup == now.simdgroup && past.simd_epoch[space_] < now.simd_epoch[space_];
}

void Watch::load(uintptr_t address, size_t size, const Moment& now) {
  for (size_t index = (address - base_) / granule_; index <= (address + size - 1 - base_) / granule_; ++index) {
    if (index >= cells_.size()) fail("out of bounds: a read past the end of %s", name_);
    Cell& it = cells_[index];
    if (!it.has_write)
      fail("unwritten: thread %ld read element %zu of %s before anything wrote it", long(now.thread), index, name_);
    if (!before(it.written, now))
      fail("race: thread %ld read element %zu of %s, which thread %ld wrote with no barrier between them",
           long(now.thread), index, name_, long(it.written.thread));
    bool fresh = !it.has_read || before(it.read, now);
    bool same_epoch = it.has_read && it.read.group_epoch[space_] == now.group_epoch[space_];
    it.many_readers = !fresh || (it.many_readers && same_epoch);
    it.many_simdgroups = it.many_readers && (it.read.simdgroup != now.simdgroup || it.many_simdgroups);
    it.has_read = true;
    it.read = now;
  }
}

void Watch::store(uintptr_t address, size_t size, const Moment& now) {
  for (size_t index = (address - base_) / granule_; index <= (address + size - 1 - base_) / granule_; ++index) {
    if (index >= cells_.size()) fail("out of bounds: a write past the end of %s", name_);
    Cell& it = cells_[index];
    if (it.has_write && space_ == kDevice && it.written.thread != now.thread)
      fail("written twice: threads %ld and %ld both wrote element %zu of %s",
           long(it.written.thread), long(now.thread), index, name_);
    if (it.has_write && !before(it.written, now))
      fail("race: threads %ld and %ld both wrote element %zu of %s with no barrier between them",
           long(it.written.thread), long(now.thread), index, name_);
    if (it.has_read) {
      bool ordered = it.many_readers && it.read.group_epoch[space_] == now.group_epoch[space_]
                         ? !it.many_simdgroups && it.read.simdgroup == now.simdgroup &&
                               it.read.simd_epoch[space_] < now.simd_epoch[space_]
                         : before(it.read, now);
      if (!ordered)
        fail("race: thread %ld wrote element %zu of %s, which thread %ld read with no barrier between them",
             long(now.thread), index, name_, long(it.read.thread));
    }
    it.has_write = true;
    it.written = now;
  }
}

}  // namespace emulator
