"""Measure how far an artifact drifts from the original, with the engine that boards run.

    answers = reference(source, contract, dataset)                     # the original, once
    found = compare(answers, artifact, Evaluation(contract, dataset))  # each artifact

Rules:
- the artifact runs as on a board: its own engine, one item at a time, adapted and finished by the runtime;
- an accuracy never comes without its interval;
- an answer that is not finite is a wrong answer, never a missing one.
"""
