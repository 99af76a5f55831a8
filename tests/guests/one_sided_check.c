// An MPI program that checks one-sided communication: put, get, accumulate, get_accumulate,
// fetch-and-op, compare-and-swap and the request-based calls, in fence, post-start-complete-wait,
// shared-lock, exclusive-lock and lock-all epochs, on windows of the three kinds. Every rank checks
// what it fetched and what lies in its own window. Run under mpirun by one_sided_test.py; each rank
// prints by which library its bytes went, and rank 0 "one_sided_check: ok". MPI 3.1, chapter 11.
// With the argument `static`, on the first two kinds, which are not dynamic.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum Kind { kCreated, kAllocated, kDynamic, kKinds };
enum Epoch { kFence, kPostStart, kLockShared, kLockExclusive, kLockAll, kEpochs };
enum { kWindowBytes = 4 << 20, kMostRanks = 8 };

static const char* const kKindNames[] = {"MPI_Win_create", "MPI_Win_allocate", "a dynamic window"};
static const char* const kEpochNames[] = {"fence", "post-start-complete-wait", "shared lock",
                                          "exclusive lock", "lock-all"};

static int g_rank, g_ranks;
static MPI_Group g_others;
static MPI_Win g_win;
static uint8_t* g_memory;             // this rank's window
static MPI_Aint g_bases[kMostRanks];  // displacement of each rank's first byte
static enum Kind g_kind;
static enum Epoch g_epoch;

