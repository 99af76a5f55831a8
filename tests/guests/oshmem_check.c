/* What an OpenSHMEM program does, checked: puts and gets of all sizes to every other processing
 * element, atomics of all on one, collectives, and one thread that posts while another waits.
 *
 * Each element ends with "oshmem_check: ok" or with a sentence and status 1.
 */
#include <pthread.h>
#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>

enum { LONGS = 1 << 17, ROUNDS = 200, NOTES = 100 };

static long there[LONGS], back[LONGS];
static long sum, ticket, seen[4096];
static long note, answer, total[2], mine[2];
static long reduce_sync[SHMEM_REDUCE_SYNC_SIZE], reduce_work[SHMEM_REDUCE_MIN_WRKDATA_SIZE];
static int me, others_count;

static void must(int holds, const char* what) {
  if (holds) return;
  printf("oshmem_check: wrong on %d: %s\n", me, what);
  fflush(stdout);
  shmem_global_exit(1);
}

static long value(int from, int to, long at, long length) {
  return (long)from * 1000003 + (long)to * 10007 + at * 31 + length;
}

static void put_and_get_of(long length) {
  const int to = (me + 1) % others_count, from = (me + others_count - 1) % others_count;
  long* const sent = malloc((size_t)length * sizeof *sent);
  for (long at = 0; at < length; ++at) sent[at] = value(me, to, at, length);
  shmem_barrier_all();
  shmem_long_put(there, sent, (size_t)length, to);
  shmem_barrier_all();
  for (long at = 0; at < length; ++at) must(there[at] == value(from, me, at, length), "a put");
  shmem_long_get(back, there, (size_t)length, to);
  for (long at = 0; at < length; ++at) must(back[at] == sent[at], "a get");
  free(sent);
}

static void atomics_of_all(void) {
  for (int round = 0; round < ROUNDS; ++round) {
    shmem_long_atomic_add(&sum, me + 1, 0);
    const long drawn = shmem_long_atomic_fetch_inc(&ticket, 0);
    must(drawn >= 0 && drawn < (long)ROUNDS * others_count, "a ticket's range");
    shmem_long_atomic_inc(&seen[drawn], 0);
  }
  shmem_barrier_all();
  if (me == 0) {
    const long each = (long)others_count * (others_count + 1) / 2;
    must(sum == each * ROUNDS, "the sum of atomic adds");
    for (int at = 0; at < ROUNDS * others_count; ++at) must(seen[at] == 1, "a ticket drawn once");
  }
  shmem_barrier_all();
  const long before = shmem_long_atomic_compare_swap(&sum, -1, 7, 0);
  must(before != -1, "a compare and swap that must not");
  shmem_barrier_all();
}

static void collectives(void) {
  mine[0] = me + 1;
  mine[1] = 100L * me;
  shmem_long_sum_to_all(total, mine, 2, 0, 0, others_count, reduce_work, reduce_sync);
  const long each = (long)others_count * (others_count + 1) / 2;
  must(total[0] == each && total[1] == 100 * (each - others_count), "a sum over all");
  shmem_barrier_all();
}

/* The even element's thread posts, its main thread waits for the answers, which the odd element
 * gives for each note. */
static void* post(void* unused) {
  for (long number = 1; number <= NOTES; ++number) {
    shmem_long_atomic_set(&note, number, me + 1);
    shmem_long_wait_until(&answer, SHMEM_CMP_GE, number);
  }
  return unused;
}

static void one_posts_and_another_waits(void) {
  if (me % 2 == 0 && me + 1 < others_count) {
    pthread_t poster;
    must(pthread_create(&poster, NULL, post, NULL) == 0, "a thread");
    shmem_long_wait_until(&answer, SHMEM_CMP_EQ, NOTES);
    pthread_join(poster, NULL);
  } else if (me % 2 == 1) {
    for (long number = 1; number <= NOTES; ++number) {
      shmem_long_wait_until(&note, SHMEM_CMP_GE, number);
      shmem_long_p(&answer, number, me - 1);
      shmem_quiet();
    }
  }
  shmem_barrier_all();
}

int main(void) {
  int granted = 0;
  if (shmem_init_thread(SHMEM_THREAD_MULTIPLE, &granted) != 0) return 1;
  me = shmem_my_pe();
  others_count = shmem_n_pes();
  must(granted == SHMEM_THREAD_MULTIPLE, "threads are granted");
  must(others_count >= 2 && ROUNDS * others_count <= 4096, "2 to 20 elements");
  for (int at = 0; at < SHMEM_REDUCE_SYNC_SIZE; ++at) reduce_sync[at] = SHMEM_SYNC_VALUE;
  for (long length = 1; length <= LONGS; length *= 8) put_and_get_of(length);
  atomics_of_all();
  collectives();
  one_posts_and_another_waits();
  printf("oshmem_check: ok\n");
  fflush(stdout);
  shmem_finalize();
  return 0;
}
