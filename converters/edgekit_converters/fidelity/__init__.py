"""How far an artifact drifts from the original, measured with the engine that boards run.

    answers = reference(source, contract, dataset)                     # the original, once
    found = compare(answers, artifact, Evaluation(contract, dataset))  # each artifact
    golden = list(dataset.pick(pick_golden(answers)))

Rules:
- the artifact runs as a board runs it: its own engine, one item at a time, adapted and finished by the runtime;
- a drop is computed from counts, so that one item of twenty is 0.05 and not nearly so;
- an accuracy never comes without its interval;
- an answer that is not finite is a wrong answer, never a missing one.
"""
