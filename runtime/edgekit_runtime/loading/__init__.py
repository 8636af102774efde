"""From a verified bundle to an engine that is proven on this board.

tuning     which artifact, engine, threads and delegate run here: measured once in a child, kept, explained
selftest   the golden examples in a child at the first open of a (bundle, engine, board), so that a crash is an error
replay     the same examples in this process at every open: the warm-up, with the bytes that will answer
readiness  all of it in order, within the free memory
"""
