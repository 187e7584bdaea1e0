"""Keys of a `config.json` that cannot change a model's numbers, and keys that may only have one value."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_PROVENANCE: Final = """
_name_or_path transformers_version model_type unsloth_version unsloth_fixed tokenizer_class _from_model_config
_commit_hash _attn_implementation_autoset
"""
_TRAINING: Final = """
initializer_range attention_dropout hidden_dropout embd_pdrop resid_pdrop router_aux_loss_coef router_jitter_noise
output_router_logits pretraining_tp gradient_checkpointing problem_type
"""
_CALLING: Final = """
use_cache output_attentions output_hidden_states return_dict torchscript return_dict_in_generate output_scores
label2id id2label task_specific_params finetuning_task prefix
"""
_TOKENIZER: Final = "bos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id"
_GENERATION: Final = """
max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p
typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size num_return_sequences
bad_words_ids begin_suppress_tokens suppress_tokens forced_bos_token_id forced_eos_token_id
exponential_decay_length_penalty remove_invalid_values
"""
_UNUSED: Final = "max_window_layers"
"""Written by families whose windows do not depend on it."""

NO_NUMBERS: Final = frozenset(
    " ".join((_PROVENANCE, _TRAINING, _CALLING, _TOKENIZER, _GENERATION, "dtype torch_dtype eos_token_id")).split()
)
"""Configuration keys, of any family, that change no byte of a KV block that block names do not tell apart."""
HARMLESS: Final = frozenset(" ".join((_PROVENANCE, _TRAINING, _CALLING, _TOKENIZER, _GENERATION, _UNUSED)).split())

FIXED: Final[Mapping[str, tuple[object, ...]]] = MappingProxyType(
    {
        "is_decoder": (True, False),
        "is_encoder_decoder": (False,),
        "add_cross_attention": (False,),
        "cross_attention_hidden_size": (None,),
        "tie_encoder_decoder": (False,),
        "chunk_size_feed_forward": (0,),
        "pruned_heads": ({}, None),
        "tf_legacy_loss": (False,),
        "use_bfloat16": (False,),
        "partial_rotary_factor": (1, 1.0, None),
        "use_mrope": (False,),
        "rope_interleaved": (False,),
        "quantization_config": (None,),
        "auto_map": (None,),
    }
)
