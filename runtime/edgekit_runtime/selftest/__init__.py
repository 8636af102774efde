"""Does this bundle give its golden answers on this machine's engine?

    if first_open(bundle, entry, engine.info): ...        # in a child, once a (bundle, engine, board)
    tested = replay(bundle, entry, engine)                # in this process, at every open

The golden examples travel in the bundle with what the artifact answered on the workstation. They are replayed

- in a child process at the first open of a (bundle, engine, board) triple, so that a crash (an illegal instruction, a
  segmentation fault) is a sentence instead of the application's end; the verdict is stored and not asked for again;
- in this process at every open: that is the warm-up, and it checks the very bytes that will answer. Once all of them
  agreed here, a later open of a slow model replays no more than fit into a few seconds, and one at least.
"""
