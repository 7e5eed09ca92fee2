"""Run first by each Python program that a test starts: it collects garbage rarely, and not at its end.

`import torch` makes a million objects that stay. Looking through them again and again takes 40 % of the CPU time of a
process that imports torch, takes some steps and ends.
"""

import atexit
import gc

gc.set_threshold(1_000_000)
atexit.register(gc.freeze)  # the first to be registered is the last to be called
