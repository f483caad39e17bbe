"""`python refused.py COMMAND`: the kernel refuses ptrace and process_vm_readv to it (seccomp)."""

import ctypes
import os
import struct
import sys

LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, REFUSE = 0x7FFF0000, 0x00050000 | 1
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, FILTER = 22, 38, 2
NUMBERS = {"x86_64": (101, 310), "aarch64": (117, 270)}[os.uname().machine]


class Program(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("filter", ctypes.c_void_p))


rows = [
    (LOAD, 0, 0, 0),
    *((EQUAL, len(NUMBERS) - place, 0, number) for place, number in enumerate(NUMBERS)),
    (RETURN, 0, 0, ALLOW),
    (RETURN, 0, 0, REFUSE),
]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in rows))
program = Program(len(rows), ctypes.cast(code, ctypes.c_void_p))
kernel = ctypes.CDLL(None)
assert kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
assert kernel.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program)) == 0
os.execvp(sys.argv[1], sys.argv[1:])
