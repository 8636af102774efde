"""Timing a bundle the way an application uses it.
Through `predict` and `submit`, on the machine that it will run on.

conditions   the machine, and what became of it while something was timed
load         callers in a closed loop, arrivals in an open one
measure      one bundle under one load: what `edgekit bench --json` prints
compare      two of those, unless their conditions differ
"""
