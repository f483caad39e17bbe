"""Stands in for a CUDA 12.8 build of torch.

The torch of a test machine is a CPU build, which rightly says nothing about a driver. A scenario
plays the build, too, so that the software collector reads of it what it reads of a real one.
"""

from torch import cuda, version

__version__ = version.__version__
__all__ = ["__version__", "cuda", "version"]
