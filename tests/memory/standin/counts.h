/* What the stand-in drivers of tests/memory/standin offer beside the vendor's calls: what they have
 * counted, and a switch that makes a call fail. A driver that has no standin_says() is a real one.
 */
#pragma once

#include <stddef.h>

struct standin_counts {
  size_t copies;      /* done, in either direction */
  size_t bytes;       /* of these */
  size_t allocations; /* alive: of devices, managed and of the host */
  size_t queues;      /* alive: streams, command lists */
  size_t contexts;    /* alive: those created, and one for each reference to a primary one */
  size_t watches;     /* alive: callbacks that wait for an allocation to be freed */
  size_t marked;      /* allocations that got SYNC_MEMOPS; command lists where no kernel runs */
  size_t calls;       /* that could have failed, so far */
  size_t shared;      /* alive: allocations of other processes */
  size_t loose;       /* copies under way in queues that were destroyed: they land some day */
  size_t at_once;     /* the most copies that were under way at one time */
};

/* "a stand-in for <library>: it has no device" */
typedef const char* standin_says_fn(void);
typedef void standin_count_fn(struct standin_counts* to);
/* The nth call from now fails that can fail, counted from 1; 0: none. */
typedef void standin_fail_fn(size_t nth);
/* How fast its device copies what is not waited for at once, in bytes per microsecond; 0: as fast
 * as it can. */
typedef void standin_rate_fn(size_t mb_per_s);
