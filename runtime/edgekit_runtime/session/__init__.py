"""Sessions: how a model that keeps a state is asked, frame by frame.

    with model.session() as session:
        for frame in microphone:                       # what the contract takes, without the state
            answer = session.predict(frame)
        session.reset()                                # the next frame is a first one

Rules:
- two sessions never mix: a state that goes in and comes out is kept here, one a session, and runs on the model's own
  engine in turn; a state that the model keeps inside needs an engine of its own, so there is one a session;
- frames are answered in the order in which they were asked for, whichever of `predict`, `submit` and `apredict` asked,
  and `reset` takes its turn among them;
- a frame that is refused (bad input) or withdrawn (its future cancelled before its turn) was never fed: the state is as
  before it. So it is after a failed inference where the state goes in and comes out; where it is inside, it is unknown
  it any more, and the session answers nothing until it is reset;
- no cache, no batching, no single flight, no host: the same frame has another answer the next time;
- closing fails what waits with ClosedError, lets the running frame end, and frees the session's engine.
"""
