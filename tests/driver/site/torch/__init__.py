"""Stands in for a CUDA 12.8 build of torch.

The torch of the test machine is a CPU build, which rightly says nothing about a driver. A scenario
also plays the build, so that the software collector reads from it what it reads from a real one.
"""

__version__ = "2.7.1+cu128"

from torch import cuda, distributed, version

__all__ = ["cuda", "distributed", "version"]
