/* Sleep and doorbell: ChannelTx::must_ring() in src/ring/channel.hpp against Engine::prepare_to_sleep()
 * in src/nic/engine.cpp. Claim: the consumer sees every message; it never sleeps with one unseen
 * and no doorbell on its way (that would be an invalid end state).
 *
 * A system call on the doorbell is atomic and comes after all earlier stores of its thread.
 *
 * Mutations that must fail: NO_LIGHT_BARRIER (the state may be looked at before the message is
 * published), NO_HEAVY_BARRIER, NO_SECOND_LOOK, LATE_DRAIN (the doorbell is drained after the
 * second look). See ./run. */

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
#define VARS 3

#define HOT 0
#define ASLEEP 1
#define RUNG 2

#include "store_buffers.pml"

#define STORE(t, var, val) atomic { ROOM(t) -> store(t, var, val) }

proctype Producer() {
  byte n = 0;
  byte state = 0;

  do
  :: n < MESSAGES ->
     n++;
#ifdef NO_LIGHT_BARRIER
     if
     :: STORE(PRODUCER, CELLS, n); load(PRODUCER, STATE, state)
     :: load(PRODUCER, STATE, state); STORE(PRODUCER, CELLS, n)
     fi;
#else
     STORE(PRODUCER, CELLS, n);
     load(PRODUCER, STATE, state);
#endif
     if
     :: state == ASLEEP ->
        STORE(PRODUCER, STATE, RUNG);
        atomic { EMPTY(PRODUCER) -> mem[BELL] = 1 }
     :: else
     fi
  :: else -> break
  od
}

inline drain_bell() { atomic { EMPTY(CONSUMER) -> mem[BELL] = 0 } }

proctype Consumer() {
  byte seen = 0;
  byte x = 0;

  do
  :: seen < MESSAGES ->
     load(CONSUMER, CELLS, x);
     if
     :: x > seen -> seen = x
     :: else ->
#ifndef LATE_DRAIN
        drain_bell();
#endif
        STORE(CONSUMER, STATE, ASLEEP);
#ifndef NO_HEAVY_BARRIER
        EMPTY(CONSUMER);
        EMPTY(PRODUCER);
#endif
#ifndef NO_SECOND_LOOK
        load(CONSUMER, CELLS, x);
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
  atomic { run Producer(); run Consumer() }
}
