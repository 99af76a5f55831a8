/* The gate of a lane that moves while the peer copies through it: src/protect/peer_key_view.cpp
 * (piece) against src/protect/accessors.cpp (move_gate, is_lane_quiet).
 * docs/revocation.md, "The gate of a lane".
 *
 * The accessor goes from region to region, so what it pins changes; the gate asks only whether a slot
 * of the lane is pinned, and waits until that pin has changed once. Accessors may be stopped, stopped
 * for ever, or killed between any two of their steps. Claim: when the lane was quiet, no copy that
 * was checked under the permit before lands; and it returns.
 *
 * Mutations that must fail: NO_FENCE_A, NO_FENCE_G, NO_ZEROING, NO_GATE_LOOK, NO_CHUNK_RECHECK (an
 * assertion), NO_STOP_RULE and NO_DEATH_RULE (an invalid end state: it never is). See ./run. */

#ifndef ACCESSORS
#define ACCESSORS 1
#endif
#ifndef CHUNKS
#define CHUNKS 3
#endif

#define THREADS (ACCESSORS + 1)
#define DEPTH 3

#define GATE 0
#define PIN(a) (1 + 2 * (a))
#define RIOV_LEN(a) (2 + 2 * (a))
#define VARS (1 + 2 * ACCESSORS)

#define PERMIT 1                 /* what every accessor holds */
#define OTHER 2                  /* what the gate moves to */

#include "store_buffers.pml"

#define RUNNING 0
#define STOPPED 1
#define STOPPED_FOR_EVER 2
#define DEAD 3
byte thread[ACCESSORS];
bool in_kernel[ACCESSORS];
bool returned;

#define USER(step) atomic { if :: thread[a] == RUNNING -> step :: thread[a] >= STOPPED_FOR_EVER -> goto over fi }
#define USER_STORE(var, val) \
  atomic { if :: thread[a] == RUNNING && ROOM(a) -> store(a, var, val) :: thread[a] >= STOPPED_FOR_EVER -> goto over fi }

proctype Accessor(byte a) {
  byte seen = PERMIT;
  byte n = 0;
  byte chunk = 0;
  byte region = 0;

  do
  :: chunk < CHUNKS ->
     if
     :: region = 1
     :: region = 2
     fi;
     USER_STORE(RIOV_LEN(a), 1);
     USER_STORE(PIN(a), region);
#ifndef NO_FENCE_A
     atomic { if :: thread[a] == RUNNING && EMPTY(a) :: thread[a] >= STOPPED_FOR_EVER -> goto over fi };
#endif
#ifndef NO_GATE_LOOK
#ifdef NO_CHUNK_RECHECK
     if
     :: chunk == 0 -> USER(load(a, GATE, seen))
     :: else
     fi;
#else
     USER(load(a, GATE, seen));
#endif
#endif
     if
     :: seen == PERMIT ->
        USER(in_kernel[a] = true);
        load(a, RIOV_LEN(a), n);
        assert(n == 0 || !returned);  /* the copy lands */
        in_kernel[a] = false
     :: else
     fi;
     USER_STORE(PIN(a), 0);
     chunk++
  :: else -> break
  od;
over:
  skip
}

#define ME ACCESSORS

proctype Owner() {
  byte pin = 0;
  byte a = 0;

  store(ME, GATE, OTHER);
#ifndef NO_FENCE_G
  EMPTY(ME);
#endif
  do
  :: a < ACCESSORS ->
     load(ME, PIN(a), pin);
     if
     :: pin == 0
     :: else ->
#ifndef NO_ZEROING
        atomic { ROOM(ME) -> store(ME, RIOV_LEN(a), 0) };
        EMPTY(ME);
#endif
        if
        :: mem[PIN(a)] != pin
#ifndef NO_STOP_RULE
        :: thread[a] == STOPPED || thread[a] == STOPPED_FOR_EVER
#endif
#ifndef NO_DEATH_RULE
        :: thread[a] == DEAD
#endif
        fi
     fi;
     a++
  :: else -> break
  od;
  returned = true
}

/* Stops, continues and kills, each accessor once at most, at any moment. */
proctype World(byte a) {
  if
  :: skip
  :: atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = DEAD }
  :: atomic { thread[a] == RUNNING && !in_kernel[a] -> thread[a] = STOPPED };
     if
     :: thread[a] = RUNNING
     :: thread[a] = STOPPED_FOR_EVER
     fi
  fi
}

init {
  byte k = 0;
  atomic {
    mem[GATE] = PERMIT;
    do
    :: k < ACCESSORS -> run Accessor(k); run World(k); k++
    :: else -> break
    od;
    run Owner()
  }
}
