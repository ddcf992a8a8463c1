// Runs the text of plain CUDA kernels on a processor, for tests without a GPU. Threads of a block are fibers of one thread;
// blocks run one after another. Covers barriers, static and dynamic shared memory, shuffles and votes of whole warps, integer
// atomics and the usual functions; not wgmma, TMA, clusters or textures.
#pragma once
#define EMU 1
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __restrict__
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))

struct dim3 { unsigned x = 1, y = 1, z = 1; };
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace emu {
constexpr int SHARE = 16;
struct Barrier { unsigned live = 0, arrived = 0; unsigned long generation = 0; };
struct Warp { Barrier barrier; uint32_t slots[2][32 * SHARE]; };
struct Fiber { jmp_buf at; char* stack; bool done; };
constexpr size_t STACK = 128 << 10;

struct Block {
  std::vector<Fiber> fibers; std::vector<Warp> warps; std::vector<uint64_t> dynamic;
  Barrier barrier; jmp_buf home; unsigned count = 0, now = 0, idle = 0; int vote = 0;
  void (*body)(void*) = nullptr; void* argument = nullptr;
  ~Block() { for (Fiber& f : fibers) delete[] f.stack; }
};
inline thread_local Block* block;

inline Warp& warp() { return block->warps[threadIdx.x / 32]; }
inline unsigned char* dynamic() { return (unsigned char*)block->dynamic.data(); }

[[noreturn]] inline void go_to(unsigned index) {
  block->now = index; threadIdx.x = index;
  _longjmp(block->fibers[index].at, 1);
}
[[noreturn]] inline void next() {
  for (unsigned i = block->now + 1; i < block->count; i++) if (!block->fibers[i].done) go_to(i);
  for (unsigned i = 0; i <= block->now; i++) if (!block->fibers[i].done) go_to(i);
  _longjmp(block->home, 1);
}
inline __attribute__((noinline)) void yield() {
  if (++block->idle > 8 * block->count + 64) {
    std::fprintf(stderr, "emulation: threads of a block wait for each other for ever\n");
    std::abort();
  }
  if (!_setjmp(block->fibers[block->now].at)) next();
}
inline void release(Barrier& b) { b.arrived = 0; b.generation++; block->idle = 0; }
inline void wait(Barrier& b) {
  const unsigned long generation = b.generation;
  if (++b.arrived >= b.live) release(b);
  else while (*(volatile unsigned long*)&b.generation == generation) yield();
}
inline void leave(Barrier& b) { if (--b.live && b.arrived >= b.live) release(b); }
// A fiber waits for a block, runs its thread of it, and waits for the next.
inline void run() {
  for (;;) {
    if (!_setjmp(block->fibers[block->now].at)) {
      // Made, or done with a block.
      if (!block->fibers[block->now].done) _longjmp(block->home, 1);
      next();
    }
    block->body(block->argument);
    block->fibers[block->now].done = true;
    block->idle = 0;
    leave(warp().barrier);
    leave(block->barrier);
  }
}
inline void begin(unsigned index) {
  Fiber& f = block->fibers[index];
  f.stack = new char[STACK];
  f.done = false;
  if (_setjmp(block->home)) return;
  block->now = index;
  ucontext_t start;
  getcontext(&start);
  start.uc_stack.ss_sp = f.stack; start.uc_stack.ss_size = STACK; start.uc_link = nullptr;
  makecontext(&start, (void (*)())run, 0);
  setcontext(&start);
  std::abort();
}

// The words that all lanes of the warp give, SHARE a lane.
inline const uint32_t* share(const uint32_t* mine, int words) {
  Warp& w = warp();
  uint32_t* slots = w.slots[w.barrier.generation & 1];
  std::memcpy(slots + threadIdx.x % 32 * SHARE, mine, words * 4);
  wait(w.barrier);
  return slots;
}
template <class T> T of_lane(T value, unsigned lane) {
  uint32_t mine[2] = {0, 0};
  std::memcpy(mine, &value, sizeof(T));
  const uint32_t* all = share(mine, 2);
  std::memcpy(&value, all + lane % 32 * SHARE, sizeof(T));
  return value;
}

// Calls `kernel(args...)` for every thread of the grid.
inline void launch(dim3 grid, unsigned threads, size_t shared, void (*body)(void*), void* argument) {
  static thread_local Block storage;
  block = &storage;
  storage.body = body; storage.argument = argument;
  storage.dynamic.assign((shared + 15) / 8, 0x7ff47ff47ff47ff4ull);
  storage.count = threads;
  if (storage.fibers.size() < threads) {
    const unsigned had = storage.fibers.size();
    storage.fibers.resize(threads);
    for (unsigned i = had; i < threads; i++) begin(i);
  }
  storage.warps.resize((threads + 31) / 32);
  gridDim = grid; blockDim = {threads, 1, 1};
  for (unsigned y = 0; y < grid.y; y++) for (unsigned x = 0; x < grid.x; x++) {
    blockIdx = {x, y, 0};
    storage.barrier = Barrier(); storage.barrier.live = threads; storage.idle = 0; storage.vote = 0;
    for (unsigned w = 0; w < storage.warps.size(); w++) {
      storage.warps[w].barrier = Barrier();
      storage.warps[w].barrier.live = std::min(32u, threads - 32 * w);
    }
    for (unsigned i = 0; i < threads; i++) storage.fibers[i].done = false;
    if (!_setjmp(storage.home)) { storage.now = 0; go_to(0); }
  }
}

// The kinds of a kernel's parameters: p address, l 64-bit, i 32-bit, f float, and sizes of structures as letters from A on
// (A: 8 bytes, B: 16, ...).
template <class T> constexpr char kind() {
  if constexpr (std::is_pointer_v<T>) return 'p';
  else if constexpr (std::is_same_v<T, float>) return 'f';
  else if constexpr (std::is_integral_v<T>) return sizeof(T) == 8 ? 'l' : 'i';
  else return (char)('A' + sizeof(T) / 8 - 1);
}
struct Call { void** args; void (*run)(Call*); void* kernel; };
template <class... A, size_t... I> void apply(void (*kernel)(A...), void** args, std::index_sequence<I...>) {
  kernel(*(A*)args[I]...);
}
template <class... A> void call(void (*kernel)(A...), dim3 grid, unsigned threads, size_t shared, void** args) {
  struct Bound { void (*kernel)(A...); void** args; } bound = {kernel, args};
  launch(grid, threads, shared, [](void* p) { Bound* b = (Bound*)p; apply(b->kernel, b->args, std::index_sequence_for<A...>()); }, &bound);
}

// A kernel as it is listed for launches: its name, the threads it is compiled for, its parameters' sizes and kinds.
struct Entry { const char* name; unsigned threads, count; unsigned sizes[32]; char kinds[32]; void (*run)(unsigned, unsigned, unsigned, size_t, void**); };
template <class... A> constexpr Entry sized(const char* name, unsigned threads, void (*)(A...)) {
  return {name, threads, sizeof...(A), {sizeof(A)...}, {kind<A>()...}, nullptr};
}
template <auto kernel> constexpr Entry entry(const char* name, unsigned threads) {
  Entry e = sized(name, threads, kernel);
  e.run = [](unsigned x, unsigned y, unsigned threads, size_t shared, void** args) { call(kernel, {x, y, 1}, threads, shared, args); };
  return e;
}
}

