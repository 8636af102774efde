"""What a Keras file's config gives away before Keras opens it: everything in it that is more than a network of numbers.

Rules:
- a class, a function or an activation is taken because it stands in a list here, never because it is missing from another one;
  each other one is named with its layer;
- a module is one of Keras' own packages of such classes: Keras imports what a config names;
- what a config says of training is not read, and Keras is told not to.

    for piece in code(config): print(piece)         # "the layer 'double' is a Lambda: it holds Python code"
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

__all__ = ["code", "is_weights"]

_MODULE = re.compile(
    r"builtins|keras|tf_keras|(keras|tf_keras|tensorflow\.keras|tensorflow\.python\.keras)(\.src)?\.(layers|models|engine"
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
    AveragePooling1D AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization BatchNormalizationV1
    BatchNormalizationV2 Bidirectional CategoryEncoding CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose
    Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D
    Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D Cropping3D CuDNNGRU CuDNNLSTM Dense
    DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Flatten GRU GRUCell GRUV2
    GaussianDropout GaussianNoise GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalAvgPool1D
    GlobalAvgPool2D GlobalAvgPool3D GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D
    GlobalMaxPooling3D GroupNormalization GroupQueryAttention Identity LSTM LSTMCell LSTMV2 LayerNormalization LeakyReLU
    LocallyConnected1D LocallyConnected2D Masking MaxPool1D MaxPool2D MaxPool3D MaxPooling1D MaxPooling2D MaxPooling3D Maximum
    MelSpectrogram Minimum MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN RandomBrightness
    RandomContrast RandomCrop RandomFlip RandomHeight RandomHue RandomRotation RandomSaturation RandomShear RandomTranslation
    RandomWidth RandomZoom ReLU RepeatVector Rescaling Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D
    SeparableConv2D SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax SpatialDropout1D
    SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells Subtract SyncBatchNormalization ThresholdedReLU
    TimeDistributed UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D

    Constant GlorotNormal GlorotUniform HeNormal HeUniform IdentityInitializer LecunNormal LecunUniform Ones Orthogonal
    OrthogonalInitializer RandomNormal RandomUniform STFT STFTInitializer TruncatedNormal VarianceScaling Zeros L1 L1L2 L2
    OrthogonalRegularizer MaxNorm MinMaxNorm NonNeg UnitNorm DTypePolicy DTypePolicyMap FloatDTypePolicy Policy

    Cast Slice SliceUpdate ScatterUpdate StopGradient Shape Unstack

    __keras_tensor__ __tensor__ __numpy__ __slice__ __ellipsis__ __tuple__ __bytes__ TensorShape
    """.split()  # noqa: SIM905
)
_FUNCTIONS = frozenset(
    """
    celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish hard_tanh leaky_relu linear log_sigmoid
    log_softmax mish relu relu6 selu sigmoid silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax
    squareplus swish tanh tanh_shrink threshold gelu_new
    """.split()  # noqa: SIM905
)
_NAMED = re.compile(r"(\w+_)?(activation|initializer|regularizer|constraint)")
_CALLED = frozenset(
    """
    abs acos acosh add add_n argmax argmin asin asinh atan atan2 atanh broadcast_to cast ceil clip_by_norm clip_by_value
    complex concat cos cosh cumsum cumprod divide einsum equal exp expand_dims expm1 eye fill floor gather gather_nd greater
    greater_equal identity less less_equal linspace linalg.diag linalg.einsum linalg.l2_normalize linalg.matmul linalg.norm
    linalg.normalize linalg.trace log log1p log_sigmoid logical_and logical_not logical_or logical_xor matmul maximum minimum
    multiply negative norm not_equal one_hot ones ones_like pad pow range rank realdiv reduce_all reduce_any reduce_logsumexp
    reduce_max reduce_mean reduce_min reduce_prod reduce_sum repeat reshape reverse roll round rsqrt scatter_nd shape sigmoid
    sign sin sinh size slice sort space_to_batch_nd split sqrt square squeeze stack stop_gradient strided_slice subtract tan tanh
    tensordot tile top_k transpose truediv unstack where zeros zeros_like

    compat.v1.nn.conv2d compat.v1.nn.depthwise_conv2d compat.v1.transpose compat.v1.gather compat.v1.shape
    compat.v1.image.resize_bilinear compat.v1.image.resize_nearest_neighbor compat.v1.squeeze compat.v1.size compat.v1.pad

    angle bincount conj cumulative_logsumexp divide_no_nan erf floordiv floormod imag in_top_k invert_permutation is_finite
    is_inf is_nan l2_normalize mod multiply_no_nan real reciprocal reduce_std reduce_variance scalar_mul segment_max
    segment_mean segment_sum softplus squared_difference unsorted_segment_max unsorted_segment_sum xlogy zero_fraction

    image.central_crop image.crop_and_resize image.crop_to_bounding_box image.flip_left_right image.flip_up_down
    image.pad_to_bounding_box image.resize image.rgb_to_grayscale image.grayscale_to_rgb image.per_image_standardization
    image.extract_patches image.non_max_suppression image.combined_non_max_suppression image.adjust_brightness
    image.adjust_contrast image.resize_with_pad image.rot90

    nn.avg_pool nn.avg_pool1d nn.avg_pool2d nn.batch_normalization nn.bias_add nn.conv1d nn.conv2d nn.conv2d_transpose nn.conv3d
    nn.crelu nn.depth_to_space nn.depthwise_conv2d nn.elu nn.gelu nn.l2_normalize nn.leaky_relu nn.local_response_normalization
    nn.log_softmax nn.lrn nn.max_pool nn.max_pool1d nn.max_pool2d nn.moments nn.pool nn.relu nn.relu6 nn.selu nn.separable_conv2d
    nn.sigmoid nn.silu nn.softmax nn.softplus nn.softsign nn.space_to_depth nn.swish nn.tanh nn.top_k nn.zero_fraction

    __operators__.add __operators__.eq __operators__.getitem __operators__.ne
    """.split()  # noqa: SIM905
)
_SUPPORTED = re.compile(r"(math|nn|compat\.v1\.math)\.(?P<name>\w+)")
_UNREAD = ("compile_config", "training_config")


