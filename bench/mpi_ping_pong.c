// mpi_lat and mpi_bw: one MPI message each way in turn between two ranks, as NetPIPE does. Usage:
// mpirun -n 2 mpi_ping_pong NAME SIZE SECONDS CPU0 CPU1. Rank 0 prints one JSON row: half a round
// trip in nanoseconds, or, for names that end in _bw, SIZE over it in GB/s.
//
// A sample is the mean of a block of round trips; the row tells the median of blocks. The same
// buffers are used all the time. Every message carries its number in its first and last bytes, and
// both ends check both of every message; the whole of a message is checked before and after timing.
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kMostBlocks = 100000 };

static int g_rank, g_size;
static uint8_t *g_out, *g_in;

static void fail(const char* what, long detail) {
  fprintf(stderr, "mpi_ping_pong: rank %d: %s (%ld)\n", g_rank, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void pin(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((unsigned)cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) fail("the CPU is not available", cpu);
}

static void stamp(uint32_t number) {
  memcpy(g_out, &number, sizeof number);
  memcpy(g_out + g_size - sizeof number, &number, sizeof number);
}

static void check_stamp(uint32_t number) {
  uint32_t first, last;
  memcpy(&first, g_in, sizeof first);
  memcpy(&last, g_in + g_size - sizeof last, sizeof last);
  if (first != number || last != number) fail("a message with another number", first);
}

static void send(void) {
  MPI_Send(g_out, g_size, MPI_BYTE, 1 - g_rank, 7, MPI_COMM_WORLD);
}
static void receive(void) {
  MPI_Recv(g_in, g_size, MPI_BYTE, 1 - g_rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void round_trips(uint32_t count) {
  for (uint32_t i = 1; i <= count; ++i) {
    if (g_rank == 1) {
      receive();
      check_stamp(i);
    }
    stamp(i);
    send();
    if (g_rank == 0) {
      receive();
      check_stamp(i);
    }
  }
}

static void verify(unsigned seed) {
  for (int i = 0; i < g_size; ++i) g_out[i] = (uint8_t)((unsigned)i * 31 + seed + (i >> 8) + 1);
  memset(g_in, 0, (size_t)g_size);
  if (g_rank == 0) send();
  receive();
  if (g_rank == 1) send();
  for (int i = 0; i < g_size; ++i)
    if (g_in[i] != g_out[i]) fail("wrong data at byte", i);
}

static double time_block(uint32_t count) {
  const double start = MPI_Wtime();
  round_trips(count);
  return (MPI_Wtime() - start) * 1e9 / count / 2;
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
      "\"unit\": \"%s\", \"count\": %zu, \"note\": \"blocks of %u round trips, %s\"}\n",
      shown[0], shown[1], shown[2], shown[3], shown[4], rate ? "GB/s" : "ns", count, each,
      carrier());
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 6 || ranks != 2) fail("usage: NAME SIZE SECONDS CPU0 CPU1, two ranks", ranks);
  g_size = atoi(argv[2]);
  const double seconds = atof(argv[3]);
  if (g_size < 8) fail("the size is at least 8", g_size);
  pin(atoi(argv[4 + g_rank]));
  g_out = calloc(1, (size_t)g_size);
  g_in = calloc(1, (size_t)g_size);
  double* blocks = calloc(kMostBlocks, sizeof *blocks);
  if (g_out == NULL || g_in == NULL || blocks == NULL) fail("no memory for", g_size);

  verify(1);
  const uint32_t each = g_size > 4096 ? 8 : 64;
  for (int i = 0; i < 20; ++i) time_block(each);
  size_t count = 0;
  int going_on = 1;
  const double until = MPI_Wtime() + seconds;
  while (going_on) {
    // rank 0 decides for both, now and then
    for (int i = 0; i < 16 && count < kMostBlocks; ++i) blocks[count++] = time_block(each);
    going_on = count < kMostBlocks && (MPI_Wtime() < until || count < 64);
    MPI_Bcast(&going_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  verify(2);
  if (g_rank == 0) print_row(argv[1], blocks, count, each);
  MPI_Finalize();
  return 0;
}
