/* The biased engine lock: src/base/lock.hpp and lock.cpp. Any thread may take the bias along, or drop
 * it, at the end of any visit. Claim: never two threads inside.
 *
 * heavy_barrier() is membarrier(2): after a full fence of the caller, and before its end, each
 * thread passes a full fence, that is, there is a moment at which that thread's buffer is empty.
 *
 * Mutations that must fail: NO_HEAVY_BARRIER, NO_SECOND_LOOK (the owner does not look at the
 * generation again), ONE_FLAG (all generations share one `inside`). See ./run. */

#ifndef LOCKERS
#define LOCKERS 2
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#define GENERATIONS 2

#define THREADS LOCKERS
#define DEPTH 3
#define NOBODY 0                 /* owners are thread + 1 */

#define CURRENT 0
#define ANNOUNCED 1
#define MUTEX 2
#define OWNER(g) (3 + 2 * (g))
#ifdef ONE_FLAG
#define INSIDE(g) 4
#else
#define INSIDE(g) (4 + 2 * (g))
#endif
#define VARS (3 + 2 * (GENERATIONS + 1))

#include "store_buffers.pml"

byte inside_count;
byte granted;                    /* written under the mutex only */

#define STORE(var, val) atomic { ROOM(t) -> store(t, var, val) }

inline critical_section() {
  inside_count++;
  assert(inside_count == 1);
  inside_count--
}

proctype Locker(byte t) {
  byte g = 0;
  byte x = 0;
  byte k = 0;
  byte round = 0;
  bool entered = false;

  do
  :: round < ROUNDS ->
     round++;
     entered = false;
     /* enter_by_bias */
     load(t, CURRENT, g);
     load(t, OWNER(g), x);
     if
     :: x == t + 1 ->
        STORE(INSIDE(g), 1);
        load(t, ANNOUNCED, x);
        if
        :: x == 0 ->
#ifndef NO_SECOND_LOOK
           load(t, CURRENT, x);
           if
           :: x == g -> entered = true
           :: else
           fi
#else
           entered = true
#endif
        :: else
        fi;
        if
        :: entered -> critical_section()
        :: else
        fi;
        STORE(INSIDE(g), 0)      /* unlock, or the retreat */
     :: else
     fi;
     if
     :: !entered ->
        /* lock_slow */
        atomic { EMPTY(t) && mem[MUTEX] == 0 -> mem[MUTEX] = 1 };
        load(t, CURRENT, g);
        load(t, OWNER(g), x);
        if
        :: x != NOBODY && x != t + 1 ->
           STORE(ANNOUNCED, 1);
#ifndef NO_HEAVY_BARRIER
           EMPTY(t);
           do
           :: k < THREADS -> EMPTY(k); k++
           :: else -> break
           od;
           k = 0;
#endif
           mem[INSIDE(g)] == 0
        :: else
        fi;
        critical_section();
        /* unlock_slow(): next_bias() may grant the bias to this thread, drop it or keep it */
        if
        :: granted < GENERATIONS && x != t + 1 ->
           granted++;
           STORE(OWNER(granted), t + 1);
           STORE(CURRENT, granted)
        :: x != t + 1 -> STORE(CURRENT, 0)
        :: skip
        fi;
        STORE(ANNOUNCED, 0);
        STORE(MUTEX, 0)
     :: else
     fi
  :: else -> break
  od
}

init {
  byte n = 0;
  atomic {
    do
    :: n < LOCKERS -> run Locker(n); n++
    :: else -> break
    od
  }
}
