/* Revocation of a region while peers copy into it by process_vm_writev: src/protect/peer_key_view.cpp
 * (piece) against src/protect/revocation.cpp (begin, poll) and src/protect/accessors.cpp
 * (is_quiet). docs/revocation.md draws the protocol and says what each step is for.
 *
 * Accessors may be stopped, stopped for ever, killed, or replaced by another program between any two
 * of their steps. A region that was revoked comes back VALID under the next generation (rereg), in
 * the same entry and the same slots. Claim: when revoke has returned, no copy checked under that
 * generation lands; and revoke returns.
 *
 * DRIVER: the copy is not the kernel's but a device's, which an accessor asks for by itself and which
 * goes on when that has died; nobody is stopped for ever then, since a close would answer busy.
 *
 * Mutations that must fail: NO_FENCE_A, NO_FENCE_R, NO_ZEROING, NO_SECOND_LOOK, NO_CHUNK_RECHECK,
 * EXEC_BY_MARK (the mark in the accessor's key file is taken for the end of its thread: an
 * assertion), NO_STOP_RULE, NO_DEATH_RULE and NO_EXEC_RULE (an invalid end state: revoke hangs); with DRIVER
 * NO_FENCE_A, NO_FENCE_R, NO_SECOND_LOOK, STOP_RULE, DEATH_RULE (a thread that has stopped or died
 * is taken for quiet) and NO_OVER_RULE (revoke hangs). See ./run. */

#ifndef ACCESSORS
#define ACCESSORS 2
#endif
#ifndef REVOKERS
#define REVOKERS 1
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef GENERATIONS
#define GENERATIONS 2
#endif

#define THREADS (ACCESSORS + REVOKERS)
#define DEPTH 3

#define STATE 0                  /* the entry: generation << 2 | state */
#define PIN(a) (1 + 2 * (a))
#define RIOV_LEN(a) (2 + 2 * (a))
#define VARS (1 + 2 * ACCESSORS)

#define NOBODY 255

#define FREE 0
#define VALID 1
#define REVOKING 2
#define STATE_GEN(g, s) ((g) * 4 + (s))

#include "store_buffers.pml"

/* The lock of the entries: biased, so that taking it again is no barrier, and giving it back is a store.
 * Only when it changes hands has the heavy barrier emptied the store buffer of who had it
 * (engine_lock.pml proves that). */
bool locked;
byte last_inside = NOBODY;
#define TAKE_LOCK \
  atomic { !locked && (last_inside == ME || last_inside == NOBODY || EMPTY(last_inside)) -> \
           locked = true; last_inside = ME }
#define GIVE_LOCK locked = false

/* what /proc shows of an accessor: it stops or dies only outside system calls */
#define RUNNING 0
#define STOPPED 1
#define STOPPED_FOR_EVER 2
#define DEAD 3
#define BECAME_ANOTHER 4         /* exec: /proc shows the thread's number and age, and it runs */
byte thread[ACCESSORS];
bool in_kernel[ACCESSORS];
#ifdef DRIVER
byte busy_for[ACCESSORS];        /* the generation for which its device copies; 0: it does not */
#endif
#ifdef EXEC_BY_MARK
bool marked[ACCESSORS];          /* its key file is: its control thread has ended */
#endif
bool returned[GENERATIONS + 2];  /* revoke of that generation has returned */

/* One step of an accessor, or its end. */
#define USER(step) atomic { if :: thread[a] == RUNNING -> step :: thread[a] >= STOPPED_FOR_EVER -> goto over fi }
#define USER_STORE(var, val) \
  atomic { if :: thread[a] == RUNNING && ROOM(a) -> store(a, var, val) :: thread[a] >= STOPPED_FOR_EVER -> goto over fi }

proctype Accessor(byte a) {
  byte seen = 0;
  byte again = 0;
  byte n = 0;
  byte chunk = 0;

  do
  :: chunk < CHUNKS ->
#ifdef NO_CHUNK_RECHECK
     if
     :: chunk == 0 -> USER(load(a, STATE, seen))
     :: else
     fi;
#else
     USER(load(a, STATE, seen));
#endif
     if
     :: (seen & 3) != VALID -> break
     :: else
     fi;
     USER_STORE(RIOV_LEN(a), 1);
     USER_STORE(PIN(a), seen >> 2);
#ifndef NO_FENCE_A
     atomic { if :: thread[a] == RUNNING && EMPTY(a) :: thread[a] >= STOPPED_FOR_EVER -> goto over fi };
#endif
     again = seen;
#ifndef NO_SECOND_LOOK
#ifdef NO_CHUNK_RECHECK
     if
     :: chunk == 0 -> USER(load(a, STATE, again))
     :: else
     fi;
#else
     USER(load(a, STATE, again));
#endif
#endif
     if
#ifdef DRIVER
     :: again == seen ->
        USER(busy_for[a] = seen >> 2);
        atomic { if :: thread[a] == RUNNING && busy_for[a] == 0 :: thread[a] >= STOPPED_FOR_EVER -> goto over fi }
#else
     :: again == seen ->
        /* the kernel reads the remote iovec once, at the start */
        USER(in_kernel[a] = true);
        load(a, RIOV_LEN(a), n);
        assert(n == 0 || !returned[seen >> 2]);  /* the copy lands */
        in_kernel[a] = false
#endif
     :: else
     fi;
     USER_STORE(PIN(a), 0);
     chunk++
  :: else -> break
  od;
over:
  skip
}

