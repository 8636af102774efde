"""The step `split` of `edgekit compress`: boxes and scores become outputs.

Each has a scale of its own.

    made, split = split_model(path, bench.subject)              # a TrainedFile that nothing has trained
    write_whole(contract_file.default_file(candidate), split.contract_text(file).encode(), "the contract file")
    subject = split.subject(candidate, subject, request.metric)         # compared with the same answers as before

Rules: the model's numbers stay what they were, so that its answers are compared with the original's; a metric function
still reads the original's one output; the contract file of the result says where boxes and scores are now.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekit.building.subject import BuildSubject
from edgekit_converters.compress.record import JoinedOutput
from edgekit_converters.contract_file.describe import describe, find_contract_file
from edgekit_converters.contract_file.tasks import read_document
from edgekit_converters.fidelity.metrics import named_metric
from edgekit_converters.fidelity.reference import Reference
from edgekit_converters.sources.load import open_source
from edgekit_converters.sources.model import LoadOptions, toml_text
from edgekit_converters.store import NO_STORE
from edgekit_runtime.contract.spec import Contract


def can_split(subject: BuildSubject) -> bool:
    """Whether one output of the model holds boxes and scores."""
    from edgekit_converters.compress import split

    return split.can_split(subject.contract)


@dataclass(frozen=True)
class OutputSplit:
    """How a model's one output was split.

    before: the contract of the model whose output it was.
    names: of its new outputs.
    joined: what gives the old one of them, None where nothing does.
    """

    before: Contract
    names: tuple[str, ...]
    joined: JoinedOutput | None

    def answers(self, given: Reference, contract: Contract | None = None) -> Reference:
        """Answers as the model gives them now.

        contract: of the model that gave them, None for this one before.
        """
        from edgekit_converters.compress.split import split_answer

        before = contract or self.before
        return replace(given, outputs=tuple(split_answer(one, before, self.names) for one in given.outputs))

    def contract_text(self, file: Path) -> str:
        """Of the contract file for the new model. file: that of the model before."""
        from edgekit_converters.compress.split import detection_keys

        said = dict(read_document(file).data)
        detection = {**said.pop("detection", {}), **detection_keys(self.before, self.names)}
        inputs = said.pop("inputs", None)
        if inputs:  # one, since it is trained
            (said["input"],) = inputs.values()
        if self.before.labels:
            said["labels"] = list(self.before.labels)
        head = f"# Written by edgekit compress, which gave boxes and scores an output each. Before: {file.name}\n\n"
        return head + toml_text({**said, "detection": detection})

    def subject(self, path: Path, subject: BuildSubject, metric: str | None) -> BuildSubject:
        """path: of the new model, its contract file beside it. subject: of the model before."""
        source = open_source(path, LoadOptions(), NO_STORE)
        contract = describe(source, find_contract_file(path))
        named = named_metric(metric, contract.of_caller, self.joined) if metric else None
        reference = self.answers(subject.reference)
        return replace(subject, source=source, contract=contract, metric=named, reference=reference)


def split_model(path: Path, subject: BuildSubject) -> tuple[Any, OutputSplit]:
    """Split a model's output: (TrainedFile, how it was split).

    Raises CompressError for a model that cannot be made again.
    """
    from edgekit_converters.compress import split
    from edgekit_converters.compress.qat import TrainedFile, open_network
    from edgekit_converters.sources.quiet import quiet

    with tempfile.TemporaryDirectory(prefix="edgekit-") as scratch, quiet():
        model = split.split(open_network(path), subject.contract)
        names = tuple(map(str, model.output_names))
        model.save(Path(scratch) / "model.keras")
        data = (Path(scratch) / "model.keras").read_bytes()
    made = TrainedFile(data, {}, {"outputs": list(names)})
    return made, OutputSplit(subject.contract, names, split.joining(subject.contract, names))
