/* Sleep and doorbell: LaneEnd::wake_consumer() in src/transport/lane_end.hpp against
 * EngineSleep::prepare() in src/nic/engine_sleep.cpp. Claim: the consumer sees every message; it
 * never sleeps with one unseen and no doorbell on its way (that would be an invalid end state).
 *
 * The producer begins with a promise to fence, may take it back at any message, and may give it
 * again. The consumer relies on it or passes a heavy barrier. A system call on the doorbell is
 * atomic and comes after all earlier stores of its thread.
 *
 * Mutations that must fail: NO_LIGHT_BARRIER (without a fence, the state may be looked at before
 * the message is published), NO_HEAVY_BARRIER, NO_SECOND_LOOK, LATE_DRAIN (the doorbell is drained
 * after the second look), NO_PRODUCER_FENCE, NO_CONSUMER_FENCE, NO_WITHDRAWAL_FENCE, EARLY_PROMISE
 * (the promise is looked at before the consumer's fence), LATE_PROMISE (after the second look). See
 * ./run. */

#ifndef MESSAGES
#define MESSAGES 3
#endif

#define THREADS 2
#define DEPTH 4
#define PRODUCER 0
#define CONSUMER 1

#define CELLS 0                  /* messages published */
#define STATE 1
#define BELL 2
#define PROMISE 3
#define VARS 4

#define HOT 0
#define ASLEEP 1
#define RUNG 2

#include "store_buffers.pml"

#define STORE(t, var, val) atomic { ROOM(t) -> store(t, var, val) }

proctype Producer() {
  byte n = 0;
  byte state = 0;
  bool fences = true;            /* as promised before the lane was used: see init */

  do
  :: n < MESSAGES ->
     n++;
     if
     :: fences ->
        STORE(PRODUCER, CELLS, n);
#ifndef NO_PRODUCER_FENCE
        EMPTY(PRODUCER);
#endif
        if
        :: true ->               /* the consumer has not slept for long: no longer */
           STORE(PRODUCER, PROMISE, 0);
           fences = false;
#ifndef NO_WITHDRAWAL_FENCE
           EMPTY(PRODUCER)
#endif
        :: true
        fi;
        load(PRODUCER, STATE, state)
     :: else ->
#ifdef NO_LIGHT_BARRIER
        if
        :: STORE(PRODUCER, CELLS, n); load(PRODUCER, STATE, state)
        :: load(PRODUCER, STATE, state); STORE(PRODUCER, CELLS, n)
        fi
#else
        STORE(PRODUCER, CELLS, n);
        load(PRODUCER, STATE, state)
#endif
     fi;
     if
     :: state == ASLEEP ->
        atomic {                 /* a locked exchange */
          EMPTY(PRODUCER) ->
          if
          :: mem[STATE] == ASLEEP -> mem[STATE] = RUNG
          :: else
          fi
        };
        atomic { EMPTY(PRODUCER) -> mem[BELL] = 1 };
        if
        :: !fences ->            /* it sleeps again and again */
           fences = true;
           STORE(PRODUCER, PROMISE, 1)
        :: true
        fi
     :: else
     fi
  :: else -> break
  od
}

inline drain_bell() { atomic { EMPTY(CONSUMER) -> mem[BELL] = 0 } }

proctype Consumer() {
  byte seen = 0;
  byte x = 0;
  byte promised = 0;

  do
  :: seen < MESSAGES ->
     load(CONSUMER, CELLS, x);
     if
     :: x > seen -> seen = x
     :: else ->
#ifndef LATE_DRAIN
        drain_bell();
#endif
#ifdef EARLY_PROMISE
        load(CONSUMER, PROMISE, promised);
#endif
        STORE(CONSUMER, STATE, ASLEEP);
#ifndef NO_CONSUMER_FENCE
        EMPTY(CONSUMER);
#endif
#ifdef LATE_PROMISE
        load(CONSUMER, CELLS, x);
#endif
#ifndef EARLY_PROMISE
        load(CONSUMER, PROMISE, promised);
#endif
#ifndef NO_HEAVY_BARRIER
        if
        :: promised == 0 -> EMPTY(CONSUMER); EMPTY(PRODUCER)
        :: else
        fi;
#endif
#ifndef NO_SECOND_LOOK
#ifndef LATE_PROMISE
        load(CONSUMER, CELLS, x);
#endif
#endif
#ifdef LATE_DRAIN
        drain_bell();
#endif
        if
        :: x > seen
        :: else -> mem[BELL] == 1            /* asleep */
        fi;
        STORE(CONSUMER, STATE, HOT)
     fi
  :: else -> break
  od
}

init {
  atomic { mem[PROMISE] = 1; run Producer(); run Consumer() }
}
