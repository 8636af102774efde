"""Keras files: `.keras`, and HDF5 of Keras 1 and 2, through Keras 3 or else tf_keras.

    source = load(Path("net.keras"), LoadOptions())
    for piece in code(config): print(piece)         # "the layer 'double' is a Lambda: it holds Python code"

Rules:
- classes, functions and activations must be in a list here, else the file is refused before Keras opens it, unless it
  is trusted; modules must be Keras' own, because Keras imports what a config names;
- safe mode stays on; the optimizer and the training's settings are not read;
- a file's declared sizes are bounded, and its weights are its own (`load.check_archive`);
- the model must have fixed inputs (functional, sequential with an Input, or built).
"""

from __future__ import annotations

import importlib.util
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from edgekit_converters.recipe.conversion_errors import SourceError, one_line
from edgekit_converters.recipe.foreign_code import import_keras, quiet
from edgekit_converters.sources.load import check_archive, check_hdf5
from edgekit_converters.sources.shapes import check_finite, check_inputs, check_named, image_layout, pin, unique_names
from edgekit_converters.sources.source_model import LoadOptions, Note, model_sha256
from edgekit_converters.sources.traced import Origin, TracedNetwork, TracedSource, describe_traced
from edgekit_runtime.contract.spec import TensorSpec
from edgekit_runtime.system.errors import EdgekitError

