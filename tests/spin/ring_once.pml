/* One ring for all lanes of a process: LaneEnd::ring_consumer() in src/transport/lane_end.cpp with
 * link::Ringing, against EngineSleep::prepare() in src/nic/engine_sleep.cpp. Claim: the consumer
 * sees every message of both lanes; it never sleeps with one unseen and no doorbell on its way (that
 * would be an invalid end state).
 *
 * Two threads of one process publish, each over a lane of its own, to one engine of another. Both
 * keep their promise to fence (doorbell.pml has what happens without). The engine numbers its
 * sleeps, and says the number beside each lane's state. A thread that finds its lane asleep marks
 * it, rings, and then says for which sleep; one that finds this said for the sleep that it has
 * marked leaves it at that. The engine may also wake up by itself, and sleep again.
 *
 * Mutations that must fail: SAME_NUMBER (a later sleep has the number of an earlier one), LATE_DRAIN
 * (the doorbell is drained after the states are set), EARLY_NUMBER (of a sleep before the one that
 * is marked), NO_SECOND_LOOK. See ./run. */

#ifndef MESSAGES_0
#define MESSAGES_0 2             /* over lane 0, and over lane 1 */
#endif
#ifndef MESSAGES_1
#define MESSAGES_1 1
#endif
#ifndef RESTLESS
#define RESTLESS 1               /* so often the consumer wakes up by itself */
#endif

#define THREADS 3
#define DEPTH 2
#define CONSUMER 2

#define CELLS 0                  /* messages published, of lane 0 and of lane 1 */
#define STATE 2                  /* of both */
#define BELL 4
#define SAID 5                   /* the sleep that the doorbell was rung for last */
#define VARS 6

/* the state of a lane: hot, asleep, or rung, above it the number of the sleep */
#define HOT 0
#define ASLEEP 1
#define RUNG 2
#define KIND(state) ((state) & 3)
#define NUMBER(state) ((state) >> 2)
#define OF(number, kind) ((number) << 2 | (kind))

#include "store_buffers.pml"

#define STORE(t, var, val) atomic { ROOM(t) -> store(t, var, val) }

proctype Producer(byte me; byte messages) {
  byte n = 0;
  byte state = 0;
  byte number = 0;
  byte said = 0;

  do
  :: n < messages ->
     n++;
     STORE(me, CELLS + me, n);
     EMPTY(me);
     load(me, STATE + me, state);
     if
     :: KIND(state) == ASLEEP ->
        number = NUMBER(state);
        atomic {                 /* a locked exchange, of what is there now */
          EMPTY(me) ->
          if
          :: KIND(mem[STATE + me]) == ASLEEP ->
#ifndef EARLY_NUMBER
             number = NUMBER(mem[STATE + me]);
#endif
             mem[STATE + me] = OF(NUMBER(mem[STATE + me]), RUNG)
          :: else -> number = 0
          fi
        };
        load(me, SAID, said);
        if
        :: number != 0 && said == number
        :: else ->
           atomic { EMPTY(me) -> mem[BELL] = 1 };
           STORE(me, SAID, number)
        fi
     :: else
     fi;
     d_step { state = 0; number = 0; said = 0 }  /* fewer states to search */
  :: else -> break
  od
}

inline drain_bell() { atomic { EMPTY(CONSUMER) -> mem[BELL] = 0 } }

inline look() {
  load(CONSUMER, CELLS, x);
  load(CONSUMER, CELLS + 1, y)
}

proctype Consumer() {
  byte seen = 0;
  byte x = 0;
  byte y = 0;
  byte sleeps = 0;
  byte restless = 0;

  do
  :: seen < MESSAGES_0 + MESSAGES_1 ->
     look();
     if
     :: x + y > seen -> seen = x + y
     :: else ->
#ifndef LATE_DRAIN
        drain_bell();
#endif
#ifdef SAME_NUMBER
        sleeps = 1;
#else
        sleeps++;
#endif
        STORE(CONSUMER, STATE, OF(sleeps, ASLEEP));
        STORE(CONSUMER, STATE + 1, OF(sleeps, ASLEEP));
        EMPTY(CONSUMER);
#ifndef NO_SECOND_LOOK
        look();
#endif
#ifdef LATE_DRAIN
        drain_bell();
#endif
        if
        :: x + y > seen
        :: else ->
           if
           :: mem[BELL] == 1     /* asleep */
           :: restless < RESTLESS -> restless++
           fi
        fi;
        STORE(CONSUMER, STATE, HOT);
        STORE(CONSUMER, STATE + 1, HOT)
     fi;
     d_step { x = 0; y = 0 }
  :: else -> break
  od
}

init {
  atomic { run Producer(0, MESSAGES_0); run Producer(1, MESSAGES_1); run Consumer() }
}
