"""Which slot of which table of a .tflite file holds what.

Written by benchmarks/tflite_schema.py, never by hand.
From ai-edge-litert 2.3.0. TABLES: `name:kind` by slot. A kind is a scalar (u8, i32, f32, ...), `str`, a table, a
`[vector]` of one of them, or a `<union>`, whose type stands in the slot before.
"""

# ruff: noqa: SIM905 - 200 names in a list of strings would be 200 lines

from __future__ import annotations

TENSOR_TYPES = (
    "FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT "
    "UINT32 UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2"
).split()
OPERATORS = (
    "ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR "
    "FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC "
    "LSH_PROJECTION LSTM MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH "
    "SVDF TANH CONCAT_EMBEDDINGS SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER "
    "BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE "
    "BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM "
    "ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE "
    "TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK "
    "LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV REDUCE_ANY SQUARE ZEROS_LIKE FILL "
    "FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS SPLIT_V UNIQUE CEIL "
    "REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG ROUND "
    "HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM "
    "BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS "
    "HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE "
    "ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU "
    "DYNAMIC_UPDATE_SLICE RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 "
    "UNSORTED_SEGMENT_MIN SIGN BITCAST BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE "
    "STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE "
    "STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE "
    "STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL STABLEHLO_FLOOR STABLEHLO_LOG "
    "STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER STABLEHLO_RSQRT "
    "STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT "
    "STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL "
    "STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE "
    "STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT STABLEHLO_CASE"
).split()
# Member of a union -> its table.
BUILTIN_OPTIONS = (
    "NONE Conv2DOptions DepthwiseConv2DOptions ConcatEmbeddingsOptions LSHProjectionOptions Pool2DOptions SVDFOptions "
    "RNNOptions FullyConnectedOptions SoftmaxOptions ConcatenationOptions AddOptions L2NormOptions "
    "LocalResponseNormalizationOptions LSTMOptions ResizeBilinearOptions CallOptions ReshapeOptions SkipGramOptions "
    "SpaceToDepthOptions EmbeddingLookupSparseOptions MulOptions PadOptions GatherOptions BatchToSpaceNDOptions "
    "SpaceToBatchNDOptions TransposeOptions ReducerOptions SubOptions DivOptions SqueezeOptions SequenceRNNOptions "
    "StridedSliceOptions ExpOptions TopKV2Options SplitOptions LogSoftmaxOptions CastOptions DequantizeOptions "
    "MaximumMinimumOptions ArgMaxOptions LessOptions NegOptions PadV2Options GreaterOptions GreaterEqualOptions "
    "LessEqualOptions SelectOptions SliceOptions TransposeConvOptions SparseToDenseOptions TileOptions "
    "ExpandDimsOptions EqualOptions NotEqualOptions ShapeOptions PowOptions ArgMinOptions FakeQuantOptions "
    "PackOptions LogicalOrOptions OneHotOptions LogicalAndOptions LogicalNotOptions UnpackOptions FloorDivOptions "
    "SquareOptions ZerosLikeOptions FillOptions BidirectionalSequenceLSTMOptions BidirectionalSequenceRNNOptions "
    "UnidirectionalSequenceLSTMOptions FloorModOptions RangeOptions ResizeNearestNeighborOptions LeakyReluOptions "
    "SquaredDifferenceOptions MirrorPadOptions AbsOptions SplitVOptions UniqueOptions ReverseV2Options AddNOptions "
    "GatherNdOptions CosOptions WhereOptions RankOptions ReverseSequenceOptions MatrixDiagOptions QuantizeOptions "
    "MatrixSetDiagOptions HardSwishOptions IfOptions WhileOptions DepthToSpaceOptions NonMaxSuppressionV4Options "
    "NonMaxSuppressionV5Options ScatterNdOptions SelectV2Options DensifyOptions SegmentSumOptions BatchMatMulOptions "
    "CumsumOptions CallOnceOptions BroadcastToOptions Rfft2dOptions Conv3DOptions HashtableOptions "
    "HashtableFindOptions HashtableImportOptions HashtableSizeOptions VarHandleOptions ReadVariableOptions "
    "AssignVariableOptions RandomOptions BucketizeOptions GeluOptions DynamicUpdateSliceOptions "
    "UnsortedSegmentProdOptions UnsortedSegmentMaxOptions UnsortedSegmentMinOptions UnsortedSegmentSumOptions "
    "ATan2Options SignOptions BitcastOptions BitwiseXorOptions RightShiftOptions"
).split()
BUILTIN_OPTIONS2 = (
    "NONE StablehloConcatenateOptions StablehloBroadcastInDimOptions StablehloSliceOptions "
    "StablehloConvolutionOptions StablehloCustomCallOptions StablehloReduceOptions StablehloScatterOptions "
    "StablehloCompareOptions StablehloDynamicSliceOptions StablehloPadOptions StablehloIotaOptions "
    "StablehloDotGeneralOptions StablehloReduceWindowOptions StablehloSortOptions StablehloWhileOptions "
    "StablehloGatherOptions StablehloTransposeOptions DilateOptions StablehloRngBitGeneratorOptions "
    "ReduceWindowOptions StableHLOCompositeOptions StablehloShiftLeftOptions StablehloCaseOptions"
).split()
QUANTIZATION_DETAILS = "NONE CustomQuantization BlockwiseQuantization MultiAxisQuantization".split()
SPARSE_INDEX_VECTOR = "NONE Int32Vector Uint16Vector Uint8Vector".split()
TABLES = {
    "ATan2Options": "",
    "AbsOptions": "",
    "AddNOptions": "",
    "AddOptions": "FusedActivationFunction:i8 PotScaleInt16:u8",
    "ArgMaxOptions": "OutputType:i8",
    "ArgMinOptions": "OutputType:i8",
    "AssignVariableOptions": "",
    "BatchMatMulOptions": "AdjX:u8 AdjY:u8 AsymmetricQuantizeInputs:u8",
    "BatchToSpaceNDOptions": "",
    "BidirectionalSequenceLSTMOptions": (
        "FusedActivationFunction:i8 CellClip:f32 ProjClip:f32 MergeOutputs:u8 TimeMajor:u8 AsymmetricQuantizeInputs:u8"
    ),
    "BidirectionalSequenceRNNOptions": (
        "TimeMajor:u8 FusedActivationFunction:i8 MergeOutputs:u8 AsymmetricQuantizeInputs:u8"
    ),
    "BitcastOptions": "",
    "BitwiseXorOptions": "",
    "BlockwiseQuantization": "Scales:i32 ZeroPoints:i32 BlockSize:i32 BlockShape:[i32]",
    "BroadcastToOptions": "",
    "BucketizeOptions": "Boundaries:[f32]",
    "Buffer": "Data:[u8] Offset:u64 Size:u64",
    "CallOnceOptions": "InitSubgraphIndex:i32",
    "CallOptions": "Subgraph:u32",
    "CastOptions": "InDataType:i8 OutDataType:i8",
    "ConcatEmbeddingsOptions": "NumChannels:i32 NumColumnsPerChannel:[i32] EmbeddingDimPerChannel:[i32]",
    "ConcatenationOptions": "Axis:i32 FusedActivationFunction:i8",
    "Conv2DOptions": (
        "Padding:i8 StrideW:i32 StrideH:i32 FusedActivationFunction:i8 DilationWFactor:i32 DilationHFactor:i32 "
        "QuantizedBiasType:i8"
    ),
    "Conv3DOptions": (
        "Padding:i8 StrideD:i32 StrideW:i32 StrideH:i32 FusedActivationFunction:i8 DilationDFactor:i32 "
        "DilationWFactor:i32 DilationHFactor:i32"
    ),
    "CosOptions": "",
    "CumsumOptions": "Exclusive:u8 Reverse:u8",
    "CustomQuantization": "Custom:[u8]",
    "DensifyOptions": "",
    "DepthToSpaceOptions": "BlockSize:i32",
    "DepthwiseConv2DOptions": (
        "Padding:i8 StrideW:i32 StrideH:i32 DepthMultiplier:i32 FusedActivationFunction:i8 DilationWFactor:i32 "
        "DilationHFactor:i32"
    ),
    "DequantizeOptions": "",
    "DilateOptions": "",
    "DimensionMetadata": (
        "Format:i8 DenseSize:i32 ArraySegmentsType:u8 ArraySegments:<SparseIndexVector> ArrayIndicesType:u8 "
        "ArrayIndices:<SparseIndexVector>"
    ),
    "DivOptions": "FusedActivationFunction:i8",
    "DynamicUpdateSliceOptions": "",
    "EmbeddingLookupSparseOptions": "Combiner:i8",
    "EqualOptions": "",
    "ExpOptions": "",
    "ExpandDimsOptions": "",
    "ExternalBuffer": "Id:u32 Group:u32 Offset:u64 Length:u64 Packing:str",
    "ExternalBufferGroup": "Name:str",
    "FakeQuantOptions": "Min:f32 Max:f32 NumBits:i32 NarrowRange:u8",
    "FillOptions": "",
    "FloorDivOptions": "",
    "FloorModOptions": "",
    "FullyConnectedOptions": (
        "FusedActivationFunction:i8 WeightsFormat:i8 KeepNumDims:u8 AsymmetricQuantizeInputs:u8 "
        "QuantizedBiasType:i8 QuantSpec:[u8]"
    ),
    "GatherNdOptions": "",
    "GatherOptions": "Axis:i32 BatchDims:i32",
    "GeluOptions": "Approximate:u8",
    "GreaterEqualOptions": "",
    "GreaterOptions": "",
    "HardSwishOptions": "",
    "HashtableFindOptions": "",
    "HashtableImportOptions": "",
    "HashtableOptions": "TableId:i32 KeyDtype:i8 ValueDtype:i8",
    "HashtableSizeOptions": "",
    "IfOptions": "ThenSubgraphIndex:i32 ElseSubgraphIndex:i32",
    "Int32Vector": "Values:[i32]",
    "L2NormOptions": "FusedActivationFunction:i8",
    "LSHProjectionOptions": "Type:i8",
    "LSTMOptions": "FusedActivationFunction:i8 CellClip:f32 ProjClip:f32 KernelType:i8 AsymmetricQuantizeInputs:u8",
    "LeakyReluOptions": "Alpha:f32",
    "LessEqualOptions": "",
    "LessOptions": "",
    "LocalResponseNormalizationOptions": "Radius:i32 Bias:f32 Alpha:f32 Beta:f32",
    "LogSoftmaxOptions": "",
    "LogicalAndOptions": "",
    "LogicalNotOptions": "",
    "LogicalOrOptions": "",
    "MatrixDiagOptions": "",
    "MatrixSetDiagOptions": "",
    "MaximumMinimumOptions": "",
    "Metadata": "Name:str Buffer:u32",
    "MirrorPadOptions": "Mode:i8",
    "Model": (
        "Version:u32 OperatorCodes:[OperatorCode] Subgraphs:[SubGraph] Description:str Buffers:[Buffer] "
        "MetadataBuffer:[i32] Metadata:[Metadata] SignatureDefs:[SignatureDef] "
        "ExternalBufferGroups:[ExternalBufferGroup] ExternalBuffers:[ExternalBuffer]"
    ),
    "MulOptions": "FusedActivationFunction:i8",
    "MultiAxisQuantization": "Scales:i32 ZeroPoints:i32 BlockSize:i32 QuantizedDimensions:[i32]",
    "NegOptions": "",
    "NonMaxSuppressionV4Options": "",
    "NonMaxSuppressionV5Options": "",
    "NotEqualOptions": "",
    "OneHotOptions": "Axis:i32",
    "Operator": (
        "OpcodeIndex:u32 Inputs:[i32] Outputs:[i32] BuiltinOptionsType:u8 BuiltinOptions:<BuiltinOptions> "
        "CustomOptions:[u8] CustomOptionsFormat:i8 MutatingVariableInputs:[u8] Intermediates:[i32] "
        "LargeCustomOptionsOffset:u64 LargeCustomOptionsSize:u64 BuiltinOptions2Type:u8 "
        "BuiltinOptions2:<BuiltinOptions2> DebugMetadataIndex:i32"
    ),
    "OperatorCode": "DeprecatedBuiltinCode:i8 CustomCode:str Version:i32 BuiltinCode:i32",
    "PackOptions": "ValuesCount:i32 Axis:i32",
    "PadOptions": "",
    "PadV2Options": "",
    "Pool2DOptions": "Padding:i8 StrideW:i32 StrideH:i32 FilterWidth:i32 FilterHeight:i32 FusedActivationFunction:i8",
    "PowOptions": "",
    "QuantizationParameters": (
        "Min:[f32] Max:[f32] Scale:[f32] ZeroPoint:[i64] DetailsType:u8 Details:<QuantizationDetails> "
        "QuantizedDimension:i32"
    ),
    "QuantizeOptions": "",
    "RNNOptions": "FusedActivationFunction:i8 AsymmetricQuantizeInputs:u8",
    "RandomOptions": "Seed:i64 Seed2:i64",
    "RangeOptions": "",
    "RankOptions": "",
    "ReadVariableOptions": "",
    "ReduceWindowOptions": "ReduceFunction:i32",
    "ReducerOptions": "KeepDims:u8",
    "ReshapeOptions": "NewShape:[i32]",
    "ResizeBilinearOptions": "- - AlignCorners:u8 HalfPixelCenters:u8",
    "ResizeNearestNeighborOptions": "AlignCorners:u8 HalfPixelCenters:u8",
    "ReverseSequenceOptions": "SeqDim:i32 BatchDim:i32",
    "ReverseV2Options": "",
    "Rfft2dOptions": "",
    "RightShiftOptions": "",
    "SVDFOptions": "Rank:i32 FusedActivationFunction:i8 AsymmetricQuantizeInputs:u8",
    "ScatterNdOptions": "",
    "SegmentSumOptions": "",
    "SelectOptions": "",
    "SelectV2Options": "",
    "SequenceRNNOptions": "TimeMajor:u8 FusedActivationFunction:i8 AsymmetricQuantizeInputs:u8",
    "ShapeOptions": "OutType:i8",
    "SignOptions": "",
    "SignatureDef": "Inputs:[TensorMap] Outputs:[TensorMap] SignatureKey:str - SubgraphIndex:u32",
    "SkipGramOptions": "NgramSize:i32 MaxSkipSize:i32 IncludeAllNgrams:u8",
    "SliceOptions": "",
    "SoftmaxOptions": "Beta:f32",
    "SpaceToBatchNDOptions": "",
    "SpaceToDepthOptions": "BlockSize:i32",
    "SparseToDenseOptions": "ValidateIndices:u8",
    "SparsityParameters": "TraversalOrder:[i32] BlockMap:[i32] DimMetadata:[DimensionMetadata]",
    "SplitOptions": "NumSplits:i32",
    "SplitVOptions": "NumSplits:i32",
    "SquareOptions": "",
    "SquaredDifferenceOptions": "",
    "SqueezeOptions": "SqueezeDims:[i32]",
    "StableHLOCompositeOptions": (
        "Name:str DecompositionSubgraphIndex:i32 CompositeAttributes:[u8] CompositeAttributesFormat:i8 Version:i32"
    ),
    "StablehloBroadcastInDimOptions": "BroadcastDimensions:[i64]",
    "StablehloCaseOptions": "BranchSubgraphIndices:[i32]",
    "StablehloCompareOptions": "ComparisonDirection:u32 CompareType:u32",
    "StablehloConcatenateOptions": "Dimension:i64",
    "StablehloConvolutionOptions": (
        "WindowStrides:[i64] Padding:[i64] LhsDilation:[i64] RhsDilation:[i64] WindowReversal:[u8] "
        "InputBatchDimension:i64 InputFeatureDimension:i64 InputSpatialDimensions:[i64] "
        "KernelInputFeatureDimension:i64 KernelOutputFeatureDimension:i64 KernelSpatialDimensions:[i64] "
        "OutputBatchDimension:i64 OutputFeatureDimension:i64 OutputSpatialDimensions:[i64] FeatureGroupCount:i64 "
        "BatchGroupCount:i64 PrecisionConfig:[u32]"
    ),
    "StablehloCustomCallOptions": (
        "CallTargetName:str HasSideEffect:u8 BackendConfig:str ApiVersion:i32 CalledComputations:[i32] "
        "CustomAttributes:[u8]"
    ),
    "StablehloDotGeneralOptions": (
        "LhsBatchingDimensions:[i64] RhsBatchingDimensions:[i64] LhsContractingDimensions:[i64] "
        "RhsContractingDimensions:[i64] PrecisionConfig:[u32]"
    ),
    "StablehloDynamicSliceOptions": "SliceSizes:[i64]",
    "StablehloGatherOptions": (
        "OffsetDims:[i64] CollapsedSliceDims:[i64] StartIndexMap:[i64] IndexVectorDim:i64 SliceSizes:[i64] "
        "IndicesAreSorted:u8"
    ),
    "StablehloIotaOptions": "IotaDimension:i64",
    "StablehloPadOptions": "EdgePaddingLow:[i64] EdgePaddingHigh:[i64] InteriorPadding:[i64]",
    "StablehloReduceOptions": "Dimensions:[i64] BodySubgraphIndex:i32",
    "StablehloReduceWindowOptions": (
        "WindowDimensions:[i64] WindowStrides:[i64] BaseDilations:[i64] WindowDilations:[i64] Padding:[i64] "
        "BodySubgraphIndex:i32"
    ),
    "StablehloRngBitGeneratorOptions": "Algorithm:i8",
    "StablehloScatterOptions": (
        "IndicesAreSorted:u8 UpdateWindowDims:[i64] InsertedWindowDims:[i64] ScatterDimsToOperandDims:[i64] "
        "IndexVectorDim:i64 UniqueIndices:u8 UpdateComputationSubgraphIndex:i32"
    ),
    "StablehloShiftLeftOptions": "",
    "StablehloSliceOptions": "StartIndices:[i64] LimitIndices:[i64] Strides:[i64]",
    "StablehloSortOptions": "Dimension:i64 IsStable:u8 ComparatorSubgraphIndex:i32",
    "StablehloTransposeOptions": "Permutation:[i64]",
    "StablehloWhileOptions": "CondSubgraphIndex:i32 BodySubgraphIndex:i32",
    "StridedSliceOptions": "BeginMask:i32 EndMask:i32 EllipsisMask:i32 NewAxisMask:i32 ShrinkAxisMask:i32 Offset:u8",
    "SubGraph": "Tensors:[Tensor] Inputs:[i32] Outputs:[i32] Operators:[Operator] Name:str DebugMetadataIndex:i32",
    "SubOptions": "FusedActivationFunction:i8 PotScaleInt16:u8",
    "Tensor": (
        "Shape:[i32] Type:i8 Buffer:u32 Name:str Quantization:QuantizationParameters IsVariable:u8 "
        "Sparsity:SparsityParameters ShapeSignature:[i32] HasRank:u8 VariantTensors:[VariantSubType] "
        "ExternalBuffer:u32"
    ),
    "TensorMap": "Name:str TensorIndex:u32",
    "TileOptions": "",
    "TopKV2Options": "",
    "TransposeConvOptions": "Padding:i8 StrideW:i32 StrideH:i32 FusedActivationFunction:i8 QuantizedBiasType:i8",
    "TransposeOptions": "",
    "Uint16Vector": "Values:[u16]",
    "Uint8Vector": "Values:[u8]",
    "UnidirectionalSequenceLSTMOptions": (
        "FusedActivationFunction:i8 CellClip:f32 ProjClip:f32 TimeMajor:u8 AsymmetricQuantizeInputs:u8 "
        "DiagonalRecurrentTensors:u8"
    ),
    "UniqueOptions": "IdxOutType:i8",
    "UnpackOptions": "Num:i32 Axis:i32",
    "UnsortedSegmentMaxOptions": "",
    "UnsortedSegmentMinOptions": "",
    "UnsortedSegmentProdOptions": "",
    "UnsortedSegmentSumOptions": "",
    "VarHandleOptions": "Container:str SharedName:str",
    "VariantSubType": "Shape:[i32] Type:i8 HasRank:u8",
    "WhereOptions": "",
    "WhileOptions": "CondSubgraphIndex:i32 BodySubgraphIndex:i32",
    "ZerosLikeOptions": "",
}