static void fail(const char* what, long long got, long long wanted) {
  fprintf(stderr, "one_sided_check: rank %d of %d, %s, %s: %s (%lld, not %lld)\n", g_rank, g_ranks,
          kKindNames[g_kind], kEpochNames[g_epoch], what, got, wanted);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void expect(const char* what, long long got, long long wanted) {
  if (got != wanted) fail(what, got, wanted);
}

static void barrier(void) {
  MPI_Barrier(MPI_COMM_WORLD);
}
static MPI_Aint at(int rank, MPI_Aint offset) {
  return g_bases[rank] + offset;
}

static void open_window(enum Kind kind) {
  g_kind = kind;
  MPI_Aint base = 0;
  if (kind == kAllocated) {
    MPI_Win_allocate(kWindowBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &g_memory, &g_win);
  } else {
    g_memory = calloc(1, kWindowBytes);
    if (g_memory == NULL) fail("out of memory", 0, kWindowBytes);
    if (kind == kCreated) {
      MPI_Win_create(g_memory, kWindowBytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &g_win);
    } else {
      MPI_Win_create_dynamic(MPI_INFO_NULL, MPI_COMM_WORLD, &g_win);
      MPI_Win_attach(g_win, g_memory, kWindowBytes);
      MPI_Get_address(g_memory, &base);
    }
  }
  MPI_Allgather(&base, 1, MPI_AINT, g_bases, 1, MPI_AINT, MPI_COMM_WORLD);
}

static void close_window(void) {
  if (g_kind == kDynamic) {
    barrier();
    MPI_Win_detach(g_win, g_memory);
  }
  MPI_Win_free(&g_win);
  if (g_kind != kAllocated) free(g_memory);
}

// Around accesses of a rank to its own window, and so that everybody's preparations are seen.
static void own_begin(void) {
  MPI_Win_lock(MPI_LOCK_EXCLUSIVE, g_rank, 0, g_win);
}
static void own_end(void) {
  MPI_Win_unlock(g_rank, g_win);
  barrier();
}

// One epoch of the given kind in which act() is called for each rank but this one.
static void epoch(enum Epoch kind, void (*act)(int target)) {
  g_epoch = kind;
  const int lock = kind == kLockShared ? MPI_LOCK_SHARED : MPI_LOCK_EXCLUSIVE;
  const int each = kind == kLockShared || kind == kLockExclusive;
  if (kind == kFence) MPI_Win_fence(MPI_MODE_NOPRECEDE, g_win);
  if (kind == kPostStart) {
    MPI_Win_post(g_others, 0, g_win);
    MPI_Win_start(g_others, 0, g_win);
  }
  if (kind == kLockAll) MPI_Win_lock_all(0, g_win);
  for (int step = 1; step < g_ranks; ++step) {
    const int target = (g_rank + step) % g_ranks;
    if (each) MPI_Win_lock(lock, target, 0, g_win);
    act(target);
    if (each) MPI_Win_unlock(target, g_win);
    if (kind == kLockAll) MPI_Win_flush(target, g_win);
  }
  if (kind == kLockAll) MPI_Win_unlock_all(g_win);
  if (kind == kPostStart) {
    MPI_Win_complete(g_win);
    MPI_Win_wait(g_win);
  }
  if (kind == kFence) MPI_Win_fence(MPI_MODE_NOSUCCEED, g_win);
  barrier();
}

// --- put and get: every rank has a part of every other's window ----------------------------------

static const int kSizes[] = {1, 7, 8, 64, 1000, 4096, 65539, 400001};
static int g_size;
static uint8_t *g_out, *g_in;  // a part for each rank

static int part(void) {
  return kWindowBytes / g_ranks;
}
static uint8_t pattern(int from, int to, int i) {
  return (uint8_t)(from * 41 + to * 67 + i * 13 + (i >> 8) * 7 + g_size);
}

static void put_one(int target) {
  uint8_t* out = g_out + (size_t)target * part();
  for (int i = 0; i < g_size; ++i) out[i] = pattern(g_rank, target, i);
  MPI_Put(out, g_size, MPI_BYTE, target, at(target, (MPI_Aint)g_rank * part()), g_size, MPI_BYTE,
          g_win);
}

// What this rank put there, brought back.
static void get_one(int target) {
  uint8_t* in = g_in + (size_t)target * part();
  memset(in, 0, (size_t)g_size);
  MPI_Get(in, g_size, MPI_BYTE, target, at(target, (MPI_Aint)g_rank * part()), g_size, MPI_BYTE,
          g_win);
}

static void put_and_get(enum Epoch kind) {
  g_out = calloc(1, kWindowBytes);
  g_in = calloc(1, kWindowBytes);
  for (size_t k = 0; k < sizeof kSizes / sizeof *kSizes; ++k) {
    g_size = kSizes[k];
    own_begin();
    memset(g_memory, 0xee, kWindowBytes);
    own_end();
    epoch(kind, put_one);
    own_begin();
    for (int from = 0; from < g_ranks; ++from) {
      const uint8_t* mine = g_memory + (size_t)from * part();
      for (int i = 0; from != g_rank && i < g_size; ++i)
        expect("put: contents", mine[i], pattern(from, g_rank, i));
      expect("put: a byte behind the end", mine[g_size], 0xee);
    }
    own_end();
    epoch(kind, get_one);
    for (int to = 0; to < g_ranks; ++to)
      for (int i = 0; to != g_rank && i < g_size; ++i)
        expect("get: contents", g_in[(size_t)to * part() + i], pattern(g_rank, to, i));
  }
  free(g_out);
  free(g_in);
}

// Rows of three ints out of five, from and to memory that is not contiguous.
enum { kRows = 300 };
static int g_grid_out[kRows * 5], g_grid_in[kRows * 5];
static MPI_Datatype g_rows;

static void put_rows(int target) {
  const MPI_Aint here = (MPI_Aint)g_rank * part();
  MPI_Put(g_grid_out, 1, g_rows, target, at(target, here), 1, g_rows, g_win);
}
static void get_rows(int target) {
  if (target != (g_rank + 1) % g_ranks) return;
  const MPI_Aint here = (MPI_Aint)g_rank * part();
  MPI_Get(g_grid_in, 1, g_rows, target, at(target, here), 1, g_rows, g_win);
}

static void strided(enum Epoch kind) {
  MPI_Type_vector(kRows, 3, 5, MPI_INT, &g_rows);
  MPI_Type_commit(&g_rows);
  for (int i = 0; i < kRows * 5; ++i) g_grid_out[i] = g_rank * 100000 + i, g_grid_in[i] = -1;
  own_begin();
  memset(g_memory, 0xff, kWindowBytes);
  own_end();
  epoch(kind, put_rows);
  own_begin();
  for (int from = 0; from < g_ranks; ++from) {
    const int* mine = (const int*)(g_memory + (size_t)from * part());
    for (int i = 0; from != g_rank && i < kRows * 5 - 2; ++i)
      expect("strided put", mine[i], i % 5 < 3 ? from * 100000 + i : -1);
  }
  own_end();
  epoch(kind, get_rows);
  for (int i = 0; i < kRows * 5 - 2; ++i)
    expect("strided get", g_grid_in[i], i % 5 < 3 ? g_rank * 100000 + i : -1);
  MPI_Type_free(&g_rows);
}

// --- accumulate: every operation on every type, all ranks on the same bytes ----------------------

// How values of one type are written and read.
struct Type {
  const char* name;
  MPI_Datatype mpi;
  size_t size;
  int whole;  // bitwise and logical operations apply
  void (*set)(void* at, long long value);
  long long (*get)(const void* at);
};

#define TYPE_ACCESS(name, type)                       \
  static void set_##name(void* at, long long value) { \
    *(type*)at = (type)value;                         \
  }                                                   \
  static long long get_##name(const void* at) {       \
    return (long long)*(const type*)at;               \
  }