def is_weights(name: str) -> bool:
    """Whether a member of a `.keras` archive is one that a network of numbers has."""
    return re.fullmatch(r"config\.json|metadata\.json|[\w.-]+\.weights\.(h5|json)|assets/", name) is not None


def code(config: Any, layer: str = "", key: str = "") -> Iterator[str]:
    """What would run, in words, at any depth of a model's config. key: under which the value stands."""
    if isinstance(config, list):
        for value in config:
            yield from code(value, layer, key)
    elif isinstance(config, str):
        if _NAMED.fullmatch(key) and config not in _FUNCTIONS and _camel(config) not in _CLASSES:
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
    """What one object of a config would run, "" where that is arithmetic."""
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
        return (
            ""
            if _is_called(function)
            else f"the layer '{layer}' calls tf.{function}, which is no arithmetic on numbers"
        )
    if isinstance(kind, str) and (
        kind in _CLASSES or (module and _OPERATIONS.fullmatch(module) and kind.isidentifier())
    ):
        return ""
    return f"the layer '{layer}' is of {place}, which is not a layer of Keras that only computes"


def _is_called(function: str) -> bool:
    """TensorFlow exports one function under several names: `add`, `math.add`, `compat.v1.math.add`."""
    match = _SUPPORTED.fullmatch(function)
    return function in _CALLED or (match is not None and match["name"] in _CALLED)


def _camel(name: str) -> str:
    """`glorot_uniform` -> `GlorotUniform`, `l2` -> `L2`."""
    return name if name[:1].isupper() else "".join(part[:1].upper() + part[1:] for part in name.split("_"))
