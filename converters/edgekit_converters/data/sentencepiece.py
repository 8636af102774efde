"""A SentencePiece model as the tokenizer.json that the runtime reads.

    data = tokenizer_json(Path("spiece.model").read_bytes())

Rules: Unigram models alone; a text gets the file's tokens for begin and end, if it has them, as T5's and ALBERT's do.
"""

from __future__ import annotations

from edgekit_runtime.contract.text import guarded
from edgekit_runtime.system.errors import MissingExtraError

SUFFIX = ".model"
_UNIGRAM, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"


def tokenizer_json(data: bytes) -> bytes:
    """Raises ValueError for other bytes and kinds, MissingExtraError without the packages."""
    made = guarded(lambda: _converted(data))
    if isinstance(made, Exception):  # of protobuf or tokenizers, who raise what they like
        raise ValueError(f"it is not a SentencePiece model of the kind Unigram: {made}"[:200]) from made  # noqa: TRY004
    return str(made).encode()


def _converted(data: bytes) -> str:
    try:
        from sentencepiece import sentencepiece_model_pb2
        from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    except ImportError as error:
        raise MissingExtraError("convert", "a SentencePiece file") from error
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.ParseFromString(data)
    trained, rules = proto.trainer_spec, proto.normalizer_spec
    if not proto.pieces or trained.model_type != _UNIGRAM or trained.treat_whitespace_as_suffix:
        raise ValueError("it has no pieces, or is of another kind")
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    made = Tokenizer(models.Unigram(pieces, trained.unk_id, trained.byte_fallback))
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    made.normalizer = normalizers.Sequence(steps)
    prefix = "always" if rules.add_dummy_prefix else "never"
    made.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prefix, split=False)
    made.decoder = decoders.Metaspace(_SPACE, prefix)
    own = [piece for piece in proto.pieces if piece.type in (_UNKNOWN, _CONTROL, _USER_DEFINED)]
    made.add_special_tokens([AddedToken(one.piece, special=one.type != _USER_DEFINED, normalized=False) for one in own])
    ends = [pieces[place][0] if 0 <= place < len(pieces) else "" for place in (trained.bos_id, trained.eos_id)]
    template = f"{ends[0]} $A {ends[1]}".strip()
    named = [(name, made.token_to_id(name)) for name in ends if name]
    made.post_processor = processors.TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=named)
    return str(made.to_str())
