__version__ = "2.7.1+cu128"
cuda = "12.8"
hip = None
