"""Why an artifact lost what it lost.
The cause in words, the figures that show it, and what to do.

    causes = explain(examine(float_graph, quantized_graph, feeds))
    causes[0].what          # "the 0.01 % largest values stretch the range 9x: ..."

Rules:
- a cause is a pure function of the two graphs and of what was measured on them; no model is known by name;
- every figure in the words stands in `evidence` too, as a number;
- `float_layers` names the layers whose return to float takes the cause away: the claim can be tried;
- the layer where most was lost comes first, and what says something of the whole file last.
"""
