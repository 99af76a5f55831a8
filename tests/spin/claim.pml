/* Claims: src/transport/claim.hpp. The owner polls its request ring, the initiator may take over a run of
 * requests at the head; REQUESTS of them follow one another. Claim: each is done by exactly one side, never
 * by both at once, in order, and whoever does the next sees what was done before; and nobody waits
 * for ever. The initiator may die at any moment: what it has claimed is given up then, and what
 * follows, and nothing is done twice.
 *
 * The light barrier costs nothing at run time: without it the compiler may load the claim word
 * before it stores `executing`. heavy_barrier() is membarrier(2), as in engine_lock.pml.
 *
 * Mutations that must fail: NO_LIGHT_BARRIER (either order), LATE_EXECUTING (always the wrong
 * order), NO_HEAVY_BARRIER, NO_RETRACT (a lost claim is not taken back), RETRACT_TO_NOTHING (it is,
 * but the claim that was finished before is forgotten), WITHDRAW_BEGUN (the owner takes its
 * announcement back in the middle of a request), SKIP_BEFORE (the owner steps over what stands before
 * the last of a run that is claimed and not done), FINISH_ALL (what is given back of a run is called
 * done), DO_AGAIN (the owner does what a dead initiator had claimed), NO_DEATH_RULE (it waits for it).
 * See ./run. */

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef ATTEMPTS
#define ATTEMPTS 2               /* claims of one request */
#endif

#define THREADS 2
#define DEPTH 5
#define OWNER 0
#define INITIATOR 1

#define EXECUTING 0
#define CONSUMED 1
#define CLAIM 2
#define DATA 3                   /* what the requests write: the number of the last one */
#define VARS 4

#define ASK 1
#define TAKEN 2
#define DONE 3
#define WORD(pos, state) (((pos) + 1) * 4 + (state))

#include "store_buffers.pml"

#ifdef RETRACT_TO_NOTHING
#define BEFORE 0
#else
#define BEFORE last
#endif

bool gone;                       /* the initiator has, and nothing of it lands any more */
bool given_up;                   /* by the owner: what is left in the ring */

/* ghosts */
byte at_it[REQUESTS];
byte done[REQUESTS];

#define STORE(t, var, val) atomic { ROOM(t) -> store(t, var, val) }

/* Touches the memory of request p. */
inline work(t, p, seen) {
  at_it[p]++;
  assert(at_it[p] == 1);
  assert(done[p] == 0);
  assert(p == 0 || done[p - 1] == 1);
  load(t, DATA, seen);
  assert(seen == p);
  STORE(t, DATA, p + 1);
  d_step { at_it[p]--; done[p]++ }
}

/* What it had stored is stored. */
#define MAY_DIE if :: EMPTY(INITIATOR) -> gone = true; goto dead :: true fi

proctype Owner() {
  byte pos = 0;
  byte word = 0;
  byte seen = 0;
  bool begun = false;            /* this request: the announcement stands, part may be done */
  bool knows = false;            /* that the initiator has gone */

  do
  :: pos < REQUESTS && !given_up ->
     knows = gone;
#if defined(LATE_EXECUTING)
     load(OWNER, CLAIM, word);
     STORE(OWNER, EXECUTING, pos + 1);
#elif defined(NO_LIGHT_BARRIER)
     if
     :: STORE(OWNER, EXECUTING, pos + 1); load(OWNER, CLAIM, word)
     :: load(OWNER, CLAIM, word); STORE(OWNER, EXECUTING, pos + 1)
     fi;
#else
     STORE(OWNER, EXECUTING, pos + 1);
     load(OWNER, CLAIM, word);
#endif
#ifdef SKIP_BEFORE
#define IS_HELD (word / 4 == pos + 1 && word % 4 != DONE)
#else
#define IS_HELD (word / 4 >= pos + 1 && word % 4 != DONE)
#endif
#ifdef NO_DEATH_RULE
     knows = false;
#endif
     if
#ifdef DO_AGAIN
     :: IS_HELD && knows -> work(OWNER, pos, seen); begun = false; pos++
#else
     :: IS_HELD && knows -> given_up = true
#endif
     :: IS_HELD && !knows ->
        if
#ifndef WITHDRAW_BEGUN
        :: begun
#endif
        :: else -> STORE(OWNER, EXECUTING, pos)
        fi;
#ifdef NO_DEATH_RULE
        mem[CLAIM] != word
#else
        mem[CLAIM] != word || gone  /* wait: the next polls see the same until it changes */
#endif
     :: word / 4 < pos + 1 && !begun ->
        at_it[pos]++;            /* there is no room for more: the rest at a later poll */
        assert(at_it[pos] == 1 && done[pos] == 0);
        begun = true
     :: !(IS_HELD) ->
        if
        :: word / 4 < pos + 1 ->
           d_step { if :: begun -> at_it[pos]-- :: else fi };
           work(OWNER, pos, seen)
        :: else                  /* skip */
        fi;
        begun = false;
        pos++;
        STORE(OWNER, CONSUMED, pos)
     fi
  :: else -> break
  od
}

proctype Initiator() {
  byte pos = 0;                  /* done_through */
  byte last = 0;
  byte x = 0;
  byte y = 0;
  byte seen = 0;
  byte tries = 0;
  byte end = 0;                  /* of the run: the last one */

  do
  :: pos < REQUESTS ->
     load(INITIATOR, CONSUMED, x);
     if
     :: x > pos -> pos = x; tries = 0
     :: x <= pos && tries < ATTEMPTS && mem[EXECUTING] <= pos ->
        tries++;
        end = pos;
        if
        :: pos + 1 < REQUESTS -> end = pos + 1
        :: true
        fi;
        STORE(INITIATOR, CLAIM, WORD(end, ASK));
        MAY_DIE;
#ifndef NO_HEAVY_BARRIER
        EMPTY(INITIATOR);
        EMPTY(OWNER);
#endif
        load(INITIATOR, EXECUTING, x);
        load(INITIATOR, CONSUMED, y);
        if
        :: x > pos || y > pos ->
#ifndef NO_RETRACT
           STORE(INITIATOR, CLAIM, BEFORE)
#else
           skip
#endif
        :: else ->
           STORE(INITIATOR, CLAIM, WORD(end, TAKEN));
           MAY_DIE;
           if
           :: work(INITIATOR, pos, seen);
              MAY_DIE;
              pos++;
              if
              :: pos <= end -> work(INITIATOR, pos, seen); MAY_DIE; pos++
              :: true            /* the rest is given back */
              fi;
#ifdef FINISH_ALL
              last = WORD(end, DONE);
#else
              last = WORD(pos - 1, DONE);
#endif
              STORE(INITIATOR, CLAIM, last);
              MAY_DIE;
              tries = 0
           :: STORE(INITIATOR, CLAIM, BEFORE)  /* the copy is not permitted: given back */
           fi
        fi
     :: x <= pos -> mem[CONSUMED] > pos       /* leaves it to the owner */
     fi
  :: else -> break
  od;
dead:
  skip
}

init {
  atomic { run Owner(); run Initiator() };
  _nr_pr == THREADS + 1 && EMPTY(OWNER) && EMPTY(INITIATOR);
  assert(mem[DATA] == REQUESTS || given_up)
}
