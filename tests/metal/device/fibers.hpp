// One thread of the emulated GPU as a fiber of the CPU: its own stack, switched by hand.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" void emulator_switch(void** save, void* resume);

#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
constexpr size_t kEntryWord = 6;
constexpr size_t kFrameWords = 8;  // leaves the stack as a call would: 16-byte aligned before the return address
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
emulator_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
constexpr size_t kEntryWord = 11;
constexpr size_t kFrameWords = 20;
#else
#error "the emulator's fibers are written for x86-64 and arm64"
#endif

class Fiber {
 public:
  void start(unsigned char* stack, size_t bytes, void (*entry)()) {
    void** frame = reinterpret_cast<void**>(stack + bytes) - kFrameWords;
    for (size_t i = 0; i < kFrameWords; ++i) frame[i] = nullptr;
    frame[kEntryWord] = reinterpret_cast<void*>(entry);
    stack_pointer_ = frame;
  }
  void resume(void** caller) { emulator_switch(caller, stack_pointer_); }
  void leave(void* caller) { emulator_switch(&stack_pointer_, caller); }

 private:
  void* stack_pointer_ = nullptr;
};
