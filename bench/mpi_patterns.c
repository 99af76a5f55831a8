// The rows mpi_*: a pattern of MPI calls, over and over, between all ranks. Usage: mpirun -n RANKS
// mpi_patterns NAME SIZE SECONDS CPU0 CPU1. Rank 0 prints one JSON row.
//
//   mpi_lat, mpi_bw       one message each way in turn between two ranks, as NetPIPE does: half a
//                         round trip in nanoseconds, or SIZE over it in GB/s
//   mpi_ring_lat...       a message that goes from each rank to the next one: the whole round
//   mpi_allreduce_lat...  MPI_Allreduce of that many bytes of 64-bit sums: the whole call
//
// Two ranks have a CPU each; more of them run on either. A sample is the mean of a block of rounds;
// the row tells the median of blocks. The same buffers are used all the time. Every message carries
// its number in its first and last bytes, which are checked; the whole of a message is checked
// before and after timing.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostBlocks = 100000, kFewestBlocks = 64, kWarmUp = 20 };

static int g_rank, g_ranks, g_size;
static uint8_t *g_out, *g_in;

static void fail(const char* what, long detail) {
  fprintf(stderr, "mpi_patterns: rank %d: %s (%ld)\n", g_rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void pin(const int* cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((unsigned)cpus[g_rank % 2], &set);
  if (g_ranks > 2) CPU_SET((unsigned)cpus[1 - g_rank % 2], &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("a CPU is not available", cpus[0]);
}

static void send_on(void) {
  MPI_Send(g_out, g_size, MPI_BYTE, (g_rank + 1) % g_ranks, 7, MPI_COMM_WORLD);
}
static void receive(void) {
  MPI_Recv(g_in, g_size, MPI_BYTE, (g_rank + g_ranks - 1) % g_ranks, 7, MPI_COMM_WORLD,
           MPI_STATUS_IGNORE);
}

static void ring(void) {
  if (g_rank != 0) receive();
  send_on();
  if (g_rank == 0) receive();
}

static void allreduce(void) {
  MPI_Allreduce(g_out, g_in, g_size / 8, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

// The words that all ranks put in, and those that come back.
static uint64_t word_out(uint64_t number, uint64_t at) {
  return number * 1000003 + at * 31;
}
static uint64_t ring_in(uint64_t number, uint64_t at) {
  return word_out(number, at);
}
static uint64_t allreduce_in(uint64_t number, uint64_t at) {
  return word_out(number, at) * (uint64_t)g_ranks;
}

struct pattern {
  const char* prefix;
  void (*round)(void);
  uint64_t (*expected)(uint64_t number, uint64_t at);
  double part;  // of a round, that is told
};

static const struct pattern kPatterns[] = {{"mpi_ring", ring, ring_in, 1},
                                           {"mpi_allreduce", allreduce, allreduce_in, 1},
                                           {"mpi_", ring, ring_in, 0.5}};

static const struct pattern* pattern_of(const char* name) {
  for (size_t i = 0; i < sizeof kPatterns / sizeof *kPatterns; ++i) {
    if (strncmp(name, kPatterns[i].prefix, strlen(kPatterns[i].prefix)) == 0) return &kPatterns[i];
  }
  fail("no such pattern", 0);
  return NULL;
}

static void put(int at, uint64_t number) {
  const uint64_t word = word_out(number, (uint64_t)at);
  memcpy(g_out + 8 * at, &word, sizeof word);
}

static void check(const struct pattern* pattern, int at, uint64_t number) {
  uint64_t word;
  memcpy(&word, g_in + 8 * at, sizeof word);
  if (word != pattern->expected(number, (uint64_t)at)) fail("wrong data at word", at);
}

static void play(const struct pattern* pattern, uint32_t count) {
  const int last = g_size / 8 - 1;
  for (uint32_t i = 1; i <= count; ++i) {
    put(0, i);
    put(last, i);
    pattern->round();
    check(pattern, 0, i);
    check(pattern, last, i);
  }
}

static void verify(const struct pattern* pattern, uint64_t seed) {
  const int words = g_size / 8;
  for (int i = 0; i < words; ++i) put(i, seed);
  memset(g_in, 0, (size_t)g_size);
  pattern->round();
  for (int i = 0; i < words; ++i) check(pattern, i, seed);
}

static double time_block(const struct pattern* pattern, uint32_t count) {
  const double start = MPI_Wtime();
  play(pattern, count);
  return (MPI_Wtime() - start) * 1e9 / count * pattern->part;
}

static int by_value(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static const char* carrier(void) {
  char line[4096];
  int found = 0;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
    if (strstr(line, "libaperture-fi.so") != NULL) found = 1;
  if (maps != NULL) fclose(maps);
  return found ? "carried by libaperture-fi.so" : "carried by Open MPI itself";
}

static void print_row(const char* name, double* blocks, size_t count, uint32_t each) {
  qsort(blocks, count, sizeof *blocks, by_value);
  const int rate = strstr(name, "_bw") != NULL;
  double mean = 0;
  for (size_t i = 0; i < count; ++i) mean += blocks[i] / (double)count;
  // of times, a long one is a bad one; of rates, a low one: p99 is the bad end of both
  const double times[] = {blocks[count / 2], blocks[0], blocks[count / 2], blocks[count * 99 / 100],
                          mean};
  double shown[5];
  for (int i = 0; i < 5; ++i) shown[i] = rate ? g_size / times[i] : times[i];
  printf(
      "{\"value\": %.6g, \"min\": %.6g, \"p50\": %.6g, \"p99\": %.6g, \"mean\": %.6g, "
      "\"unit\": \"%s\", \"count\": %zu, \"note\": \"%d ranks, blocks of %u rounds, %s\"}\n",
      shown[0], shown[1], shown[2], shown[3], shown[4], rate ? "GB/s" : "ns", count, g_ranks, each,
      carrier());
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
  if (argc != 6 || g_ranks < 2) fail("usage: NAME SIZE SECONDS CPU0 CPU1, two ranks", g_ranks);
  const struct pattern* const pattern = pattern_of(argv[1]);
  g_size = atoi(argv[2]);
  const double seconds = atof(argv[3]);
  if (g_size < 8 || g_size % 8 != 0) fail("the size is a multiple of 8", g_size);
  const int cpus[] = {atoi(argv[4]), atoi(argv[5])};
  pin(cpus);
  g_out = calloc(1, (size_t)g_size);
  g_in = calloc(1, (size_t)g_size);
  double* blocks = calloc(kMostBlocks, sizeof *blocks);
  if (g_out == NULL || g_in == NULL || blocks == NULL) fail("no memory for", g_size);

  verify(pattern, 1);
  const uint32_t each = g_ranks > 2 ? 1 : g_size > 4096 ? 8 : 64;
  for (int i = 0; i < kWarmUp; ++i) time_block(pattern, each);
  size_t count = 0;
  int going_on = 1;
  const double until = MPI_Wtime() + seconds;
  while (going_on) {
    // rank 0 decides for all, now and then
    for (int i = 0; i < 16 && count < kMostBlocks; ++i) blocks[count++] = time_block(pattern, each);
    going_on = count < kMostBlocks && (MPI_Wtime() < until || count < kFewestBlocks);
    MPI_Bcast(&going_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  verify(pattern, 2);
  if (g_rank == 0) print_row(argv[1], blocks, count, each);
  MPI_Finalize();
  return 0;
}
