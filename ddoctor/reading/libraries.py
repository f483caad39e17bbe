"""Which files hold code that is not the user's."""

from __future__ import annotations

import re

# Names and versions of folders may be replaced.
# Cython names its sources as they lay where a library was built: numpy/random/_common.pyx.
LIBRARY = re.compile(
    r"^<|(^|/)(site|dist)-packages/|/lib(64)?/python\d+(\.\d+)?/|\.zip/|^(torch|deepspeed)/"
    r"|^(?!/).*\.p(yx|xd|xi)$"
)
# Files of native code, as tools name them that show it between the frames of Python.
NATIVE = re.compile(r"\.(?:so(?:\.\d+)*|c|cc|cpp|cxx|cu|h|hpp|S)$")
