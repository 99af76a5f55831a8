"""A /dev/shm of one's own, for tests that look at what is left in it: in that of all, files of
others come and go.
"""
import ctypes

CLONE_NEWNS = 0x00020000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 1 << 18


def take() -> bool:
    """For this process and what it starts. False: that is not permitted; nothing has changed."""
    libc = ctypes.CDLL(None)
    if libc.unshare(CLONE_NEWNS) != 0:
        return False
    if libc.mount(b"none", b"/", None, ctypes.c_ulong(MS_REC | MS_PRIVATE), None) != 0:
        return False
    return libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", ctypes.c_ulong(MS_NOSUID | MS_NODEV),
                      b"mode=1777") == 0
