# Part of the Cleave project, under the Apache License v2.0 with LLVM
# Exceptions. See LICENSE for license information.
"""Small configurations of any model of the transformers library.

Fields are made small by name, lists of one entry a layer keep one layer of each
kind, and nested configurations are made small alike. What a model needs beyond
that is in `SPECIAL`.
"""

import transformers

VOCABULARY = 97
LENGTH = 16
IMAGE = 32

#: Values by the name of a field, where its default is a larger number.
_WIDTHS = {
    32: """hidden_size d_model n_embd dim emb_dim embedding_size word_embed_proj_dim vision_embed_dim
        cross_attention_hidden_size pooler_hidden_size projection_dim backbone_hidden_size
        decoder_hidden_size lru_width attention_hidden_size out_hidden_size intra_bottleneck_size
        true_hidden_size encoder_hidden_size hidden_size_global input_embedding_size
        output_embedding_size projection_size prediction_head_size pooler_output_size
        upsample_groups mamba_d_ssm downsample_hidden_size entity_emb_size embedding_dim""",
    64: """intermediate_size d_ff ffn_dim dim_ff dff n_inner d_inner hidden_dim ffn_hidden_size
        encoder_ffn_dim decoder_ffn_dim moe_intermediate_size shared_expert_intermediate_size
        shared_intermediate_size expert_ffn_hidden_size intermediate_size_mlp mlp_dim
        dense_intermediate_size moe_shared_expert_intermediate_size feed_forward_size
        block_auto_adjust_ff_dim shared_experts_intermediate_size prefix_dense_intermediate_size
        speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim
        max_position_embeddings n_positions max_source_positions max_target_positions
        max_encoder_position_embeddings max_decoder_position_embeddings model_max_length
        max_seq_len context_length n_ctx t2u_max_position_embeddings
        original_max_position_embeddings max_2d_position_embeddings""",
    2: """num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers
        num_encoder_layers num_decoder_layers speech_encoder_layers t2u_encoder_layers
        t2u_decoder_layers num_experts_per_tok num_experts_per_token moe_k moe_topk
        num_layers_per_stack num_self_attends_per_block moe_num_shared_experts
        conf_num_hidden_layers num_global_layers n_group num_expert_group n_layers_per_attn_res_block num_block_layers""",
    4: """num_attention_heads n_head n_heads num_heads encoder_attention_heads
        decoder_attention_heads num_encoder_attention_heads num_decoder_attention_heads
        attention_heads speech_encoder_attention_heads t2u_encoder_attention_heads
        t2u_decoder_attention_heads num_self_attention_heads num_cross_attention_heads
        conf_num_attention_heads swa_num_attention_heads num_experts num_local_experts
        n_routed_experts moe_num_experts linear_num_value_heads linear_num_heads
        mamba_n_heads mamba_num_heads rotary_dim expert_capacity
        num_random_blocks num_landmarks hidden_size_per_layer_input laurel_rank
        number_of_experts zero_expert_num""",
    8: """head_dim d_kv d_head dim_head v_head_dim qk_nope_head_dim qk_rope_head_dim linear_key_head_dim
        linear_value_head_dim linear_head_dim swa_head_dim kv_channels mamba_d_head
        mamba_head_dim mamba_headdim state_size mamba_d_state ssm_state_size mamba_chunk_size
        chunk_size sliding_window sliding_window_size attention_window_size window_size
        local_attention attention_window time_step_rank mamba_dt_rank kv_lora_rank
        adapter_rank index_head_dim attention_head_size o_lora_rank d_rel patch_size
        encoder_stride index_topk attention_chunk_size relative_attention_num_buckets num_buckets
        block_size local_radius num_global_tokens local_attention_window_len""",
    16: """q_lora_rank index_n_heads num_latents d_latents router_hidden_size relative_attention_max_distance
        num_patches""",
    1: "topk_group num_nextn_predict_layers first_k_dense_replace num_shared_experts n_shared_experts",
}
_SMALL = {name: value for value, names in _WIDTHS.items() for name in names.split()}
_SMALL.update(image_size=IMAGE, input_size=IMAGE, crop_size=IMAGE)

#: Values of fields that default to None, and that a model cannot do without.
_MISSING = {"head_dim": 8, "num_experts_per_tok": 2, "n_routed_experts": 4,
            "n_shared_experts": 1}

#: Fields that are lists of widths: divided, so that their ratios stay.
_DIVIDED = {"hidden_sizes", "embed_dim", "embed_dims", "neck_hidden_sizes", "base_attn_unit_dims",
            "stem_channels", "stage_in_channels", "stage_mid_channels", "stage_out_channels"}