TYPE_ACCESS(int8, int8_t)
TYPE_ACCESS(uint16, uint16_t)
TYPE_ACCESS(int32, int32_t)
TYPE_ACCESS(uint32, uint32_t)
TYPE_ACCESS(int64, int64_t)
TYPE_ACCESS(uint64, uint64_t)
TYPE_ACCESS(float, float)
TYPE_ACCESS(double, double)
TYPE_ACCESS(long_double, long double)
#define TYPE(name, mpi, type, whole) \
  { #type, mpi, sizeof(type), whole, set_##name, get_##name }

enum { kTypes = 9, kFirstWide = 4, kFirstReal = 6 };
static struct Type g_types[kTypes];

static void fill_types(void) {
  const struct Type types[kTypes] = {TYPE(int8, MPI_INT8_T, int8_t, 1),
                                     TYPE(uint16, MPI_UINT16_T, uint16_t, 1),
                                     TYPE(int32, MPI_INT32_T, int32_t, 1),
                                     TYPE(uint32, MPI_UINT32_T, uint32_t, 1),
                                     TYPE(int64, MPI_INT64_T, int64_t, 1),
                                     TYPE(uint64, MPI_UINT64_T, uint64_t, 1),
                                     TYPE(float, MPI_FLOAT, float, 0),
                                     TYPE(double, MPI_DOUBLE, double, 0),
                                     TYPE(long_double, MPI_LONG_DOUBLE, long double, 0)};
  memcpy(g_types, types, sizeof types);
}

enum {
  kSum,
  kProd,
  kMin,
  kMax,
  kReplace,
  kReal,
  kBand = kReal,
  kBor,
  kBxor,
  kLand,
  kLor,
  kLxor,
  kOps
};
static const char* const kOpNames[kOps] = {"sum", "prod", "min",  "max", "replace", "band",
                                           "bor", "bxor", "land", "lor", "lxor"};

static MPI_Op op_of(int op) {
  const MPI_Op ops[kOps] = {MPI_SUM, MPI_PROD, MPI_MIN,  MPI_MAX, MPI_REPLACE, MPI_BAND,
                            MPI_BOR, MPI_BXOR, MPI_LAND, MPI_LOR, MPI_LXOR};
  return ops[op];
}

static long long fold(int op, long long a, long long b) {
  switch (op) {
    case kSum: return a + b;
    case kProd: return a * b;
    case kMin: return a < b ? a : b;
    case kMax: return a > b ? a : b;
    case kReplace: return b;
    case kBand: return a & b;
    case kBor: return a | b;
    case kBxor: return a ^ b;
    case kLand: return a && b;
    case kLor: return a || b;
    default: return !a != !b;
  }
}

static const struct Type* g_type;
static int g_op, g_count;
static uint8_t* g_values;

static long long first_value(int i) {
  return i % 5;
}
// Replaced by equal values, since nothing says whose comes last.
static long long contribution(int from, int i) {
  return g_op == kReplace ? 3 + i % 90 : (from + 2 * i) % 4;
}

static void accumulate_one(int target) {
  for (int i = 0; i < g_count; ++i)
    g_type->set(g_values + (size_t)i * g_type->size, contribution(g_rank, i));
  MPI_Accumulate(g_values, g_count, g_type->mpi, target, at(target, 0), g_count, g_type->mpi,
                 op_of(g_op), g_win);
}

static void prepare_values(void) {
  own_begin();
  for (int i = 0; i < g_count; ++i)
    g_type->set(g_memory + (size_t)i * g_type->size, first_value(i));
  own_end();
}

static void check_accumulated(void) {
  char what[80];
  snprintf(what, sizeof what, "accumulate: %s of %d x %s", kOpNames[g_op], g_count, g_type->name);
  long double wanted_bytes[2] = {0, 0};
  own_begin();
  for (int i = 0; i < g_count; ++i) {
    long long wanted = first_value(i);
    for (int from = 0; from < g_ranks; ++from)
      if (from != g_rank) wanted = fold(g_op, wanted, contribution(from, i));
    g_type->set(wanted_bytes, wanted);  // as the type holds it
    expect(what, g_type->get(g_memory + (size_t)i * g_type->size), g_type->get(wanted_bytes));
  }
  own_end();
}

static void accumulate(enum Epoch kind) {
  static const int counts[] = {1, 37, 3000};
  g_values = calloc(3000, sizeof(long double));
  for (int t = 0; t < kTypes; ++t) {
    g_type = &g_types[t];
    for (g_op = 0; g_op < (g_type->whole ? kOps : kReal); ++g_op) {
      // the kinds of window differ in how they are addressed, not in the arithmetic
      if (g_kind != kCreated && (t + g_op) % 3 != 0) continue;
      // all counts where the network's own atomics may serve; the others take one path
      g_count = counts[(t + g_op) % 3];
      prepare_values();
      epoch(kind, accumulate_one);
      check_accumulated();
    }
  }
  free(g_values);
}

// --- get_accumulate and fetch-and-op: what was fetched must form one order -----------------------

enum { kChain = 16 };
static long long g_fetched[kMostRanks][kChain];  // by target
static int g_one_by_one;                         // fetch-and-op

static void fetch_one(int target) {
  static long double out[kChain], in[kMostRanks][kChain];
  for (int i = 0; i < g_count; ++i) {
    const long long value = g_op == kReplace ? 100 + g_rank : 1LL << (4 * g_rank);
    g_type->set((uint8_t*)out + (size_t)i * g_type->size, value);
  }
  if (g_one_by_one) {
    MPI_Fetch_and_op(out, in[target], g_type->mpi, target, at(target, 0), op_of(g_op), g_win);
  } else {
    MPI_Get_accumulate(out, g_count, g_type->mpi, in[target], g_count, g_type->mpi, target,
                       at(target, 0), g_count, g_type->mpi, op_of(g_op), g_win);
  }
  // read after the epoch: remembered by place
  g_fetched[target][0] = (long long)(intptr_t)in[target];
}

static void collect_fetched(void) {
  for (int target = 0; target < g_ranks; ++target) {
    if (target == g_rank) continue;
    const uint8_t* in = (const uint8_t*)(intptr_t)g_fetched[target][0];
    long long values[kChain];
    for (int i = 0; i < g_count; ++i) values[i] = g_type->get(in + (size_t)i * g_type->size);
    memcpy(g_fetched[target], values, sizeof values);
  }
}

// From the first value on there is always one rank that fetched the value at hand and left another
// behind, until nobody is left and the value is the last one. True if so.
static int one_order(long long value, long long last, long long theirs[][kChain], int i) {
  int used[kMostRanks] = {0};
  for (int step = 1; step < g_ranks; ++step) {
    int who = -1;
    for (int from = 0; from < g_ranks; ++from)
      if (from != g_rank && !used[from] && theirs[from][i] == value) who = from;
    if (who < 0) return 0;
    used[who] = 1;
    value = g_op == kReplace ? 100 + who : value + (1LL << (4 * who));
  }
  return value == last;
}

static void fetching(enum Epoch kind) {
  static const int ops[] = {kSum, kReplace};
  for (int turn = 0; turn < 2 * (kTypes - 2) * 2; ++turn) {
    g_one_by_one = turn % 2;
    g_op = ops[turn / 2 % 2];
    g_type = &g_types[2 + turn / 4];
    g_count = g_one_by_one ? 1 : kChain;
    prepare_values();
    epoch(kind, fetch_one);
    collect_fetched();
    long long theirs[kMostRanks][kChain];
    MPI_Alltoall(g_fetched, kChain, MPI_LONG_LONG, theirs, kChain, MPI_LONG_LONG, MPI_COMM_WORLD);
    own_begin();
    for (int i = 0; i < g_count; ++i) {
      const long long last = g_type->get(g_memory + (size_t)i * g_type->size);
      if (!one_order(first_value(i), last, theirs, i)) {
        fprintf(stderr, "%s of %s\n", kOpNames[g_op], g_type->name);
        fail(g_one_by_one ? "fetch-and-op: no order explains what was fetched"
                          : "get_accumulate: no order explains what was fetched",
             last, i);
      }
    }
    own_end();
  }
}

// MPI_NO_OP fetches and changes nothing.
static int64_t g_seen[kMostRanks];
static void fetch_nothing(int target) {
  MPI_Fetch_and_op(NULL, &g_seen[target], MPI_INT64_T, target, at(target, 8), MPI_NO_OP, g_win);
}

static void fetching_alone(enum Epoch kind) {
  own_begin();
  ((int64_t*)g_memory)[1] = 1000 + g_rank;
  own_end();
  epoch(kind, fetch_nothing);
  for (int target = 0; target < g_ranks; ++target)
    if (target != g_rank) expect("no-op: fetched", g_seen[target], 1000 + target);
  own_begin();
  expect("no-op: changed", ((int64_t*)g_memory)[1], 1000 + g_rank);
  own_end();
}

// --- compare-and-swap: one of all wins, and the others learn who ---------------------------------

// Open MPI 4.1.4 crashes (osc rdma, with whatever transport) when compare-and-swap goes to a rank's
// own window, or to a window of MPI_Win_allocate among ranks of one host.
static int g_swaps;

static int64_t g_swap_out, g_swap_compare, g_swap_in[kMostRanks];
static int g_narrow;

static void swap_one(int target) {
  if (g_narrow) {
    static int32_t out, compare;
    out = g_rank + 1, compare = 0;
    MPI_Compare_and_swap(&out, &compare, &g_swap_in[target], MPI_INT32_T, target, at(target, 0),
                         g_win);
  } else {
    g_swap_out = g_rank + 1, g_swap_compare = 0;
    MPI_Compare_and_swap(&g_swap_out, &g_swap_compare, &g_swap_in[target], MPI_INT64_T, target,
                         at(target, 0), g_win);
  }
}

static void compare_and_swap(enum Epoch kind) {
  for (g_narrow = 0; g_swaps && g_narrow < 2; ++g_narrow) {
    own_begin();
    memset(g_memory, 0, 16);
    own_end();
    memset(g_swap_in, 0, sizeof g_swap_in);
    epoch(kind, swap_one);
    int64_t theirs[kMostRanks];
    MPI_Alltoall(g_swap_in, 1, MPI_INT64_T, theirs, 1, MPI_INT64_T, MPI_COMM_WORLD);
    own_begin();
    const int64_t winner = g_narrow ? *(int32_t*)g_memory : *(int64_t*)g_memory;
    if (winner < 1 || winner > g_ranks || winner == g_rank + 1)
      fail("compare-and-swap: no other rank's value", winner, 0);
    expect("compare-and-swap: bytes behind", ((int64_t*)g_memory)[1], 0);
    for (int from = 0; from < g_ranks; ++from)
      if (from != g_rank)
        expect("compare-and-swap: fetched", theirs[from], from + 1 == winner ? 0 : winner);
    own_end();
  }
}

// --- passive targets: a counter, a lock made of swaps, read-modify-write under a lock ------------

enum { kTurns = 40 };

static void shared_counter(void) {
  g_epoch = kLockAll;
  const int64_t one = 1;
  int64_t mine[kTurns], all[kTurns * kMostRanks];
  own_begin();
  memset(g_memory, 0, 64);
  own_end();
  MPI_Win_lock_all(0, g_win);
  for (int i = 0; i < kTurns; ++i) {
    MPI_Fetch_and_op(&one, &mine[i], MPI_INT64_T, 0, at(0, 0), MPI_SUM, g_win);
    if (i % 2 == 0) MPI_Win_flush_local(0, g_win);
    MPI_Win_flush(0, g_win);
  }
  MPI_Win_unlock_all(g_win);
  MPI_Allgather(mine, kTurns, MPI_INT64_T, all, kTurns, MPI_INT64_T, MPI_COMM_WORLD);
  char taken[kTurns * kMostRanks] = {0};
  for (int i = 0; i < kTurns * g_ranks; ++i) {
    if (all[i] < 0 || all[i] >= kTurns * g_ranks) fail("counter: number", all[i], i);
    expect("counter: number given before", taken[all[i]]++, 0);
  }
  for (int i = 1; i < kTurns; ++i)
    if (mine[i] <= mine[i - 1]) fail("counter: went back", mine[i], mine[i - 1]);
}

// Adds one to a word of rank 0 by get and put, which only holds if nobody else does so meanwhile.
static void add_one_by_get_and_put(void) {
  int64_t value = -1;
  MPI_Get(&value, 8, MPI_BYTE, 0, at(0, 24), 8, MPI_BYTE, g_win);
  MPI_Win_flush(0, g_win);
  ++value;
  MPI_Put(&value, 8, MPI_BYTE, 0, at(0, 24), 8, MPI_BYTE, g_win);
  MPI_Win_flush(0, g_win);
}

// Not by rank 0 itself: see g_swaps.
static void lock_of_swaps(void) {
  g_epoch = kLockAll;
  const int64_t zero = 0, me = g_rank + 1;
  int64_t seen = -1;
  MPI_Win_lock_all(0, g_win);
  for (int i = 0; g_swaps && g_rank != 0 && i < kTurns; ++i) {
    do {
      MPI_Compare_and_swap(&me, &zero, &seen, MPI_INT64_T, 0, at(0, 16), g_win);
      MPI_Win_flush(0, g_win);
    } while (seen != 0);
    add_one_by_get_and_put();
    MPI_Fetch_and_op(&zero, &seen, MPI_INT64_T, 0, at(0, 16), MPI_REPLACE, g_win);
    MPI_Win_flush(0, g_win);
    expect("lock of swaps: was mine", seen, me);
  }
  MPI_Win_unlock_all(g_win);
}

static void locked_additions(void) {
  g_epoch = kLockExclusive;
  for (int i = 0; i < kTurns; ++i) {
    MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, g_win);
    add_one_by_get_and_put();
    MPI_Win_unlock(0, g_win);
  }
}

