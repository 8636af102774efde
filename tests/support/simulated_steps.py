"""How far an artifact's answers are from the simulation's, which `edgekit compress` trains by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekit_converters.compress.network import Network
from edgekit_converters.compress.simulation import Simulation
from edgekit_converters.formats.graph import open_graph
from edgekit_converters.recipe.artifact import Artifact
from edgekit_converters.targets.workspace import Workspace


def steps_apart(
    network: Network,
    simulation: Simulation,
    values: Sequence[NDArray[Any]],
    artifact: Artifact,
    names: Mapping[str, int],
    workspace: Workspace,
    items: NDArray[np.float32],
) -> NDArray[np.float64]:
    """Steps of its range that artifact and simulation are apart in the first answer, [N].

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
