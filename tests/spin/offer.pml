/* The claim word of an offered message: src/qp/offer_sender.cpp (put, next_chunk, push_chunks, end,
 * end_all) against src/qp/offer_receiver.cpp (begin, take_chunk_number, pull_piece, on_data, end).
 * src/qp/offer.hpp draws the protocol.
 *
 * MESSAGES follow one another, all with the same claim word; each has CHUNKS, which the sender pushes
 * through the ring or the receiver pulls out of the buffer. Either side may close its end at any
 * moment, and either may be killed; the sender may find no memory for its ring, and may make the
 * receiver's slot dormant. The word is changed by locked instructions, and is set before the record
 * that offers the message; pin and gate are as gate.pml shows them to be, so that memory is
 * sequentially consistent here.
 *
 * Claim: each chunk is moved once, by one of both, and into a receive that waits for it. The sender has
 * its buffer back once, and nobody reads it from then on. A receive completes once; and well, where its
 * sender has been told so, or has pushed all of it (unless the receiver has closed its end, or was
 * pulling another message when the sender was killed). Nothing fails while both are there and have
 * memory, and nobody waits for ever.
 *
 * Mutations that must fail: PLAIN_ADD, PLAIN_TAKE (the number is read and written in two steps),
 * NO_ID (a number is taken whatever message the word is of), EARLY_BACK (the sender is done when no
 * chunk is left for it), END_WITHOUT_MEMORY (a sender without memory ends that message alone),
 * NO_GATE, NO_GATE_LOOK, FAIL_WHEN_REOPENED (a pull that a dormant slot has kept out fails if the slot
 * is open again by then), NO_DRAIN (what was pushed is forgotten when the sender has gone): an
 * assertion. NO_FINISHED, NO_WAKE, NO_DEATH_RULE: an invalid end state. See ./run. */

#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef DORMANCIES
#define DORMANCIES 1             /* times that the slot is made dormant */
#endif

#define NONE 255
#define BASE(m) (((m) + 1) * 8)  /* claim_base() */
#define NUMBER(w) ((w) % 8)

byte word;
bool gate = true;                /* the permit is in force */
bool pin;
bool dormant;

#define GRANT 1
#define FINISHED 2
#define WAKE 3
chan offers = [1] of { byte };   /* the sender's request ring */
chan data = [2] of { byte, byte }; /* its response ring */
chan replies = [4] of { byte, byte }; /* both of the receiver's */

bool sender_over;                /* as the other side sees it: the connection has ended */
bool receiver_over;
bool sender_dead;
bool receiver_dead;
bool wake_asked;

/* ghosts */
bool may_fail;                   /* one mishap is to come, if it comes at all */
bool excused;                    /* somebody has closed, was killed, or had no memory */
bool back[MESSAGES];
bool sent_well[MESSAGES];
bool received[MESSAGES];
bool received_well[MESSAGES];
bool moved[MESSAGES * CHUNKS];

#define MISHAP(what) atomic { may_fail -> may_fail = false; excused = true; what }

inline complete(well) {
  d_step {
    assert(!back[m]);
    assert(well || excused);
    back[m] = true;
    sent_well[m] = well;
    word = 0;
    out = false;
    m++
  }
}

proctype Sender() {
  byte m = 0;
  bool out = false;              /* m is offered */
  bool granted = false;
  bool nothing_left = false;
  byte pushed = 0;
  byte chunk = NONE;
  byte kind = 0;
  byte about = 0;
  byte dormancies = 0;

  do
  :: !out && m < MESSAGES && nfull(offers) ->
     atomic { word = BASE(m); out = true; granted = false; nothing_left = false; pushed = 0 };
     offers ! m
  :: replies ? kind, about ->
     if
     :: kind == GRANT -> assert(out && about == m); granted = true
     :: kind == FINISHED ->
        assert(out && about == m && received_well[m]);
        complete(true)
     :: kind == WAKE -> dormant = false; wake_asked = false
     fi
  :: out && granted && !nothing_left && nfull(data) ->
     /* next_chunk */
#ifdef PLAIN_ADD
     chunk = NUMBER(word);
     word = BASE(m) + chunk + 1;
#else
     d_step { chunk = NUMBER(word); word++ };
#endif
     if
     :: chunk >= CHUNKS ->
        nothing_left = true;
#ifdef EARLY_BACK
        complete(true)
#endif
     :: chunk < CHUNKS ->
        assert(!back[m]);
        if
        :: data ! m, chunk;
           pushed++;
           if
           :: pushed == CHUNKS -> complete(true)
           :: else
           fi
        :: MISHAP(skip) ->       /* no memory for the ring */
#ifdef END_WITHOUT_MEMORY
           complete(false)
#else
           goto finish
#endif
        fi
     fi;
     chunk = NONE
  :: !dormant && dormancies < DORMANCIES ->  /* make_dormant */
     dormancies++;
     dormant = true;
     if
     :: pin -> dormant = false
     :: !pin
     fi
  :: MISHAP(skip) -> goto finish /* the application closes it */
  :: MISHAP(sender_dead = true; sender_over = true) -> goto over
  :: receiver_over && empty(replies) -> break
  :: m == MESSAGES -> break
  od;
finish:
#ifndef NO_GATE
  gate = false;
  if
  :: !pin
#ifndef NO_DEATH_RULE
  :: receiver_dead
#endif
  fi;
#endif
  if
  :: out -> complete(false)
  :: else
  fi;
  sender_over = true;
over:
  skip
}

