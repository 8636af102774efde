"""Which artifact, engine, thread count and delegate answers on this board.
Measured once, remembered, and explained.
"""