static void passive(void) {
  shared_counter();
  barrier();
  lock_of_swaps();
  locked_additions();
  barrier();
  own_begin();
  if (g_rank == 0)
    expect("additions", ((int64_t*)g_memory)[3], kTurns * (g_ranks + (g_swaps ? g_ranks - 1 : 0)));
  own_end();
}

// The calls that give a request: complete at the origin when waited for, everywhere after a flush.
static void requests(void) {
  g_epoch = kLockAll;
  enum { kInts = 5000 };
  int* numbers = calloc(3 * kInts, sizeof(int));
  int *out = numbers, *in = numbers + kInts, *old = numbers + 2 * kInts;
  const int next = (g_rank + 1) % g_ranks, previous = (g_rank + g_ranks - 1) % g_ranks;
  for (int i = 0; i < kInts; ++i) out[i] = g_rank * kInts + i;
  own_begin();
  memset(g_memory, 0, 2 * kInts * sizeof(int));
  own_end();
  MPI_Request both[2];
  MPI_Win_lock_all(0, g_win);
  MPI_Rput(out, kInts, MPI_INT, next, at(next, 0), kInts, MPI_INT, g_win, &both[0]);
  MPI_Raccumulate(out, kInts, MPI_INT, next, at(next, kInts * 4), kInts, MPI_INT, MPI_SUM, g_win,
                  &both[1]);
  MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  MPI_Win_flush_all(g_win);
  MPI_Rget(in, kInts, MPI_INT, next, at(next, 0), kInts, MPI_INT, g_win, &both[0]);
  MPI_Rget_accumulate(out, kInts, MPI_INT, old, kInts, MPI_INT, next, at(next, kInts * 4), kInts,
                      MPI_INT, MPI_SUM, g_win, &both[1]);
  MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  for (int i = 0; i < kInts; ++i) expect("rget", in[i], out[i]);
  for (int i = 0; i < kInts; ++i) expect("rget_accumulate: fetched", old[i], out[i]);
  MPI_Win_unlock_all(g_win);
  barrier();
  own_begin();
  const int* mine = (const int*)g_memory;
  for (int i = 0; i < kInts; ++i) expect("rput", mine[i], previous * kInts + i);
  for (int i = 0; i < kInts; ++i)
    expect("raccumulate", mine[kInts + i], 2 * (previous * kInts + i));
  own_end();
  free(numbers);
}

