"""From a verified bundle to an engine that is proven on this board.

tuning     the artifact, engine, threads and delegate that answer here: measured once in a child, remembered, explained
selftest   the golden examples, in a child at the first open of a (bundle, engine, board), so that a crash is a sentence
replay     the same in this process at every open: the warm-up, which checks the very bytes that will answer
readiness  all of it in order, within the memory that is free
"""