_MODULE = re.compile(
    r"builtins|keras|tf_keras"
    r"|(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras)(\.src)?\.(layers|models|engine"
    r"|initializers|regularizers|constraints|activations|dtype_policies|mixed_precision|quantizers)(\.\w+)*"
    r"|keras\.src\.dtype_policies\.\w+|keras(\.src)?\.ops(\.(numpy|nn|math|linalg|image|einops|core))?"
)
_OPERATIONS = re.compile(r"keras(\.src)?\.ops(\.(numpy|nn|math|linalg|image|einops))?")
"""Modules of Keras whose classes are arithmetic, all of them."""
_CLASSES = frozenset(
    """
    Functional Sequential Model InputLayer Input Layer

    Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D AdaptiveAveragePooling3D
    AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add AdditiveAttention AlphaDropout Attention Average
    AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization
    BatchNormalizationV1 BatchNormalizationV2 Bidirectional CategoryEncoding CenterCrop Concatenate Conv1D
    Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D
    Convolution1DTranspose Convolution2D Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D
    Cropping2D Cropping3D CuDNNGRU CuDNNLSTM Dense DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU
    EinsumDense Embedding Flatten GRU GRUCell GRUV2 GaussianDropout GaussianNoise GlobalAveragePooling1D
    GlobalAveragePooling2D GlobalAveragePooling3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D
    GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization
    GroupQueryAttention Identity LSTM LSTMCell LSTMV2 LayerNormalization LeakyReLU LocallyConnected1D LocallyConnected2D
    Masking MaxPool1D MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum
    MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN RandomBrightness RandomContrast
    RandomCrop RandomFlip RandomHeight RandomHue RandomRotation RandomSaturation RandomShear RandomTranslation
    RandomWidth RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram
    SeparableConv1D SeparableConv2D SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax
    SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells Subtract
    SyncBatchNormalization ThresholdedReLU TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D
    ZeroPadding1D ZeroPadding2D ZeroPadding3D

    Constant GlorotNormal GlorotUniform HeNormal HeUniform IdentityInitializer LecunNormal LecunUniform Ones Orthogonal
    OrthogonalInitializer RandomNormal RandomUniform STFT STFTInitializer TruncatedNormal VarianceScaling Zeros L1 L1L2
    L2 OrthogonalRegularizer MaxNorm MinMaxNorm NonNeg UnitNorm DTypePolicy DTypePolicyMap FloatDTypePolicy Policy

    Cast Slice SliceUpdate ScatterUpdate StopGradient Shape Unstack

    __keras_tensor__ __tensor__ __numpy__ __slice__ __ellipsis__ __tuple__ __bytes__ TensorShape
    """.split()  # noqa: SIM905
)
_FUNCTIONS = frozenset(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid
    sparsemax squareplus swish tanh tanh_shrink threshold gelu_new
    """.split()  # noqa: SIM905
)
_REPLACE = (
    "Replace it by a built-in layer, export the model to ONNX, or pass --trust-model if you know the file's author"
)
_SPLIT = (
    "Save the layers behind it as a model of their own, such as keras.Sequential([keras.Input((LENGTH,), "
    "dtype='int64'), *model.layers[1:]]), and run this layer in your application"
)
_TRUST_NUMBERS = "; or pass --trust-model if it takes numbers and you know the file's author"
_OF_WORDS = frozenset(["TextVectorization", "StringLookup"])
_LOOKUPS = _OF_WORDS | {"IntegerLookup", "Hashing", "HashedCrossing"}
"""Layers of Keras that turn words or keys into numbers, which no board's engine does."""
_NAMED = re.compile(r"(\w+_)?(activation|initializer|regularizer|constraint)")
_CALLED = frozenset(
    """
    abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh broadcast_to cast ceil clip_by_norm clip_by_value
    complex concat cos cosh cumsum cumprod divide einsum equal exp expand_dims expm1 eye fill floor gather gather_nd
    greater greater_equal identity less less_equal linspace linalg.diag linalg.einsum linalg.l2_normalize linalg.matmul
    linalg.norm linalg.normalize linalg.trace log log1p log_sigmoid logical_and logical_not logical_or logical_xor
    matmul maximum minimum multiply negative norm not_equal one_hot ones ones_like pad pow range rank realdiv reduce_all
    reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum repeat reshape reverse roll
    round rsqrt scatter_nd shape sigmoid sign sin sinh size slice sort space_to_batch_nd split sqrt square squeeze stack
    stop_gradient strided_slice subtract tan tanh tensordot tile top_k transpose truediv unstack where zeros zeros_like

    compat.v1.nn.conv2d compat.v1.nn.depthwise_conv2d compat.v1.transpose compat.v1.gather compat.v1.shape
    compat.v1.image.resize_bilinear compat.v1.image.resize_nearest_neighbor compat.v1.squeeze compat.v1.size
    compat.v1.pad

    angle bincount conj cumulative_logsumexp divide_no_nan erf floordiv floormod imag in_top_k invert_permutation
    is_finite is_inf is_nan l2_normalize mod multiply_no_nan real reciprocal reduce_std reduce_variance scalar_mul
    segment_max segment_mean segment_sum softplus squared_difference unsorted_segment_max unsorted_segment_sum xlogy
    zero_fraction

    image.central_crop image.crop_and_resize image.crop_to_bounding_box image.flip_left_right image.flip_up_down
    image.pad_to_bounding_box image.resize image.rgb_to_grayscale image.grayscale_to_rgb image.per_image_standardization
    image.extract_patches image.non_max_suppression image.combined_non_max_suppression image.adjust_brightness
    image.adjust_contrast image.resize_with_pad image.rot90

    nn.avg_pool nn.avg_pool1d nn.avg_pool2d nn.batch_normalization nn.bias_add nn.conv1d nn.conv2d nn.conv2d_transpose
    nn.conv3d nn.crelu nn.depth_to_space nn.depthwise_conv2d nn.elu nn.gelu nn.l2_normalize nn.leaky_relu
    nn.local_response_normalization nn.log_softmax nn.lrn nn.max_pool nn.max_pool1d nn.max_pool2d nn.moments nn.pool
    nn.relu nn.relu6 nn.selu nn.separable_conv2d nn.sigmoid nn.silu nn.softmax nn.softplus nn.softsign nn.space_to_depth
    nn.swish nn.tanh nn.top_k nn.zero_fraction

    __operators__.add __operators__.eq __operators__.getitem __operators__.ne
    """.split()  # noqa: SIM905
)
_SUPPORTED = re.compile(r"(math|nn|compat\.v1\.math)\.(?P<name>\w+)")
_UNREAD = ("compile_config", "training_config")


def is_weights(name: str) -> bool:
    """Whether a `.keras` archive of a network of numbers has such a member."""
    return (
        re.fullmatch(r"config\.json|metadata\.json|edgekit\.json|[\w.-]+\.weights\.(h5|json)|assets/", name) is not None
    )


def code(config: Any, layer: str = "", key: str = "") -> Iterator[str]:
    """What would run, in words, at any depth of a model's config. key: of the value."""
    if isinstance(config, list):
        for value in config:
            yield from code(value, layer, key)
    elif isinstance(config, str):
        # `glorot_uniform` -> `GlorotUniform`, `l2` -> `L2`
        camel = config if config[:1].isupper() else "".join(p[:1].upper() + p[1:] for p in config.split("_"))
        if _NAMED.fullmatch(key) and config not in _FUNCTIONS and camel not in _CLASSES:
            yield f"the layer '{layer}' has the {key} '{config}', which is not one of Keras' own"
    elif isinstance(config, dict):
        inner = config.get("config")
        named = inner.get("name") if isinstance(inner, dict) else None
        layer = str(named or config.get("name") or layer)
        found = _piece(config, layer) if "class_name" in config else ""
        if found:
            yield found
            return
        for name, value in config.items():
            if name not in _UNREAD:
                yield from code(value, layer, name)


def _piece(config: dict[str, Any], layer: str) -> str:
    """What one object of a config would run, "" for arithmetic."""
    kind, module, inner = config["class_name"], config.get("module"), config.get("config")
    if kind in ("Lambda", "__lambda__"):
        return f"the layer '{layer or 'lambda'}' is a Lambda: it holds Python code"
    place = f"{module}.{kind}" if module else str(kind)
    if module is not None and not (isinstance(module, str) and _MODULE.fullmatch(module)):
        return f"the layer '{layer}' is of {place}: it needs that Python code"
    if kind == "function":
        known = isinstance(inner, str) and inner in _FUNCTIONS
        return "" if known else f"the layer '{layer}' calls {inner}, which is not one of Keras' own activations"
    if kind in ("TFOpLambda", "SlicingOpLambda"):
        function = str(inner.get("function", "")) if isinstance(inner, dict) else ""
        # TensorFlow exports one function under several names: `add`, `math.add`, `compat.v1.math.add`
        match = _SUPPORTED.fullmatch(function)
        known = function in _CALLED or (match is not None and match["name"] in _CALLED)
        return "" if known else f"the layer '{layer}' calls tf.{function}, which is no arithmetic on numbers"
    operation = _OPERATIONS.fullmatch(module or "") is not None
    if isinstance(kind, str) and (kind in _CLASSES or (operation and kind.isidentifier())):
        return ""
    return f"the layer '{layer}' is of {place}, which is not a layer of Keras that only computes"


def _lookups(config: Any) -> Iterator[str]:
    """Classes of layers that look keys up, at any depth."""
    if isinstance(config, dict):
        if config.get("class_name") in _LOOKUPS:
            yield config["class_name"]
        for value in config.values():
            yield from _lookups(value)
    elif isinstance(config, list):
        for value in config:
            yield from _lookups(value)


_MAX_CONFIG_BYTES = 64 << 20


@dataclass(frozen=True)
class _KerasFile:
    path: Path
    format: str
    config: Any
    version: str  # of the Keras that wrote it, "" where the file does not say
    members: tuple[str, ...] = ()  # of the archive, that are no part of a network, in words


def load(path: Path, options: LoadOptions) -> TracedSource:
    """A `.keras` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_archive(path, archive)
            for name in archive.namelist():
                if name.endswith((".h5", ".hdf5")):
                    import_keras()
                    import h5py  # type: ignore[import-untyped]

                    with archive.open(name) as member, h5py.File(member, "r") as file:
                        check_hdf5(path, file)
            info = archive.getinfo("config.json")
            if info.file_size > _MAX_CONFIG_BYTES:
                _refuse(path, "its config.json is larger than 64 MiB")
            config = json.loads(archive.read(info))
            names = archive.namelist()
            metadata = json.loads(archive.read("metadata.json")) if "metadata.json" in names else {}
    except EdgekitError:
        raise
    except Exception as error:  # noqa: BLE001 - zipfile, zlib, json and h5py raise a dozen types on a damaged file
        _refuse(path, "this is not a .keras file, or it is damaged", error)
    version = metadata.get("keras_version", "") if isinstance(metadata, dict) else ""
    members = tuple(f"it holds '{name}', which may be a program" for name in names if not is_weights(name))
    return _load(_KerasFile(path, "keras", config, str(version), members), options)


def load_h5(path: Path, options: LoadOptions) -> TracedSource:
    """A legacy HDF5 file with the network in it, not only its weights."""
    import_keras()
    import h5py

    try:
        with h5py.File(path, "r") as file:
            check_hdf5(path, file)
            text, version = file.attrs.get("model_config"), file.attrs.get("keras_version", "")
    except EdgekitError:
        raise
    except Exception as error:  # noqa: BLE001 - as above
        _refuse(path, "this is not an HDF5 file, or it is damaged", error)
    if text is None:
        _refuse(path, "the file holds weights only, not the network")
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        _refuse(path, "its model_config is damaged", error)
    version = version.decode("utf-8", "replace") if isinstance(version, bytes) else str(version)
    return _load(_KerasFile(path, "keras-h5", config, version), options)


def _load(file: _KerasFile, options: LoadOptions) -> TracedSource:
    try:
        pieces = list(dict.fromkeys([*code(file.config), *file.members]))
    except RecursionError as error:
        _refuse(file.path, "its config is nested too deeply", error)
    lookups = list(_lookups(file.config))
    if pieces and len(lookups) == len(pieces) and not options.trust_model:
        what = f"{pieces[0]}: boards take numbers that are ready for arithmetic"
        do = f"{_SPLIT}{'' if _OF_WORDS & set(lookups) else _TRUST_NUMBERS}"
        raise SourceError(what, where=str(file.path), do=do)
    if pieces and not options.trust_model:
        raise SourceError(f"{pieces[0]}, which edgekit does not run", where=str(file.path), do=_REPLACE)
    ran = tuple(Note("trusted-code", f"{piece}; it was run, because the model is trusted") for piece in pieces)
    keras, tools, model = _read(file, trusted=bool(pieces))
    where = str(file.path)
    check_finite(((variable.path, np.asarray(variable)) for variable in _variables(model)), where=where)
    inputs = _inputs(keras, model, options, where)
    outputs = unique_names(_output_names(keras, model), where=where, kind="output")
    if tools == ("keras",):
        make_layers_scopes(model)
    flat = keras.Model(list(model.inputs), list(model.outputs), name=scope(model.name))

    def call(*tensors: Any) -> list[Any]:
        answers = flat(list(tensors), training=False)
        return list(answers) if isinstance(answers, (list, tuple)) else [answers]

    network = TracedNetwork(call, [variable.value for variable in _variables(flat)], tools, flat)
    origin = Origin(file.path, file.format, model_sha256(file.path, options), ran)
    return describe_traced(network, origin, inputs, outputs)


def _read(file: _KerasFile, *, trusted: bool) -> tuple[Any, tuple[str, ...], Any]:
    """(keras or tf_keras, the distributions, the model)."""
    keras = import_keras()
    try:
        with quiet():
            return keras, ("keras",), keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
    except Exception as error:  # Keras raises a dozen unrelated types on a damaged or foreign file
        old = file.version.startswith(("1.", "2."))
        if old and importlib.util.find_spec("tf_keras") is not None:
            with quiet():
                import tf_keras
            try:
                with quiet():
                    model = tf_keras.models.load_model(file.path, compile=False, safe_mode=not trusted)
            except Exception as again:  # noqa: BLE001 - as Keras does
                what = f"neither Keras 3 nor tf_keras {tf_keras.__version__} can read it: {_cause(again)}"
                do = "Save it again with built-in layers only, or export it to ONNX"
                raise SourceError(what, where=str(file.path), do=do) from error
            return tf_keras, ("tf-keras",), model
        by = f"; it was saved with Keras {file.version}" if old else ""
        do = "Run: pip install tf-keras (Keras 2) and try again, or save" if old else "Save"
        what = f"Keras {keras.__version__} cannot read it{by}: {_cause(error)}"
        do = f"{do} it again with Keras 3 and built-in layers only, or export it to ONNX"
        raise SourceError(what, where=str(file.path), do=do) from error


def _cause(error: Exception) -> str:
    """Keras's message without its preamble and the whole config."""
    return one_line(str(error).rpartition("Exception encountered:")[2] or error)


@dataclass(frozen=True)
class _Variable:
    """path: `layer/kernel`. value: the TensorFlow variable."""

    path: str
    value: Any

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.asarray(self.value, dtype)


def _variables(model: Any) -> list[_Variable]:
    """Keras 3 wraps TensorFlow's variables, tf_keras has them bare."""
    return [
        _Variable(v.path, v.value) if hasattr(v, "path") else _Variable(v.name.removesuffix(":0"), v)
        for v in model.variables
    ]


def _inputs(keras: Any, model: Any, options: LoadOptions, where: str) -> tuple[TensorSpec, ...]:
    try:
        tensors, outputs = model.inputs, model.outputs
    except (AttributeError, ValueError):
        tensors = outputs = None
    if not tensors or not outputs:
        do = "Give it a keras.Input, call it once, and save it again"
        raise SourceError("the model has no fixed inputs", where=where, do=do)
    given = getattr(model, "input_names", None) or [tensor.name for tensor in tensors]
    names = unique_names(given, where=where, kind="input")
    check_named((*options.shapes, *options.constants), names, where=where)
    prefer = "NCHW" if keras.backend.image_data_format() == "channels_first" else "NHWC"
    specs = []
    for name, tensor in zip(names, tensors, strict=True):
        shape = tuple(-1 if n is None else int(n) for n in tensor.shape)
        if name in options.shapes:
            shape = pin(name, shape, options.shapes[name], where=where)
        layout = image_layout(shape, prefer=prefer)  # type: ignore[arg-type]
        try:
            dtype = np.dtype(str(getattr(tensor.dtype, "name", tensor.dtype))).name
        except TypeError as error:
            what = f"'{name}' has the dtype {tensor.dtype}, which no board's engine takes"
            raise SourceError(what, where=where, do="Use float32 or integer inputs and outputs") from error
        specs.append(TensorSpec(name, name, dtype, shape, layout))
    check_inputs(specs, where=where)
    return tuple(specs)


def _output_names(keras: Any, model: Any) -> Sequence[str]:
    """The keys of the dict that the author returned, or the names of the last layers."""
    structure = getattr(model, "output", None)  # a sequential model that was never called has none
    if isinstance(structure, dict):
        tree = getattr(keras, "tree", None)
        if tree is not None:
            return [str(path[-1]) for path, _ in tree.flatten_with_path(structure)]
        return sorted(map(str, structure))
    if hasattr(model, "output_names"):
        names = [str(name) for name in model.output_names]
    else:
        names = [str(tensor._keras_history.operation.name) for tensor in model.outputs]
    # One layer may have several outputs.
    return [name if names.count(name) == 1 else f"{name}_{names[:i].count(name)}" for i, name in enumerate(names)]


def _refuse(path: Path, what: str, cause: Exception | None = None) -> NoReturn:
    raise SourceError(what, where=str(path), do="Save the whole model again with model.save()") from cause


_NO_SCOPE = re.compile(r"[^A-Za-z0-9_.\\/>-]")


def scope(name: str) -> str:
    """The name, or one near it that TensorFlow accepts for a scope."""
    allowed = _NO_SCOPE.sub("_", name)
    return allowed if re.match(r"[A-Za-z0-9.]", allowed) else f"t{allowed}"


def make_layers_scopes(model: Any) -> None:
    """Give a Keras 3 model's layers and weights, at any depth, unique names that are scopes.
    In place; a space or an accent in a name ends a trace. Ask for inputs' and outputs' names before."""
    named = []
    for layer in model._flatten_layers(include_self=True, recursive=True):
        named += [layer, *getattr(layer, "operations", ())]  # the plain operations between layers
    taken = {part.name for part in named}
    for part in named:
        wanted = scope(part.name)
        if wanted == part.name:
            continue
        free = next(name for number in count() if (name := f"{wanted}_{number}" if number else wanted) not in taken)
        taken.add(free)
        part.name = free
    for variable in model.variables:
        value = variable.value
        name, colon, output = value.name.partition(":")
        if scope(name) != name:
            value._handle_name = f"{scope(name)}{colon}{output}"  # what TensorFlow calls it where it saves the graph