// -------------------------------------------------------------------------------------------------

static void say_who_carries(void) {
  char line[4096];
  const char* carrier = "something else";
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    if (strstr(line, "libaperture-fi.so") != NULL) carrier = "libaperture-fi.so";
  if (maps != NULL) fclose(maps);
  printf("rank %d of %d: carried by %s\n", g_rank, g_ranks, carrier);
  fflush(stdout);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
  if (g_ranks < 2 || g_ranks > kMostRanks) fail("ranks", g_ranks, kMostRanks);
  MPI_Group world;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_excl(world, 1, &g_rank, &g_others);
  fill_types();
  void (*const parts[])(enum Epoch) = {put_and_get, strided,        accumulate,
                                       fetching,    fetching_alone, compare_and_swap};
  const int kinds = argc > 1 && strcmp(argv[1], "static") == 0 ? kDynamic : kKinds;
  for (int kind = 0; kind < kinds; ++kind) {
    open_window((enum Kind)kind);
    g_swaps = kind != kAllocated;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i)
      for (int e = 0; e < kEpochs; ++e) parts[i]((enum Epoch)e);
    passive();
    requests();
    close_window();
  }
  MPI_Group_free(&g_others);
  MPI_Group_free(&world);
  say_who_carries();
  barrier();
  if (g_rank == 0) printf("one_sided_check: ok, %d ranks\n", g_ranks);
  MPI_Finalize();
  return 0;
}
