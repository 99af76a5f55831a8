/* Threads with store buffers (total store order, as x86 has it): included by the models.
 *
 * THREADS, VARS and DEPTH are defined by the model. A store goes into the thread's buffer, a load
 * sees the thread's own newest buffered store or else memory, a fence waits until the buffer is
 * empty, and buffers drain at any moment, also those of stopped and dead threads. `i` and `j` are
 * scratch. */

byte mem[VARS];
byte buf_var[THREADS * DEPTH];
byte buf_val[THREADS * DEPTH];
byte buf_len[THREADS];
hidden byte i;

#define EMPTY(t) (buf_len[t] == 0)
#define ROOM(t) (buf_len[t] < DEPTH)

inline store(t, var, val) {
  d_step {
    buf_var[(t) * DEPTH + buf_len[t]] = var;
    buf_val[(t) * DEPTH + buf_len[t]] = val;
    buf_len[t]++
  }
}

inline load(t, var, to) {
  d_step {
    to = mem[var];
    i = 0;
    do
    :: i < buf_len[t] ->
       if
       :: buf_var[(t) * DEPTH + i] == (var) -> to = buf_val[(t) * DEPTH + i]
       :: else
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

/* The oldest store of a thread becomes visible. */
inline drain_one(t) {
  d_step {
    mem[buf_var[(t) * DEPTH]] = buf_val[(t) * DEPTH];
    i = 1;
    do
    :: i < buf_len[t] ->
       buf_var[(t) * DEPTH + i - 1] = buf_var[(t) * DEPTH + i];
       buf_val[(t) * DEPTH + i - 1] = buf_val[(t) * DEPTH + i];
       i++
    :: else -> break
    od;
    buf_len[t]--;
    buf_var[(t) * DEPTH + buf_len[t]] = 0;
    buf_val[(t) * DEPTH + buf_len[t]] = 0;
    i = 0
  }
}

active [THREADS] proctype Drain() {
end:
  do
  :: atomic { buf_len[_pid] > 0 -> drain_one(_pid) }
  od
}
