"""An ARM board without the board.
Debian's user land under QEMU's user mode, to prove that a bundle installs and agrees.

    # EmulatedReplay(ok=True, runtime="litert 2.3.0", where="emulated", ...)
    found = replay("camera.ekb", load("raspberry-pi-4"))

board, machine   the processor, what it shows, which Debian stands for it, and running its Python
userland         Debian's packages in a folder
replay, guest    the wheelhouse by the board's own pip; golden answers compared, there and here

Everything here was under QEMU and not on hardware, and says so.
"""
