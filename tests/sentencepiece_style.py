"""A tokenizer of the library in SentencePiece's style, as in Llama 2, over a vocabulary by hand."""

import tokenizers
from tokenizers import decoders, models, normalizers

SPECIAL_TOKENS = ["<unk>", "<s>", "</s>"]
FIRST_PIECES = [*SPECIAL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(256))]


def sentencepiece_style(pieces, merges, **options):
    """BPE where a space is `▁`, one stands before every text, and unknown characters are bytes.

    `pieces` come after the special tokens and the 256 bytes; `options` are those of models.BPE.
    """
    vocab = {piece: index for index, piece in enumerate([*FIRST_PIECES, *pieces])}
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, **options)
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(SPECIAL_TOKENS)
    return backend
