"""A sandbox like a container's: system calls that fail with EPERM, for a program and its children.

    subprocess.Popen(..., preexec_fn=denied_calls.deny("process_vm_readv", "process_vm_writev"))

A sandbox that does not know a call at all answers ENOSYS: deny(..., error=errno.ENOSYS).
seccomp(2) with a classic BPF program; needs no privilege. Only the native system call table.
"""
import ctypes
import errno
import platform
import struct
from typing import Callable

_NUMBERS = {
    "x86_64": {"process_vm_readv": 310, "process_vm_writev": 311, "memfd_create": 319,
               "userfaultfd": 323, "membarrier": 324},
    "aarch64": {"process_vm_readv": 270, "process_vm_writev": 271, "memfd_create": 279,
                "userfaultfd": 282, "membarrier": 283},
}
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _MODE_FILTER, _PR_SET_NO_NEW_PRIVS = 22, 2, 38


def deny(*calls: str, error: int = errno.EPERM) -> Callable[[], None]:
    """What a child has to call between fork and exec so that these calls are refused to it."""
    numbers = [_NUMBERS[platform.machine()][call] for call in calls]
    steps = [(_LOAD, 0, 0, 0)]  # the call's number is the first word of seccomp_data
    for number in numbers:
        steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *step) for step in steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)

    def in_child(keep=code):
        del keep  # the program points into it
        if (libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                or libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, program, 0, 0) != 0):
            raise OSError(ctypes.get_errno(), "seccomp")

    return in_child
