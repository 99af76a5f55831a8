/* Memory windows for libfabric programs, as the provider "aperture" offers them.
 *
 * A window gives peers leave to read or write a part of a memory region for a while, under a key of
 * its own, without registering anything: remote rights that the region does not have, for one
 * endpoint, or for one peer, or for everybody with the key; and takes it away again. After
 * invalidate() has returned, or the completion of a message with invalidation has been read,
 * nothing older lands. aperture_fi_window(3) is the manual page, examples/window.c an example.
 *
 *   struct aperture_window_ops *ops;
 *   int rc = fi_open_ops(&domain->fid, APERTURE_WINDOW_OPS, 0, (void **)&ops, NULL);
 *
 * The calls may be made for every object of that provider, whichever domain the ops came from. Any
 * thread may make them; two calls for the same window at once, or a call while an object that it
 * names is closed, are the application's to keep apart. None blocks, but invalidate() and fi_close
 * of a window, for 5 seconds at most. Lengths are bytes. C and C++.
 *
 * Every call returns 0 or a negative fi_errno, writes its output on success only, and logs a
 * sentence that says why it refused (APERTURE_LOG=warn).
 */
#ifndef APERTURE_FI_WINDOW_H
#define APERTURE_FI_WINDOW_H

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The name for fi_open_ops. The number grows when something changes; what is added at the end of
 * a structure is told by its size alone. */
#define APERTURE_WINDOW_OPS "aperture_window_ops/1"

/* In the flags of a receive completion: the message came with an invalidation, which has been
 * carried out; `data` of the entry is the key that was invalidated. FI_REMOTE_CQ_DATA is not
 * set. The bit is libfabric's for providers (FI_PROV_SPECIFIC, a name that 2.x headers lack). */
#define APERTURE_INVALIDATED ((uint64_t)1 << 31)

/* fclass of a window's fid. */
#define APERTURE_CLASS_WINDOW (((size_t)1 << 31) | 1)

/* Flag of a bind: peers give offsets from the window's first byte, whatever the domain's mr_mode
 * is. */
#define APERTURE_WINDOW_ZERO_BASED ((uint64_t)1)

/* A window. The provider's; read it only. */
struct aperture_window {
  struct fid fid; /* fi_close(&window->fid) ends its binding as invalidate does, and frees it */
  uint64_t key;   /* given by the last bind; FI_KEY_NOTAVAIL: none yet, or invalidated here */
};

struct aperture_window_attr {
  size_t size;    /* sizeof(struct aperture_window_attr) */
  uint64_t flags; /* 0 */
  void* context;  /* of the fid */
};

struct aperture_window_bind {
  size_t size;       /* sizeof(struct aperture_window_bind) */
  struct fid_mr* mr; /* of the window's domain; stays open as long as the window is bound */
  uint64_t addr;     /* first byte, as peers address the region: an address with FI_MR_VIRT_ADDR,
                         else an offset from its start */
  uint64_t length;   /* bytes, more than 0; inside the region */
  uint64_t access;   /* FI_REMOTE_READ, FI_REMOTE_WRITE (atomics too) or both */
  struct fid_ep* ep; /* reached through this endpoint only; NULL: any of the domain that has the
                         region's authorization key */
  fi_addr_t peer;    /* and from this peer of it only; FI_ADDR_UNSPEC: from any */
  uint64_t flags;    /* 0 or APERTURE_WINDOW_ZERO_BASED */
};

struct aperture_window_ops {
  size_t size; /* bytes of this structure that the provider knows */

  /* A window that is bound to nothing. attr may be NULL.
   * -FI_EINVAL, -FI_EBADFLAGS, -FI_ENOMEM. */
  int (*allocate)(struct fid_domain* domain, const struct aperture_window_attr* attr,
                  struct aperture_window** window);

  /* In force when it returns, under a new key: 64 bits, drawn, never guessable. The region must
   * have a local right that fits: FI_SEND, FI_WRITE or FI_REMOTE_READ for remote reads, FI_RECV,
   * FI_READ or FI_REMOTE_WRITE for remote writes.
   * -FI_EBUSY         it is bound: invalidate it first
   * -FI_EACCES        the region lacks such a right
   * -FI_EDOMAIN       region or endpoint belong to another domain, or to another authorization key
   * -FI_EOPBADSTATE   the region is not in force (not registered yet, not enabled, being closed,
   *                   its endpoint is closed), or the endpoint of `peer` is not enabled
   * -FI_EINVAL        anything else in `bind`, such as a range that leaves the region
   * -FI_EBADFLAGS, -FI_ENOSPC, -FI_ENOMEM */
  int (*bind)(struct aperture_window* window, const struct aperture_window_bind* bind,
              uint64_t* key);

  /* Refused from now on; when it returns 0 nothing older can land any more, and the window may be
   * bound again. 0 too if a peer was first.
   * -FI_EBUSY         a peer is still inside and cannot be fenced: refused all the same; call again
   * -FI_EOPBADSTATE   it is not bound */
  int (*invalidate)(struct aperture_window* window);

  /* fi_send, and before it the peer's window of that key is invalidated: its receive completion
   * comes after that (APERTURE_INVALIDATED). The window must be bound to the endpoint that is sent
   * to and, if bound to a peer as well, to this one; else the message is not delivered and the send
   * completes with FI_EACCES, while both endpoints go on. It completes when the peer's side has
   * carried it out. FI_MSG endpoints; `key` as it is given to fi_write.
   * Errors of fi_send; with FI_MR_RAW -FI_ENOKEY: the key is not mapped. */
  ssize_t (*send_inv)(struct fid_ep* ep, const void* buf, size_t len, void* desc,
                      fi_addr_t dest_addr, uint64_t key, void* context);
};

#ifdef __cplusplus
}
#endif

#endif /* APERTURE_FI_WINDOW_H */
