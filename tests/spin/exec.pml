/* The mark of an owner whose program has ended: src/protect/image_watch.cpp (begin) and the kernel
 * against src/protect/peer_key_view.cpp (probe, is_open, piece, pull). docs/revocation.md, "What
 * remains".
 *
 * A peer names the owner's memory by the number of a process. exec replaces what is behind that
 * number, and so does a new process once the owner has been killed and reaped. The kernel is taken
 * at its word: all other threads, and the control thread with them, have ended before exec replaces
 * the memory, or before a number is given anew; where a thread ends a word that it said it holds is
 * marked if it bears its number; and a copy that has begun has the memory that it found. The mark is
 * made by a locked instruction, and accessors store nothing there: memory is sequentially consistent.
 *
 * Claim: nothing is copied to or from another program, if no accessor is held up, between its look at
 * the word and its call, for as long as the kernel takes from the mark to the new program. With
 * HELD_UP it may be: then one copy of each accessor at most.
 *
 * Mutations that must fail: HELD_UP without ALLOWED=1 (which says what remains), NO_LOOK, LOOK_ONCE
 * (before the first chunk alone), LATE_LOOK (behind the copy), NO_PROBE (the number may be another's
 * where the accessor is), LATE_BEGIN (peers have the key file before the kernel knows of the word),
 * NO_NUMBER (the word bears none), NO_LIST (the kernel has not been told of it), LATE_MARK (a kernel
 * that marks when the new memory is there). See ./run. */

#ifndef ACCESSORS
#define ACCESSORS 2
#endif
#ifndef CHUNKS
#define CHUNKS 3
#endif
#ifndef ALLOWED
#define ALLOWED 0                /* copies of each accessor that may go to another program */
#endif

#define OWNER 1
#define NOBODY 2
#define ANOTHER 3
byte at_number = OWNER;          /* whose memory the owner's number names */

#define HELD 1
#define ENDED 2
byte image;                      /* KeyHeader::image */
bool listed;                     /* set_robust_list(2) */
bool published;                  /* peers have the key file */
bool ending;                     /* the control thread runs no more */
bool between[ACCESSORS];         /* its look at the word and its call */
#if ACCESSORS == 1
#define NOBODY_BETWEEN !between[0]
#else
#define NOBODY_BETWEEN (!between[0] && !between[1])
#endif

#define THREAD(step) atomic { if :: !ending -> step :: ending -> goto over fi }

/* The control thread: ImageWatch::begin(), and a peer is accepted. */
proctype Control() {
#ifdef LATE_BEGIN
  THREAD(published = true);
#endif
#ifndef NO_NUMBER
  THREAD(image = HELD);
#endif
#ifndef NO_LIST
  THREAD(listed = true);
#endif
#ifndef LATE_BEGIN
  THREAD(published = true);
#endif
over:
  skip
}

#define MARK \
  if \
  :: listed && image == HELD -> image = ENDED \
  :: else \
  fi

/* exec, or death and a new process. */
proctype Kernel() {
  ending = true;
#ifndef LATE_MARK
  d_step { MARK };
#endif
  if
  :: at_number = NOBODY
  :: true
  fi;
  atomic {
#ifndef HELD_UP
    NOBODY_BETWEEN ->
#endif
    at_number = ANOTHER
  };
#ifdef LATE_MARK
  d_step { MARK }
#endif
}

inline look() {
  d_step {
    seen = image;
    between[a] = (seen != ENDED)
  }
}

proctype Accessor(byte a) {
  byte seen = 0;
  byte found = 0;
  byte chunk = 0;
  byte astray = 0;
  bool elsewhere = false;        /* here the number is another process's */

end:
  published;
  if
  :: elsewhere = true
  :: skip
  fi;
#ifndef NO_PROBE
  if
  :: !elsewhere && at_number == OWNER  /* the nonce is there */
  :: elsewhere || at_number != OWNER -> goto over
  fi;
#endif
  do
  :: chunk < CHUNKS ->
#if defined(NO_LOOK) || defined(LATE_LOOK)
     skip;
#elif defined(LOOK_ONCE)
     if
     :: chunk == 0 -> look()
     :: else
     fi;
#else
     look();
#endif
     if
     :: seen == ENDED -> break   /* through the ring, to nobody */
     :: else
     fi;
     atomic {
       found = (elsewhere -> ANOTHER : at_number);
       between[a] = false
     };
     if
     :: found == ANOTHER -> astray++; assert(astray <= ALLOWED)
     :: found == NOBODY -> break /* ESRCH */
     :: found == OWNER
     fi;
#ifdef LATE_LOOK
     d_step { seen = image };
     if
     :: seen == ENDED -> break
     :: else
     fi;
#endif
     chunk++
  :: else -> break
  od;
over:
  skip
}

init {
  byte k = 0;
  atomic {
    run Control();
    run Kernel();
    do
    :: k < ACCESSORS -> run Accessor(k); k++
    :: else -> break
    od
  }
}
