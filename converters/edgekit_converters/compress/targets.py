"""The simulated network beside what the converters make of it.

Whose tensor is whose, and how far apart answers are:

    names = tensor_names(network, simulation, values, workspace, "tflite", samples)
    found = steps_apart(network, simulation, values, artifact, names, samples)      # 0 or 1

Rules: tensors are matched by their values on real inputs, whatever a converter calls them; those that the artifact
keeps in float are in float in the simulation too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import Network
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.errors import CompressError
from edgekit_converters.graph.graph import open_graph
from edgekit_converters.targets.artifact import Artifact
from edgekit_converters.targets.workspace import Workspace

_PROBES = 4
_ALIKE = 1e-4
"""Of a tensor's largest magnitude: converters sum in another order."""


def tensor_names(
    network: Network,
    simulation: Simulation,
    values: Sequence[NDArray[Any]],
    workspace: Workspace,
    format: str,  # noqa: A002
    items: NDArray[np.float32],
) -> dict[str, int]:
    """Find the tensor of the target's float graph for each place in the network.

    items: [N, ...], N of 4 or more are better.

    Raises CompressError where the answer itself is not found.
    """
    graph = workspace.graph(format)
    probes = items[:: max(1, len(items) // _PROBES)][:_PROBES]
    own = [[np.sort(np.ravel(one)) for one in simulation.values(item[None], values, ())] for item in probes]
    with graph.watch() as watched:
        theirs = [
            {name: np.sort(np.ravel(value)) for name, value in watched.run(arrays).items()}
            for arrays in workspace.feeds(format, [[item[None]] for item in probes])
        ]
    found: dict[str, int] = {}
    for name in theirs[0]:
        for place in range(len(network.nodes)):
            if all(_alike(mine[place], other[name]) for mine, other in zip(own, theirs, strict=True)):
                found[name] = place
                break
    ends = [{output, head} for output, head in zip(network.outputs, network.heads, strict=True)]
    if not all(end & set(found.values()) for end in ends):
        raise CompressError(
            f"the {format} converter makes another network of this model than the one that is trained",
            where=workspace.source.path.name,
            do="Build without compress",
        )
    return found


def _alike(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.size != other.size:
        return False
    return float(np.abs(one - other).max(initial=0)) <= _ALIKE * max(float(np.abs(one).max(initial=0)), 1e-6)


def steps_apart(
    network: Network,
    simulation: Simulation,
    values: Sequence[NDArray[Any]],
    artifact: Artifact,
    names: Mapping[str, int],
    workspace: Workspace,
    items: NDArray[np.float32],
) -> NDArray[np.float64]:
    """How many steps of its range artifact and simulation are apart, of each item, [N].

    What is compared is the first answer, before a softmax.

    items: [N, ...].
    """
    form = artifact.recipe.format
    graph = open_graph(form, artifact.data)
    held = frozenset(place for name, place in names.items() if name in graph.grids)
    ends = {place: name for name, place in names.items()}
    at = next(place for place in (network.logits, network.output) if place in ends)
    low, high = simulation.ranges(values)[at]
    own = np.asarray(simulation.values(items, values, held)[at]).reshape(len(items), -1)
    with graph.watch([ends[at]]) as watched:
        feeds = workspace.feeds(form, [[item[None]] for item in items])
        answers = np.stack([np.ravel(watched.run(arrays)[ends[at]]) for arrays in feeds])
    return np.asarray(np.abs(answers - own).max(axis=1) / ((high - low) / 255), np.float64)
