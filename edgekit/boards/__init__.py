"""A board before it is at hand: will a bundle load and agree there, and how fast?

checked, replay        findings from the files alone, then golden answers on the board's own version of the runtime
estimates, anchoring   the latency estimate, layer by layer; MobileNetV1 timed, which narrows its range
emulated_board, qemu   Debian's user land under QEMU's user mode; everything found there says so
catalogue              what each finding's code means, and what to do
"""
