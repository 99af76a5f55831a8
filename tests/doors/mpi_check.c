// An MPI program that checks what it receives: every size from 1 byte to 4 MiB in both
// directions, any source and any tag, Probe, Iprobe and Mprobe, many outstanding requests, self
// sends, cancelled receives and truncation. Run under mpirun by mpi_check_test.py; prints
// "mpi_check: ok" on rank 0.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kLargest = 4 << 20, kMany = 300 };

static int g_rank, g_ranks;

static void fail(const char* what, long detail) {
  fprintf(stderr, "mpi_check: rank %d of %d: %s (%ld)\n", g_rank, g_ranks, what, detail);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void fill(uint8_t* bytes, int size, uint32_t seed) {
  uint32_t x = seed * 2654435761u + 1;
  for (int i = 0; i < size; ++i) {
    x = x * 1664525u + 1013904223u;
    bytes[i] = (uint8_t)(x >> 24);
  }
}

static void check(const uint8_t* bytes, int size, uint32_t seed, const char* what) {
  uint32_t x = seed * 2654435761u + 1;
  for (int i = 0; i < size; ++i) {
    x = x * 1664525u + 1013904223u;
    if (bytes[i] != (uint8_t)(x >> 24)) fail(what, i);
  }
}

static uint8_t* room(int size) {
  uint8_t* bytes = calloc(1, (size_t)size + 1);
  if (bytes == NULL) fail("out of memory", size);
  return bytes;
}

// Every size around every power of two, both ways at once with the next and the previous rank.
static void all_sizes(void) {
  uint8_t *out = room(kLargest), *in = room(kLargest);
  const int next = (g_rank + 1) % g_ranks, previous = (g_rank + g_ranks - 1) % g_ranks;
  for (int power = 1; power <= kLargest; power *= 2) {
    for (int step = -1; step <= 1; ++step) {
      const int size = power + step;
      if (size < 0 || size > kLargest) continue;
      fill(out, size, (uint32_t)(size + g_rank));
      MPI_Status status;
      MPI_Sendrecv(out, size, MPI_BYTE, next, size % 1000, in, kLargest, MPI_BYTE, previous,
                   size % 1000, MPI_COMM_WORLD, &status);
      int got = 0;
      MPI_Get_count(&status, MPI_BYTE, &got);
      if (got != size || status.MPI_SOURCE != previous) fail("sendrecv: count or source", got);
      check(in, size, (uint32_t)(size + previous), "sendrecv: contents");
    }
  }
  free(out);
  free(in);
}

// Rank 0 receives from anybody with any tag; order from one source must hold.
static void any_source(void) {
  const int per_rank = 200;
  if (g_rank != 0) {
    for (int i = 0; i < per_rank; ++i) {
      int message[300] = {g_rank, i};
      MPI_Send(message, 2 + (i * 7) % 298, MPI_INT, 0, 100 + g_rank, MPI_COMM_WORLD);
    }
    return;
  }
  int* next = calloc((size_t)g_ranks, sizeof *next);
  for (int i = 0; i < per_rank * (g_ranks - 1); ++i) {
    int message[300];
    MPI_Status status;
    MPI_Recv(message, 300, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    const int from = status.MPI_SOURCE;
    if (status.MPI_TAG != 100 + from || message[0] != from) fail("any source: mixed up", from);
    if (message[1] != next[from]++) fail("any source: order", message[1]);
  }
  free(next);
}

// Probes of all kinds, for messages of both paths.
static void probes(void) {
  const int sizes[] = {0, 8, 1000, 70000, 1 << 20};
  const int peer = g_rank ^ 1;
  if (peer >= g_ranks) return;
  for (int k = 0; k < 5; ++k) {
    uint8_t *out = room(sizes[k]), *in = room(sizes[k]);
    fill(out, sizes[k], (uint32_t)(k + g_rank));
    for (int way = 0; way < 3; ++way) {
      MPI_Request request;
      MPI_Isend(out, sizes[k], MPI_BYTE, peer, 500 + way, MPI_COMM_WORLD, &request);
      MPI_Status status;
      MPI_Message message = MPI_MESSAGE_NULL;
      int there = 0, count = -1;
      if (way == 0) {
        MPI_Probe(peer, 500, MPI_COMM_WORLD, &status);
      } else if (way == 1) {
        while (!there) MPI_Iprobe(MPI_ANY_SOURCE, 501, MPI_COMM_WORLD, &there, &status);
      } else {
        while (!there) MPI_Improbe(MPI_ANY_SOURCE, 502, MPI_COMM_WORLD, &there, &message, &status);
      }
      MPI_Get_count(&status, MPI_BYTE, &count);
      if (count != sizes[k] || status.MPI_SOURCE != peer) fail("probe: count or source", count);
      if (way == 2) {
        MPI_Mrecv(in, count, MPI_BYTE, &message, &status);
      } else {
        MPI_Recv(in, count, MPI_BYTE, peer, 500 + way, MPI_COMM_WORLD, &status);
      }
      check(in, count, (uint32_t)(k + peer), "probe: contents");
      MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
    free(out);
    free(in);
  }
  int there = 1;
  MPI_Iprobe(MPI_ANY_SOURCE, 999, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
  if (there) fail("probe: found what nobody sent", there);
}

// Many requests at once, completed out of order, to everybody including oneself.
static void many_outstanding(void) {
  const int count = kMany * g_ranks;
  uint8_t** out = calloc((size_t)count, sizeof *out);
  uint8_t** in = calloc((size_t)count, sizeof *in);
  MPI_Request* requests = calloc((size_t)count * 2, sizeof *requests);
  for (int i = 0; i < count; ++i) {
    const int peer = i % g_ranks, tag = i / g_ranks, size = tag % 20 == 0 ? 100000 + tag : tag * 13;
    in[i] = room(size);
    MPI_Irecv(in[i], size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[i]);
  }
  for (int i = count - 1; i >= 0; --i) {
    const int peer = i % g_ranks, tag = i / g_ranks, size = tag % 20 == 0 ? 100000 + tag : tag * 13;
    out[i] = room(size);
    fill(out[i], size, (uint32_t)(tag * 64 + g_rank));
    MPI_Isend(out[i], size, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &requests[count + i]);
  }
  MPI_Waitall(2 * count, requests, MPI_STATUSES_IGNORE);
  for (int i = 0; i < count; ++i) {
    const int peer = i % g_ranks, tag = i / g_ranks, size = tag % 20 == 0 ? 100000 + tag : tag * 13;
    check(in[i], size, (uint32_t)(tag * 64 + peer), "many: contents");
    free(in[i]);
    free(out[i]);
  }
  free(in);
  free(out);
  free(requests);
}

static void cancelled_and_truncated(void) {
  uint8_t byte = 0, bytes[64] = {0};
  MPI_Request request;
  MPI_Status status;
  int cancelled = 0;
  MPI_Irecv(&byte, 1, MPI_BYTE, g_rank, 777, MPI_COMM_WORLD, &request);
  MPI_Cancel(&request);
  MPI_Wait(&request, &status);
  MPI_Test_cancelled(&status, &cancelled);
  if (!cancelled) fail("a receive was not cancelled", 0);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  const int peer = g_rank ^ 1;
  if (peer < g_ranks) {
    MPI_Isend(bytes, 64, MPI_BYTE, peer, 778, MPI_COMM_WORLD, &request);
    const int code = MPI_Recv(bytes, 10, MPI_BYTE, peer, 778, MPI_COMM_WORLD, &status);
    int class = 0;
    MPI_Error_class(code, &class);
    if (class != MPI_ERR_TRUNCATE) fail("64 bytes into 10 are no error", class);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

static void collectives(void) {
  const int size = 1 << 18;
  int* mine = calloc((size_t)size, sizeof *mine);
  int* sum = calloc((size_t)size, sizeof *sum);
  for (int i = 0; i < size; ++i) mine[i] = i + g_rank;
  MPI_Allreduce(mine, sum, size, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  for (int i = 0; i < size; ++i)
    if (sum[i] != i * g_ranks + g_ranks * (g_ranks - 1) / 2) fail("allreduce", i);
  for (int i = 0; i < 200; ++i) MPI_Barrier(MPI_COMM_WORLD);
  free(mine);
  free(sum);
}

int main(int argc, char** argv) {
  int provided = 0;
  const int wanted =
      argc > 1 && strcmp(argv[1], "--threads") == 0 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE;
  MPI_Init_thread(&argc, &argv, wanted, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
  void (*const parts[])(void) = {all_sizes,        any_source,  probes,
                                 many_outstanding, collectives, cancelled_and_truncated};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; ++i) {
    parts[i]();
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (g_rank == 0) printf("mpi_check: ok, %d ranks\n", g_ranks);
  MPI_Finalize();
  return 0;
}
