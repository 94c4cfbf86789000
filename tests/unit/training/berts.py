"""A small BERT without training, and its tokenizer, of few words; for the trainings of texts."""

import json
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel

from training import minilm


def tokenizer(vocabulary: Sequence[str]) -> dict[str, Any]:
    """The tokenizer's file."""
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.add_special_tokens([*minilm.SPECIAL])
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    made.decoder = decoders.WordPiece()
    made.enable_truncation(8)
    content: dict[str, Any] = json.loads(made.to_str())
    return content


def network(vocabulary: Sequence[str], positions: int) -> BertModel:
    """The network, in eval mode."""
    torch.manual_seed(3)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=96,
        intermediate_size=384,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=positions,
    )
    return BertModel(config).eval()