_REPEATS = {"depths", "depth", "num_block_repeats", "n_attn_blocks", "stage_numb_of_layers"}
_KEY_HEADS = {"num_key_value_heads", "linear_num_key_heads", "num_kv_heads", "kv_n_heads",
              "swa_num_key_value_heads", "indexer_kv_heads"}


def small(config, own=None):
    """The configuration of the same class, with small values and then those of `own`."""
    own = SPECIAL.get(config.model_type, {}) if own is None else own
    return type(config)(**{**_changes(config), **own})


def config_of(model, model_type):
    """A small configuration of a class of models, whose type is registered by `model_type`."""
    kind = getattr(model, "config_class", None) or transformers.CONFIG_MAPPING[model_type]
    own = {**SPECIAL.get(model_type, {}), **SPECIAL.get(model.__name__, {})}
    try:
        first = kind()
    except Exception:
        first = kind(**own)
    return small(first, own)


def _changes(config):
    fields = {k: v for k, v in vars(config).items() if not k.startswith("_")}
    changes, token = {}, 3
    kept = _layers_kept(fields)
    heads = next((fields[n] for n in ("num_attention_heads", "n_head", "num_heads") if n in fields), None)
    for name, value in fields.items():
        if isinstance(value, transformers.PretrainedConfig):
            changes[name] = small(value)
        elif name.endswith(("token_id", "token_index", "_idx_id")) or name in ("unk_index", "mask_index"):
            fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                     "decoder_start_token_id": 0}
            if name in fixed:
                changes[name] = fixed[name]
            elif isinstance(value, int):
                changes[name], token = token, token + 1
        elif name.endswith("vocab_size") and isinstance(value, int) and value > VOCABULARY:
            changes[name] = VOCABULARY
        elif _is_dropout(name, value):
            changes[name] = type(value)(type(v)(0) for v in value) if isinstance(
                value, (list, tuple)) else type(value)(0)
        elif name in _MISSING and value is None:
            changes[name] = _MISSING[name]
        elif name in _KEY_HEADS and isinstance(value, int):
            changes[name] = min(value, 4 if value == heads and name == "num_key_value_heads" else 2)
        elif isinstance(value, (list, tuple)) and len(value) in kept and name not in (
                "architectures", *_DIVIDED, *_REPEATS):
            changes[name] = type(value)(value[i] for i in kept[len(value)])
        elif isinstance(value, (list, tuple)) and name in _DIVIDED:
            changes[name] = type(value)(max(v // 8, 4) for v in value)
        elif isinstance(value, (list, tuple)) and name in _REPEATS:
            changes[name] = type(value)(min(v, 2 if i == 0 else 1) for i, v in enumerate(value))
        elif name == "image_size" and isinstance(value, (list, tuple)):
            changes[name] = type(value)(IMAGE for _ in value)
        elif name in _SMALL and type(value) is int and value > _SMALL[name]:
            changes[name] = _SMALL[name]
        elif name == "embed_dim" and type(value) is int:
            changes[name] = max(value // 4, 4)
    if fields.get("is_encoder_decoder"):
        changes["decoder_start_token_id"] = 0
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        if type(fields.get(name)) is int and fields[name] in kept:
            changes[name] = len(kept[fields[name]])
    return changes


def _layers_kept(fields):
    """The layers that are kept, by the number of layers: one of each kind, at least two."""
    for name in ("num_hidden_layers", "n_layer", "num_layers", "n_layers"):
        count = fields.get(name)
        if type(count) is int and count > 2:
            lists = [v for v in fields.values() if isinstance(v, (list, tuple)) and len(v) == count]
            if not lists:
                continue
            kinds, chosen = set(), []
            for i, kind in enumerate(zip(*(map(repr, v) for v in lists))):
                if kind not in kinds and len(chosen) < 4:
                    kinds.add(kind)
                    chosen.append(i)
            if len(chosen) < 2:
                chosen = [0, 1]
            return {count: chosen}
    return {}


def _is_dropout(name, value):
    numbers = value if isinstance(value, (list, tuple)) else [value]
    words = ("drop", "jitter", "mask_time_prob", "mask_feature_prob", "pdrop", "noise")
    return bool(numbers) and all(type(v) in (int, float) for v in numbers) and any(
        w in name for w in words)


#: What a type of model, or a class, needs besides.
SPECIAL = {
    "bamba": dict(mamba_n_heads=8, mamba_d_head=8),
    "granitemoehybrid": dict(mamba_n_heads=8, mamba_d_head=8),
    "mamba2": dict(num_heads=8, head_dim=8, chunk_size=8),
    "reformer": dict(axial_pos_shape=(4, 4), axial_pos_embds_dim=(8, 24), local_attn_chunk_length=4,
                     lsh_attn_chunk_length=4, attn_layers=["local", "lsh"], num_buckets=4),
    "ReformerModelWithLMHead": dict(is_decoder=True),
    "esm": dict(vocab_size=97, mask_token_id=3),
    "bit": dict(num_groups=4),
    "mobilevit": dict(hidden_sizes=(16, 24, 32)),
    "perceiver": dict(num_latents=8, d_latents=32, d_model=32, num_self_attends_per_block=2),
    "PerceiverForImageClassificationFourier": dict(num_cross_attention_heads=1),
    "PerceiverForImageClassificationConvProcessing": dict(num_cross_attention_heads=1),
    "cvt": dict(embed_dim=(8, 16, 32), num_heads=(1, 2, 4), depth=(1, 2, 3), drop_rate=(0.0,) * 3,
                attention_drop_rate=(0.0,) * 3, drop_path_rate=(0.0,) * 3),
    "cohere_compass_text": dict(rope_parameters={"full_attention": dict(
        rope_type="default", rope_theta=1e4)}),
    "dbrx": dict(attn_config=dict(kv_n_heads=2, rope_theta=1e4, clip_qkv=8.0), ffn_config=dict(
        ffn_hidden_size=64, moe_num_experts=4, moe_top_k=2, ffn_act_fn={"name": "silu"})),
    "nemotron": dict(num_key_value_heads=2),
    "gemma3n_text": dict(num_kv_shared_layers=0, num_hidden_layers=2,
                         layer_types=["sliding_attention", "full_attention"], intermediate_size=64,
                         activation_sparsity_pattern=[0.5, 0.0]),
    "gemma4_unified_assistant": dict(num_kv_shared_layers=0),
    "lfm2_moe": dict(num_hidden_layers=2, layer_types=["conv", "full_attention"], num_dense_layers=1),
    "qwen4_exp_text": dict(indexer_n_heads=4, indexer_kv_heads=2, indexer_head_dim=8,
                           indexer_budget=8, indexer_compress_ratio=4),
    "textnet": dict(stem_out_channels=8),
    "xmod": dict(default_language="en_XX"),
    "zamba2": dict(attention_hidden_size=64),
    "zamba": dict(attention_hidden_size=64, num_hidden_layers=4, layers_block_type=["mamba", "hybrid", "mamba", "hybrid"]),
    "neomme": dict(head_dim=16),
    "efficientnet": dict(hidden_dim=2560),
    "hgnet_v2": dict(stem_channels=(3, 8, 6)),
    "swin": dict(depths=(1, 1), num_heads=(3, 6), window_size=4),
    "swinv2": dict(depths=(1, 1), num_heads=(3, 6), window_size=4, pretrained_window_sizes=(0, 0)),
    "donut-swin": dict(depths=(1, 1), num_heads=(3, 6), window_size=4),
    "gemma4_assistant": dict(hidden_size_per_layer_input=0),
    "layoutlmv3": dict(coordinate_size=6, shape_size=4),
    "levit": dict(image_size=64, patch_size=16),
    "lilt": dict(hidden_size=48),
    "mistral4": dict(num_key_value_heads=4, head_dim=16),
    "mobilebert": dict(embedding_size=16),
    "mobilenet_v1": dict(image_size=64),
    "mobilenet_v2": dict(image_size=64),
    "mobilevitv2": dict(image_size=64),
    "mpnet": dict(relative_attention_num_buckets=32),
    "musicgen_decoder": dict(num_codebooks=1),
    "musicgen_melody_decoder": dict(num_codebooks=1),
    "MusicgenForCausalLM": dict(num_codebooks=1),
    "MusicgenMelodyForCausalLM": dict(num_codebooks=1),
    "nemotron_h": dict(n_groups=2),
    "nemotron3_diarization_head": dict(audio_hidden_size=32),
    "nystromformer": dict(num_landmarks=16, segment_means_seq_len=16),
    "PerceiverForMaskedLM": dict(max_position_embeddings=LENGTH),
}

#: Classes that compute no loss without an image beside the tokens.
WITH_IMAGE = {"GitForCausalLM"}
