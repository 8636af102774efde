"""What an .onnx file asks of ONNX Runtime: IR version, opsets, operators with types, shapes.

Rules: operators of ONNX Runtime's own domain and of ai.onnx.ml are not custom; an axis is empty if the file says 0, and
free if it says nothing or a name, the batch aside. Element types are inferred without the weights; in the bodies of
loops and branches they are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from edgekit_converters.formats.needs import Needs, OnnxNode, Use
from edgekit_converters.formats.onnx_file import nodes, parse, values

_NAMES = {11: "double"}
"""Where ONNX Runtime's word for an element type is not that of the file format in small letters."""
_KNOWN = frozenset({"", "ai.onnx", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"})


def read(data: bytes) -> Needs:
    """Read what an ONNX model requires. Raises ConversionError for other bytes."""
    model = parse(data)
    opsets = {entry.domain if entry.domain != "ai.onnx" else "": int(entry.version) for entry in model.opset_import}
    own = {function.name for function in model.functions}
    ops: dict[str, Use] = {}
    custom: dict[str, Use] = {}
    for node in nodes(model.graph):
        layer = node.name or (node.output[0] if node.output else node.op_type)
        if node.domain in _KNOWN:
            ops.setdefault(node.op_type, Use(node.op_type, opsets.get("", 1), layer))
        elif node.op_type not in own:
            name = f"{node.domain}.{node.op_type}"
            custom.setdefault(name, Use(name, opsets.get(node.domain, 1), layer))
    constants = {tensor.name for tensor in model.graph.initializer}
    known = {name: value.shape or () for name, value in values(model.graph).items() if name not in constants}
    external = [tensor.name for tensor in model.graph.initializer if tensor.data_location == tensor.EXTERNAL]
    return Needs(
        "onnx",
        ops=tuple(ops.values()),
        custom=tuple(custom.values()),
        free_axes=tuple(v.name for v in model.graph.input if any(side < 0 for side in known.get(v.name, ())[1:])),
        empty=tuple(name for name, shape in known.items() if 0 in shape),
        ir=int(model.ir_version),
        opsets=opsets,
        nodes=tuple(_typed(model, opsets, own)),
        external=tuple(external),
    )


def _typed(model: Any, opsets: dict[str, int], own: set[str]) -> Iterator[OnnxNode]:
    """Yield each kind of node once, without local functions and unknown domains."""
    types = _types(model)
    seen = set()
    for node in nodes(model.graph):
        domain = "" if node.domain == "ai.onnx" else node.domain
        if node.op_type in own or domain not in _KNOWN:
            continue
        found = _node(node, domain, opsets.get(domain, 1), types)
        key = (found.domain, found.op, found.since, tuple(sorted(found.types.items())))
        if key not in seen:
            seen.add(key)
            yield replace(found, body=_body(node, found, opsets, types)) if found.function else found


def _node(node: Any, domain: str, opset: int, types: dict[str, str]) -> OnnxNode:
    import onnx

    layer = node.name or (node.output[0] if node.output else node.op_type)
    try:
        schema: Any = onnx.defs.get_schema(node.op_type, opset, domain)
    except onnx.defs.SchemaError:  # ONNX Runtime's own domain, or newer than the `onnx` that is installed
        return OnnxNode(domain, node.op_type, opset, layer=layer)
    found: dict[str, str] = {}
    for formals, actual in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for place, name in enumerate(actual):
            formal = formals[min(place, len(formals) - 1)]
            if types.get(name):
                found.setdefault(formal.type_str, types[name])
                found.setdefault(formal.name, types[name])
    function = bool(schema.has_function or schema.has_context_dependent_function)
    return OnnxNode(domain, node.op_type, schema.since_version, found, function, layer=layer)


def _body(node: Any, found: OnnxNode, opsets: dict[str, int], types: dict[str, str]) -> tuple[OnnxNode, ...]:
    """Return the operators of a node's function body; empty if unknown."""
    import onnx

    schema: Any = onnx.defs.get_schema(found.op, opsets.get(found.domain, 1), found.domain)
    numbers = {_NAMES.get(number, name.lower()): number for name, number in onnx.TensorProto.DataType.items()}
    given = [numbers.get(types.get(name, ""), 0) for name in node.input]
    if not all(given):
        return ()
    try:
        if schema.has_function:
            data = schema.get_function_with_opset_version(_newest(schema.function_opset_versions, opsets[""]))
        else:
            version = _newest(schema.context_dependent_function_opset_versions, opsets[""])
            kinds = [onnx.helper.make_tensor_type_proto(kind, None).SerializeToString() for kind in given]
            data = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), kinds)
        function = onnx.FunctionProto.FromString(data)
    except (RuntimeError, ValueError, KeyError, AttributeError, onnx.defs.SchemaError):
        return ()
    model = onnx.ModelProto(opset_import=function.opset_import)
    # the function's nodes, with the attributes that they take from the node that calls it
    outer = {attribute.name: attribute for attribute in node.attribute}
    defaults = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    for inner in function.node:
        made = model.graph.node.add()
        made.CopyFrom(inner)
        del made.attribute[:]
        for attribute in inner.attribute:
            name = attribute.ref_attr_name
            source = outer.get(name) or defaults.get(name)
            if name and (source is None or not source.type):
                continue
            made.attribute.append(source if name else attribute)
            made.attribute[-1].name = attribute.name
    for name, kind in zip(function.input, given, strict=False):
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, None))
    opset = {entry.domain if entry.domain != "ai.onnx" else "": int(entry.version) for entry in function.opset_import}
    return tuple(_typed(model, opset, set()))


def _newest(versions: list[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def _types(model: Any) -> dict[str, str]:
    """Infer tensor -> element type, without the weights."""
    import onnx

    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    light.graph.name = "types"
    light.graph.node.extend(model.graph.node)
    light.graph.input.extend(model.graph.input)
    light.graph.output.extend(model.graph.output)
    light.graph.value_info.extend(model.graph.value_info)
    given = {value.name for value in model.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in given:
            light.graph.input.append(onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    try:
        graph = onnx.shape_inference.infer_shapes(light).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        graph = light.graph
    names = {number: name.lower() for name, number in onnx.TensorProto.DataType.items()} | _NAMES
    return {name: names[value.kind] for name, value in values(graph).items() if value.kind}