#ifdef DRIVER
/* The device of one accessor. */
proctype Device(byte a) {
end:
  do
  :: atomic { busy_for[a] != 0 -> assert(!returned[busy_for[a]]); busy_for[a] = 0 }  /* it lands */
  od
}
#endif

#define ME (ACCESSORS + r)

proctype Revoker(byte r) {
  byte state = 0;
  byte pin = 0;
  byte g = 0;
  byte a = 0;

  /* Revocation::begin(), with that lock */
  TAKE_LOCK;
  load(ME, STATE, state);
  g = state >> 2;
  if
  :: (state & 3) == VALID -> store(ME, STATE, STATE_GEN(g, REVOKING))
  :: else
  fi;
  GIVE_LOCK;
  if
  :: (state & 3) == FREE -> goto over
  :: else
  fi;
#ifndef NO_FENCE_R
  EMPTY(ME);
#endif
  do
  :: a < ACCESSORS ->
     load(ME, PIN(a), pin);
     if
     :: pin == g ->
#ifndef NO_ZEROING
        atomic { ROOM(ME) -> store(ME, RIOV_LEN(a), 0) };
        EMPTY(ME);
#endif
        skip
     :: else
     fi;
     a++
  :: else -> break
  od;

  /* poll() until every slot is quiet */
  a = 0;
  do
  :: a < ACCESSORS ->
     load(ME, PIN(a), pin);
     if
     :: pin != g
     :: else ->
#ifndef NO_ZEROING
        atomic { ROOM(ME) -> store(ME, RIOV_LEN(a), 0) };
        EMPTY(ME);
#endif
        if
        :: mem[PIN(a)] != g
#ifdef DRIVER
#ifndef NO_OVER_RULE
        /* all of its process has ended, and the kernel has closed the device */
        :: (thread[a] == DEAD || thread[a] == BECAME_ANOTHER) && busy_for[a] == 0
#endif
#ifdef STOP_RULE
        :: thread[a] == STOPPED
#endif
#ifdef DEATH_RULE
        :: thread[a] == DEAD
#endif
#else
#ifndef NO_STOP_RULE
        :: thread[a] == STOPPED || thread[a] == STOPPED_FOR_EVER
#endif
#ifndef NO_DEATH_RULE
        :: thread[a] == DEAD
#endif
#if defined(EXEC_BY_MARK)
        :: marked[a]
#elif !defined(NO_EXEC_RULE)
        :: thread[a] == BECAME_ANOTHER  /* its memory is not what it was */
#endif
#endif
        fi
     fi;
     a++
  :: else -> break
  od;
  returned[g] = true;

  /* end_life(), then registered again under a new generation */
  TAKE_LOCK;
  load(ME, STATE, state);
  if
  :: state == STATE_GEN(g, REVOKING) && g < GENERATIONS -> store(ME, STATE, STATE_GEN(g + 1, VALID))
  :: state == STATE_GEN(g, REVOKING) && g >= GENERATIONS -> store(ME, STATE, STATE_GEN(g, FREE))
  :: else
  fi;
  GIVE_LOCK;
over:
  skip
}

/* Stops, continues, kills or replaces (exec ends a thread before the memory is another program's),
 * each accessor once at most, at any moment. */
proctype World(byte a) {
  if
  :: skip
  :: atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = DEAD }
#ifdef EXEC_BY_MARK
  :: marked[a] = true;
     atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = BECAME_ANOTHER }
#else
  :: atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = BECAME_ANOTHER }
#endif
  :: atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = STOPPED };
     if
     :: thread[a] = RUNNING
#ifndef DRIVER
     :: thread[a] = STOPPED_FOR_EVER
#endif
     fi
  fi
}

init {
  byte k = 0;
  atomic {
    mem[STATE] = STATE_GEN(1, VALID);
    do
    :: k < ACCESSORS ->
#ifdef DRIVER
       run Device(k);
#endif
       run Accessor(k); run World(k); k++
    :: else -> break
    od;
    k = 0;
    do
    :: k < REVOKERS -> run Revoker(k); k++
    :: else -> break
    od
  }
}
