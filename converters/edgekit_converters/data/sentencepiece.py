"""A SentencePiece model as the tokenizer.json that the runtime reads.

    data = tokenizer_json(Path("spiece.model").read_bytes())

Rules:
- Unigram and BPE; the file has no merges of BPE: two pieces that make a third are merged, that of the best score first;
- a text gets the file's tokens for begin and end, if it has them, as T5's and ALBERT's do.
"""

from __future__ import annotations

import re
from typing import Any

from edgekit_runtime.contract.text import guarded
from edgekit_runtime.system.errors import MissingExtraError

SUFFIX = ".model"
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
_LONGEST = 256  # characters of a piece that merges may lead to; SentencePiece stops at 16 by default


def tokenizer_json(data: bytes) -> bytes:
    """Raises ValueError for other bytes and kinds, MissingExtraError without the packages."""
    made = guarded(lambda: _converted(data))
    if isinstance(made, Exception):  # of protobuf or tokenizers, who raise what they like
        raise ValueError(f"it is not a SentencePiece model of the kind Unigram or BPE: {made}"[:200]) from made  # noqa: TRY004
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
    if not proto.pieces or trained.model_type not in (_UNIGRAM, _BPE) or trained.treat_whitespace_as_suffix:
        raise ValueError("it has no pieces, or is of another kind")
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    if trained.model_type == _UNIGRAM:
        model: Any = models.Unigram(pieces, trained.unk_id, trained.byte_fallback)
    else:
        ids, unknown = {piece: place for place, (piece, _) in enumerate(pieces)}, pieces[trained.unk_id][0]
        merges, fallback = _merges([one for one in proto.pieces if one.type == _NORMAL]), trained.byte_fallback
        model = models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
    made = Tokenizer(model)
    if whole := [piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED]:
        cut = "|".join(map(re.escape, sorted(whole, key=len, reverse=True)))
        made.pre_tokenizer = pre_tokenizers.Split(Regex(cut), "isolated")
        if trained.model_type == _BPE:
            model.ignore_merges = True  # what was cut out stays whole
    steps: list[normalizers.Normalizer] = []
    if rules.precompiled_charsmap:
        steps.append(normalizers.Precompiled(rules.precompiled_charsmap))
    if rules.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if rules.add_dummy_prefix:
        steps.append(normalizers.Prepend(_SPACE))
    made.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", _SPACE)])
    made.decoder = decoders.Metaspace(_SPACE, "always" if rules.add_dummy_prefix else "never")
    own = [AddedToken(one.piece, normalized=False) for one in proto.pieces if one.type in (_UNKNOWN, _CONTROL)]
    made.add_special_tokens(own)
    ends = [pieces[place][0] if 0 <= place < len(pieces) else "" for place in (trained.bos_id, trained.eos_id)]
    template = f"{ends[0]} $A {ends[1]}".strip()
    named = [(name, made.token_to_id(name)) for name in ends if name]
    made.post_processor = processors.TemplateProcessing(single=template, pair=f"{template} $B", special_tokens=named)
    return str(made.to_str())


def _merges(pieces: list[Any]) -> list[tuple[str, str]]:
    """Each pair of pieces that makes a third, in SentencePiece's order."""
    known = {one.piece for one in pieces if len(one.piece) <= _LONGEST}
    found = [
        (-one.score, one.piece[:at], one.piece[at:])
        for one in pieces for at in range(1, min(len(one.piece), _LONGEST))
        if one.piece[:at] in known and one.piece[at:] in known
    ]  # fmt: skip
    return [(left, right) for _, left, right in sorted(found, key=lambda one: one[0])]