#define HAS_WORK(x) \
  (used[x] && (ours[x] == NONE && pulls[x] || ours[x] != NONE && !(dormant && wake_asked)))

inline end(x, well) {
  d_step {
    used[x] = false;
    assert(!received[x]);
    received[x] = true;
    assert(well || excused);
    assert(well || !sent_well[x] || closed || pull_failed);
    received_well[x] = well;
    chunk = 0;
    do
    :: chunk < CHUNKS -> assert(!well || moved[x * CHUNKS + chunk]); chunk++
    :: else -> break
    od;
    chunk = NONE
  }
}

inline move(x, c) {
  d_step {
    assert(used[x]);
    assert(!moved[x * CHUNKS + c]);
    moved[x * CHUNKS + c] = true;
    got[x]++
  }
}

inline end_if_complete(x) {
  if
  :: got[x] == CHUNKS ->
     end(x, true);
#ifndef NO_FINISHED
     if
     :: pulled[x] -> replies ! FINISHED, x
     :: else
     fi
#endif
  :: else
  fi
}

/* What a poll does for a message that is not complete: a chunk's number, or a piece of that chunk. */
inline pull_stalled(x) {
  if
  :: pulls[x] && ours[x] == NONE ->
     /* take_chunk_number */
     seen = word;
     if
#ifndef NO_ID
     :: seen - NUMBER(seen) != BASE(x) -> pulls[x] = false
     :: seen - NUMBER(seen) == BASE(x) ->
#else
     :: true ->
#endif
#ifdef PLAIN_TAKE
        if
        :: true -> word = seen + 1;
#else
        if
        :: d_step { word != seen -> skip }
        :: d_step { word == seen -> word = seen + 1 };
#endif
           if
           :: NUMBER(seen) < CHUNKS -> ours[x] = NUMBER(seen)
           :: else -> pulls[x] = false
           fi
        fi
     fi
  :: ours[x] != NONE && dormant ->
#ifndef NO_WAKE
     wake_asked = true;
     replies ! WAKE, 0
#else
     wake_asked = true
#endif
  :: ours[x] != NONE && !dormant ->
     /* pull_piece: PeerKeyView::pull() */
     pin = true;
     if
     :: true
     :: MISHAP(receiver_dead = true; receiver_over = true) -> goto over
     fi;
#ifdef NO_GATE_LOOK
     open = !dormant;
#else
     d_step { open = !dormant && gate };
#endif
     there = false;
     if
     :: open && !sender_dead ->
        assert(!back[x]);        /* the kernel reads it */
        move(x, ours[x]);
        there = true
     :: else
     fi;
     pin = false;
     if
     :: there -> ours[x] = NONE; pulled[x] = true; end_if_complete(x)
     :: open && !there -> pull_failed = true; break  /* the sender is no more */
     :: !open ->
#ifdef FAIL_WHEN_REOPENED
        if
        :: dormant
        :: !dormant -> break
        fi
#else
        skip                     /* it stays ours */
#endif
     fi
  fi
}

proctype Receiver() {
  bool used[MESSAGES];
  bool pulls[MESSAGES];          /* its claim word may have a chunk for us */
  bool pulled[MESSAGES];
  byte got[MESSAGES];
  byte ours[MESSAGES];           /* the chunk that is ours to pull */
  byte seen = 0;
  byte m = 0;
  byte x = 0;
  byte chunk = NONE;
  bool closed = false;           /* by us: what comes is not taken in; likewise ... */
  bool pull_failed = false;      /* ... when the sender was killed before a pull */
  bool open = false;
  bool there = false;

  do
  :: nempty(offers) ->
     offers ? m;
     used[m] = true;
     pulls[m] = true;
     ours[m] = NONE;
     replies ! GRANT, m
  :: nempty(data) ->
     atomic { data ? m, chunk; move(m, chunk); chunk = NONE };
     end_if_complete(m)
  :: HAS_WORK(0) -> x = 0; pull_stalled(x)
#if MESSAGES > 1
  :: HAS_WORK(1) -> x = 1; pull_stalled(x)
#endif
#ifdef NO_DRAIN
  :: sender_over -> break
#else
  :: sender_over && empty(offers) && empty(data) -> break
#endif
  :: MISHAP(closed = true) -> break
  :: MISHAP(receiver_dead = true; receiver_over = true) -> goto over
  od;
  x = 0;
  do
  :: x < MESSAGES ->
     if
     :: used[x] -> end(x, false)
     :: else
     fi;
     x++
  :: else -> break
  od;
  receiver_over = true;
over:
  skip
}

init {
  atomic {
    if
    :: may_fail = true
    :: skip
    fi;
    run Sender();
    run Receiver()
  }
}
