"""Keys of configurations that change neither FLOPs nor bytes, each with the reason."""

from __future__ import annotations

_GROUPS: dict[str, str] = {
    "says who wrote it or which code reads it": """_name_or_path architectures auto_map transformers_version model_type
        _attn_implementation attn_implementation _attn_implementation_autoset name_or_path tokenizer_class custom_pipelines
        _commit_hash author language_model_only is_llama_config model_name""",
    "token ids and templates": """bos_token_id eos_token_id pad_token_id unk_token_id sep_token_id decoder_start_token_id
        image_token_id image_token_index video_token_id audio_token_id audio_token_index vision_start_token_id vision_end_token_id
        boi_token_id eoi_token_id boi_token_index eoi_token_index boa_token_id eoa_token_id eoa_token_index boa_token_index
        media_placeholder_token_id video_placeholder forced_bos_token_id forced_eos_token_id prefix bad_words_ids
        begin_suppress_tokens suppress_tokens vision_token_id image_token image_break_token_id fake_audio_token_id""",
    "training only": """initializer_range initializer_factor attention_dropout hidden_dropout hidden_dropout_prob dropout
        attn_pdrop embd_pdrop resid_pdrop summary_activation summary_first_dropout summary_proj_to_labels summary_type
        summary_use_proj aux_loss_alpha router_aux_loss_coef router_z_loss_coef output_router_logits seq_aux router_jitter_noise
        classifier_dropout layerdrop activation_dropout pretraining_tp gradient_checkpointing use_cache rescale_prenorm_residual
        input_jitter_noise resid_dropout embedding_dropout attention_probs_dropout_prob problem_type task_specific_params
        finetuning_task id2label label2id num_labels router_ignore_padding_tokens keys_to_ignore_at_inference
        residual_dropout scale_attention_softmax_in_fp32 init_std dropout_rate load_balance_coeff moe_dropout""",
    "constants of norms and of the rotation: no weights, and counted with the element-wise work": """rms_norm_eps layer_norm_eps
        layer_norm_epsilon norm_eps norm_epsilon rope_theta rope_scaling rope_parameters rope_ratio rotary_pct rotary_dim
        partial_rotary_factor rotary_emb_base rotary_base rope_local_base_freq rope_interleave indexer_rope_interleave
        original_max_position_embeddings initial_context_length rope_type compress_rope_theta default_theta swa_rope_theta
        rope_theta_swa alibi_bias_max no_rope_layer_interval query_pre_attn_scalar final_logit_softcapping
        attn_logit_softcapping logit_scale embedding_multiplier residual_multiplier attention_multiplier logits_scaling
        scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn attn_temperature_tuning floor_scale attn_scale
        use_mrope mrope_section for_llm_class hc_eps hc_sinkhorn_iters attention_value_scale attn_scale_factor""",
    "which element-wise function: the matrices are the same": """hidden_act hidden_activation activation_function hidden_act_param
        mamba_hidden_act mlp_hidden_act swiglu_limit swiglu_alpha activation output_gate_type use_gelu gelu_approximate""",
    "how routing scores are made: the same experts' count per token": """norm_topk_prob scoring_func topk_method topk_group n_group
        routed_scaling_factor moe_router_dtype router_dtype moe_router_activation_func moe_renormalize use_grouped_topk
        moe_router_enable_expert_bias score_function route_norm route_scale num_expert_group""",
    "how some engine runs it, not what is computed": """ep_size num_logits_to_keep use_mamba_kernels residual_in_fp32 chunk_size
        moe_shared_expert_overlap mamba_chunk_size cache_implementation logits_to_keep use_unified_vision_chunk
        index_share_for_mtp_iteration mamba_ssm_cache_dtype time_step_limit time_step_min time_step_max time_step_floor
        time_step_rank use_flash_attn use_return_dict rms_norm_fused fused_mlp""",
    "generation settings": """temperature top_k top_p typical_p do_sample num_beams num_beam_groups diversity_penalty
        repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size max_length min_length early_stopping
        num_return_sequences exponential_decay_length_penalty remove_invalid_values return_dict return_dict_in_generate
        output_scores output_attentions output_hidden_states torchscript""",
    "of encoders and encoder-decoders; no effect in a decoder": """is_decoder is_encoder_decoder add_cross_attention
        cross_attention_hidden_size tie_encoder_decoder chunk_size_feed_forward pruned_heads tf_legacy_loss use_bfloat16""",
}  # fmt: skip
_RECIPE_GROUPS: dict[str, str] = {
    "how the recipe was made": """producer quantization_status version damp_percent true_sequential static_groups
        model_name_or_path model_file_base_name dataset tokenizer max_input_length meta sparsity_config transform_config
        global_compression_ratio batch_size pad_token_id block_name_to_quantize cache_block_outputs
        module_name_preceding_first_block cache_examples_on_gpu modules_in_block_to_quantize""",
    "which kernel runs it": """backend exllama_config use_exllama disable_exllama use_cuda_fp16 do_fuse fuse_max_seq_len
        modules_to_fuse kernel run_compressed dequantize bnb_4bit_compute_dtype llm_int8_threshold
        llm_int8_enable_fp32_cpu_offload llm_int8_has_fp16_weight bnb_4bit_quant_storage""",
    "said again by other keys": "fmt format checkpoint_format scale_fmt moe_quant_algo _load_in_4bit _load_in_8bit desc_act",
    "activation scales: a number per tensor or none at all": "activation_scheme",
}
IRRELEVANT: dict[str, str] = {key: reason for reason, keys in _GROUPS.items() for key in keys.split()}
RECIPE_IRRELEVANT: dict[str, str] = {key: reason for reason, keys in _RECIPE_GROUPS.items() for key in keys.split()}
