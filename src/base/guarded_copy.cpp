// The guarded code and its fault handler: see guarded_copy.hpp.
#include "base/guarded_copy.hpp"

#include <signal.h>
#include <sys/uio.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/per_process.hpp"

#if defined(__SANITIZE_THREAD__)
#define APERTURE_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define APERTURE_TSAN
#endif
#endif

namespace aperture {

namespace {

constexpr size_t kPage = 4096;  // the smallest there is; smaller steps than needed do no harm

// Leaf functions that keep nothing on the stack and only use registers that a call may change:
// wherever a fault stops them, they can be left through aperture_guarded_fault, which returns 1 to
// the caller. Two moves that may overlap in their middle stand for each range of lengths, as in
// copy.hpp.
#if defined(__x86_64__)
#define APERTURE_GUARDED_CODE

asm(R"(
        .pushsection .text.aperture_guarded, "ax", @progbits
        .p2align 6
        .hidden aperture_guarded_begin, aperture_guarded_end, aperture_guarded_fault
        .hidden aperture_guarded_copy, aperture_guarded_read, aperture_guarded_write
        .globl  aperture_guarded_begin, aperture_guarded_end, aperture_guarded_fault
        .globl  aperture_guarded_copy, aperture_guarded_read, aperture_guarded_write
aperture_guarded_begin:
        .type   aperture_guarded_copy, @function
aperture_guarded_copy:                          # rdi: to, rsi: from, rdx: bytes
        cmpq    $8, %rdx
        jb      2f
        cmpq    $16, %rdx
        ja      1f
        movq    (%rsi), %rax
        movq    -8(%rsi,%rdx), %rcx
        movq    %rax, (%rdi)
        movq    %rcx, -8(%rdi,%rdx)
        xorl    %eax, %eax
        ret
1:      cmpq    $32, %rdx
        ja      5f
        movups  (%rsi), %xmm0
        movups  -16(%rsi,%rdx), %xmm1
        movups  %xmm0, (%rdi)
        movups  %xmm1, -16(%rdi,%rdx)
        xorl    %eax, %eax
        ret
2:      cmpq    $4, %rdx
        jb      3f
        movl    (%rsi), %eax
        movl    -4(%rsi,%rdx), %ecx
        movl    %eax, (%rdi)
        movl    %ecx, -4(%rdi,%rdx)
        xorl    %eax, %eax
        ret
3:      testq   %rdx, %rdx
        jz      4f
        movzbl  (%rsi), %eax
        movzbl  -1(%rsi,%rdx), %ecx
        movb    %al, (%rdi)
        movb    %cl, -1(%rdi,%rdx)
        cmpq    $3, %rdx
        jb      4f
        movzbl  1(%rsi), %eax
        movb    %al, 1(%rdi)
4:      xorl    %eax, %eax
        ret
5:      leaq    -64(%rsi,%rdx), %r8             # the last 64 bytes, or all that there are
        leaq    -64(%rdi,%rdx), %r9
        cmpq    $64, %rdx
        jbe     7f
        cmpq    $2048, %rdx                     # from there on the CPU's own copy is the fastest
        jae     8f
6:      movups  (%rsi), %xmm0
        movups  16(%rsi), %xmm1
        movups  32(%rsi), %xmm2
        movups  48(%rsi), %xmm3
        movups  %xmm0, (%rdi)
        movups  %xmm1, 16(%rdi)
        movups  %xmm2, 32(%rdi)
        movups  %xmm3, 48(%rdi)
        addq    $64, %rsi
        addq    $64, %rdi
        cmpq    %r8, %rsi
        jb      6b
        movups  (%r8), %xmm0
        movups  16(%r8), %xmm1
        movups  32(%r8), %xmm2
        movups  48(%r8), %xmm3
        movups  %xmm0, (%r9)
        movups  %xmm1, 16(%r9)
        movups  %xmm2, 32(%r9)
        movups  %xmm3, 48(%r9)
        xorl    %eax, %eax
        ret
7:      movups  (%rsi), %xmm0                   # 33 to 64
        movups  16(%rsi), %xmm1
        movups  32(%r8), %xmm2
        movups  48(%r8), %xmm3
        movups  %xmm0, (%rdi)
        movups  %xmm1, 16(%rdi)
        movups  %xmm2, 32(%r9)
        movups  %xmm3, 48(%r9)
        xorl    %eax, %eax
        ret
8:      movq    %rdx, %rcx
        rep movsb
        xorl    %eax, %eax
        ret
        .type   aperture_guarded_read, @function
aperture_guarded_read:                          # rdi: at
        movzbl  (%rdi), %eax
        xorl    %eax, %eax
        ret
        .type   aperture_guarded_write, @function
aperture_guarded_write:                         # rdi: at; changes nothing, whoever else writes
        lock orb $0, (%rdi)
        xorl    %eax, %eax
        ret
        .type   aperture_guarded_fault, @function
aperture_guarded_fault:
        movl    $1, %eax
        ret
aperture_guarded_end:
        .popsection
)");

uintptr_t place_of_fault(const ucontext_t& at) noexcept {
  return static_cast<uintptr_t>(at.uc_mcontext.gregs[REG_RIP]);
}
void go_on_at(ucontext_t& at, const char* place) noexcept {
  at.uc_mcontext.gregs[REG_RIP] = reinterpret_cast<greg_t>(place);
}

#elif defined(__aarch64__)
#define APERTURE_GUARDED_CODE

// A data abort is precise: the context names the load or store itself. `hint #34` is `bti c`, a
// no-op where the CPU does not check where calls land; nothing is signed, since nothing is saved.
asm(R"(
        .pushsection .text.aperture_guarded, "ax", %progbits
        .p2align 6
        .hidden aperture_guarded_begin, aperture_guarded_end, aperture_guarded_fault
        .hidden aperture_guarded_copy, aperture_guarded_read, aperture_guarded_write
        .globl  aperture_guarded_begin, aperture_guarded_end, aperture_guarded_fault
        .globl  aperture_guarded_copy, aperture_guarded_read, aperture_guarded_write
aperture_guarded_begin:
        .type   aperture_guarded_copy, %function
aperture_guarded_copy:                          // x0: to, x1: from, x2: bytes
        hint    #34
        add     x4, x1, x2                      // where both end
        add     x5, x0, x2
        cmp     x2, #8
        b.lo    2f
        cmp     x2, #16
        b.hi    1f
        ldr     x6, [x1]
        ldr     x7, [x4, #-8]
        str     x6, [x0]
        str     x7, [x5, #-8]
        mov     w0, #0
        ret
1:      cmp     x2, #32
        b.hi    5f
        ldr     q0, [x1]
        ldr     q1, [x4, #-16]
        str     q0, [x0]
        str     q1, [x5, #-16]
        mov     w0, #0
        ret
2:      cmp     x2, #4
        b.lo    3f
        ldr     w6, [x1]
        ldr     w7, [x4, #-4]
        str     w6, [x0]
        str     w7, [x5, #-4]
        mov     w0, #0
        ret
3:      cbz     x2, 4f
        ldrb    w6, [x1]
        ldrb    w7, [x4, #-1]
        strb    w6, [x0]
        strb    w7, [x5, #-1]
        cmp     x2, #3
        b.lo    4f
        ldrb    w6, [x1, #1]
        strb    w6, [x0, #1]
4:      mov     w0, #0
        ret
5:      cmp     x2, #64
        b.ls    7f
        sub     x4, x4, #64                     // the last 64 bytes
        sub     x5, x5, #64
6:      ldp     q0, q1, [x1]
        ldp     q2, q3, [x1, #32]
        stp     q0, q1, [x0]
        stp     q2, q3, [x0, #32]
        add     x1, x1, #64
        add     x0, x0, #64
        cmp     x1, x4
        b.lo    6b
        ldp     q0, q1, [x4]
        ldp     q2, q3, [x4, #32]
        stp     q0, q1, [x5]
        stp     q2, q3, [x5, #32]
        mov     w0, #0
        ret
7:      ldp     q0, q1, [x1]                    // 33 to 64
        ldp     q2, q3, [x4, #-32]
        stp     q0, q1, [x0]
        stp     q2, q3, [x5, #-32]
        mov     w0, #0
        ret
        .type   aperture_guarded_read, %function
aperture_guarded_read:                          // x0: at
        hint    #34
        ldrb    w1, [x0]
        mov     w0, #0
        ret
        .type   aperture_guarded_write, %function
aperture_guarded_write:                         // x0: at; changes nothing, whoever else writes
        hint    #34
1:      ldxrb   w1, [x0]
        stxrb   w2, w1, [x0]
        cbnz    w2, 1b
        mov     w0, #0
        ret
        .type   aperture_guarded_fault, %function
aperture_guarded_fault:
        mov     w0, #1
        ret
aperture_guarded_end:
        .popsection
)");

uintptr_t place_of_fault(const ucontext_t& at) noexcept {
  return at.uc_mcontext.pc;
}
void go_on_at(ucontext_t& at, const char* place) noexcept {
  at.uc_mcontext.pc = reinterpret_cast<uintptr_t>(place);
}

#endif

#if defined(APERTURE_GUARDED_CODE)

extern "C" {
extern const char aperture_guarded_begin[];
extern const char aperture_guarded_end[];
extern const char aperture_guarded_fault[];
int aperture_guarded_copy(void* to, const void* from, size_t n);
int aperture_guarded_read(const void* at);
int aperture_guarded_write(void* at);
#if defined(APERTURE_TSAN)
// the race detector sees no assembly
void __tsan_read_range(const void* at, unsigned long n);
void __tsan_write_range(void* at, unsigned long n);
#endif
}

bool leave_guarded_code(void* context) noexcept {
  auto& stopped = *static_cast<ucontext_t*>(context);
  const uintptr_t at = place_of_fault(stopped);
  if (at < reinterpret_cast<uintptr_t>(aperture_guarded_begin) ||
      at >= reinterpret_cast<uintptr_t>(aperture_guarded_end)) {
    return false;
  }
  go_on_at(stopped, aperture_guarded_fault);
  return true;
}

#endif

struct Former {
  int signal;
  struct sigaction action;
};
Former g_former[] = {{SIGSEGV, {}}, {SIGBUS, {}}};

// A fault that is not ours: as if we were not here.
void hand_on(const Former& former, int signal, siginfo_t* info, void* context) noexcept {
  const struct sigaction& before = former.action;
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler == SIG_DFL) {
    // back to the faulting instruction, which then ends the process in its own name; a signal that
    // somebody sent has to be sent once more
    ::sigaction(signal, &before, nullptr);
    if (info->si_code <= 0) ::raise(signal);
  } else if (before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  }
}

void on_fault(int signal, siginfo_t* info, void* context) {
#if defined(APERTURE_GUARDED_CODE)
  if (leave_guarded_code(context)) return;
#endif
  for (const Former& former : g_former) {
    if (former.signal == signal) hand_on(former, signal, info, context);
  }
}

}  // namespace

void install_fault_guard() noexcept {
  static constinit FoundOnce<bool> installed;
  installed.get([] {
    struct sigaction action {};
    action.sa_sigaction = on_fault;
    // on the alternate stack where there is one: a fault that we hand on may be a full stack
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    ::sigemptyset(&action.sa_mask);
    for (Former& former : g_former) ::sigaction(former.signal, &action, &former.action);
    return true;
  });
}

#if defined(APERTURE_GUARDED_CODE)

bool guarded_copy(void* to, const void* from, size_t n) noexcept {
#if defined(APERTURE_TSAN)
  __tsan_read_range(from, n);
  __tsan_write_range(to, n);
#endif
  return aperture_guarded_copy(to, from, n) == 0;
}

bool guarded_touch(void* at, size_t n, bool for_writing) noexcept {
  auto* byte = static_cast<char*>(at);
  for (char* const end = byte + n; byte < end;
       byte += kPage - reinterpret_cast<uintptr_t>(byte) % kPage) {
    if ((for_writing ? aperture_guarded_write(byte) : aperture_guarded_read(byte)) != 0) {
      return false;
    }
  }
  return true;
}

#else

// The kernel copies, and says where it cannot.
bool guarded_copy(void* to, const void* from, size_t n) noexcept {
  const iovec local{to, n};
  const iovec remote{const_cast<void*>(from), n};
  return n == 0 ||
         ::process_vm_readv(::getpid(), &local, 1, &remote, 1, 0) == static_cast<ssize_t>(n);
}

bool guarded_touch(void* at, size_t n, bool for_writing) noexcept {
  char byte;
  auto* here = static_cast<char*>(at);
  for (char* const end = here + n; here < end;
       here += kPage - reinterpret_cast<uintptr_t>(here) % kPage) {
    if (!guarded_copy(&byte, here, 1)) return false;
    if (for_writing && !guarded_copy(here, &byte, 1)) return false;
  }
  return true;
}

#endif

}  // namespace aperture