inline void __syncthreads() { emu::wait(emu::block->barrier); }
inline void __syncwarp() { emu::wait(emu::warp().barrier); }
inline int __syncthreads_or(int value) {
  emu::block->vote |= value != 0;
  __syncthreads();
  const int result = emu::block->vote;
  __syncthreads();
  emu::block->vote = 0;
  __syncthreads();
  return result;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int o) { return emu::of_lane(v, (threadIdx.x % 32) ^ o); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return emu::of_lane(v, lane); }
template <class T> T __shfl_down_sync(unsigned, T v, int o) { return emu::of_lane(v, std::min(threadIdx.x % 32 + o, 31u)); }
inline unsigned __ballot_sync(unsigned, int value) {
  const uint32_t mine = value != 0;
  const unsigned lanes = std::min(32u, blockDim.x - threadIdx.x / 32 * 32);
  const uint32_t* all = emu::share(&mine, 1);
  unsigned bits = 0;
  for (unsigned i = 0; i < lanes; i++) bits |= all[i * emu::SHARE] << i;
  return bits;
}
inline int __any_sync(unsigned mask, int value) { return __ballot_sync(mask, value) != 0; }
inline unsigned atomicMax(unsigned* at, unsigned value) { const unsigned old = *at; if (value > old) *at = value; return old; }
inline int atomicAdd(int* at, int value) { const int old = *at; *at += value; return old; }
inline float __uint_as_float(unsigned v) { float f; std::memcpy(&f, &v, 4); return f; }
inline unsigned __float_as_uint(float f) { unsigned v; std::memcpy(&v, &f, 4); return v; }
inline double __longlong_as_double(long long v) { double d; std::memcpy(&d, &v, 8); return d; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __clz(int v) { return v ? __builtin_clz(v) : 32; }
using std::max; using std::min;
