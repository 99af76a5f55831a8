/* A peer whose slots are made dormant, and woken again, while it copies and the owner closes and
 * registers regions: src/protect/peer_key_view.cpp (piece) against src/protect/accessors.cpp
 * (make_dormant, wake) and src/protect/revocation.cpp (revoke_now). docs/revocation.md, "Dormant peers".
 *
 * While the peer is dormant a close asks nobody, passes no fence and returns at once. That a close
 * waits for who is inside is revocation.pml's; here it waits for the pin alone. Claim: no copy lands
 * in a life of the region whose close has returned.
 *
 * Mutations that must fail: NO_FENCE_A, NO_FENCE_D, NO_SLOT_LOOK, LATE_SLOT_LOOK (behind the second
 * look at the entry), NO_PIN_LOOK, LATE_WAKE (open before the peer is asked again). See ./run. */

#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef STEPS
#define STEPS 4
#endif

#define THREADS 2
#define DEPTH 4

#define STATE 0                  /* the entry: life << 1 | refused */
#define CLOSED 1
#define PIN 2
#define VARS 3

#include "store_buffers.pml"

#define ACCESSOR 0
#define OWNER 1

bool returned[STEPS + 2];

proctype Accessor() {
  byte seen = 0;
  byte again = 0;
  byte closed = 0;
  byte chunk = 0;

  do
  :: chunk < CHUNKS ->
     load(ACCESSOR, STATE, seen);
     if
     :: (seen & 1) == 0 ->
        ROOM(ACCESSOR) -> store(ACCESSOR, PIN, seen >> 1);
#ifndef NO_FENCE_A
        EMPTY(ACCESSOR);
#endif
#ifdef LATE_SLOT_LOOK
        load(ACCESSOR, STATE, again);
        load(ACCESSOR, CLOSED, closed);
#else
#ifndef NO_SLOT_LOOK
        load(ACCESSOR, CLOSED, closed);
#endif
        load(ACCESSOR, STATE, again);
#endif
        if
        :: closed == 0 && again == seen -> assert(!returned[seen >> 1])  /* the copy lands */
        :: else
        fi;
        ROOM(ACCESSOR) -> store(ACCESSOR, PIN, 0)
     :: else
     fi;
     chunk++
  :: else -> break
  od
}

proctype Owner() {
  byte life = 1;
  byte pin = 0;
  byte steps = 0;
  bool awake = true;

  do
  :: steps < STEPS ->
     steps++;
     if
     :: awake ->  /* make_dormant */
        ROOM(OWNER) -> store(OWNER, CLOSED, 1);
#ifndef NO_FENCE_D
        EMPTY(OWNER);
#endif
        pin = 0;
#ifndef NO_PIN_LOOK
        load(OWNER, PIN, pin);
#endif
        if
        :: pin == 0 -> awake = false
        :: else -> ROOM(OWNER) -> store(OWNER, CLOSED, 0)
        fi
     :: !awake ->  /* wake */
#ifdef LATE_WAKE
        ROOM(OWNER) -> store(OWNER, CLOSED, 0);
        ROOM(OWNER) -> store(OWNER, STATE, life << 1 | 1);
        returned[life] = true;
        life++;
        ROOM(OWNER) -> store(OWNER, STATE, life << 1);
        awake = true
#else
        awake = true;
        ROOM(OWNER) -> store(OWNER, CLOSED, 0)
#endif
     :: true ->  /* revoke_now, and another life */
        ROOM(OWNER) -> store(OWNER, STATE, life << 1 | 1);
        if
        :: awake ->
           EMPTY(OWNER);
           mem[PIN] != life  /* it waits */
        :: else
        fi;
        returned[life] = true;
        life++;
        ROOM(OWNER) -> store(OWNER, STATE, life << 1)
     fi
  :: else -> break
  od
}

init {
  atomic {
    mem[STATE] = 1 << 1;
    run Accessor();
    run Owner()
  }
}
