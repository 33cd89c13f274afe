"""Tiny models of other makers' packages: transformers, timm, diffusers and torch_geometric. Seeded, without downloads.

A model is made by its package's own configuration with small numbers in it. Each comes with a batch of inputs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

Inputs = dict[str, Any]


@dataclass
class Model:
    """A module, its inputs by keyword, and whether it generates text."""

    module: torch.nn.Module
    inputs: Inputs
    generates: bool = False


# --- transformers: small numbers for whichever of these a configuration has

_SMALL = {
    "vocab_size": 99, "hidden_size": 32, "d_model": 32, "n_embd": 32, "embed_dim": 32, "dim": 32, "emb_dim": 32,
    "word_embed_proj_dim": 32, "hidden_dim": 32, "embedding_size": 32, "num_hidden_layers": 2, "n_layer": 2,
    "n_layers": 2, "num_layers": 2, "encoder_layers": 2, "decoder_layers": 2, "num_decoder_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "n_head": 4, "n_heads": 4, "num_heads": 4,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "intermediate_size": 64, "n_inner": 64, "d_ff": 64,
    "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "ffn_dim": 64, "d_kv": 8, "head_dim": 8, "rotary_dim": 4,
    "max_position_embeddings": 64, "n_positions": 64, "n_ctx": 64, "max_source_positions": 64,
    "max_target_positions": 64, "type_vocab_size": 2, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "n_shared_experts": 1,
    "moe_num_experts": 4, "moe_k": 2, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 16,
    "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "image_size": 32,
    "patch_size": 8, "num_channels": 3, "state_size": 8, "conv_kernel": 4, "time_step_rank": 4, "sliding_window": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "attention_window": 4,
    "global_rank": 4, "num_buckets": 8, "relative_attention_num_buckets": 8, "num_hash_functions": 4,
    "embedding_dim": 32, "projection_dim": 32, "expert_capacity": 8, "num_sparse_encoder_layers": 1,
    "num_sparse_decoder_layers": 1, "mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1,
    "num_mem_blocks": 2, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 1, "stem_hidden_channels": 8,
    "vision_feature_layer": -1, "attention_dropout": 0.0, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
    "dropout": 0.0, "activation_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0,
    "classifier_dropout": 0.0, "summary_first_dropout": 0.0, "dropout_rate": 0.0, "seq_classif_dropout": 0.0,
    "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0, "drop_path_rate": 0.0,
    "hidden_dropout": 0.0, "residual_dropout": 0.0, "emb_pdrop": 0.0, "embedding_dropout": 0.0,
    "local_attention_probs_dropout_prob": 0.0, "rotary_pct": 0.5, "use_cache": True,
    "router_jitter_noise": 0.0,
}  # fmt: skip
_CAUSAL = (
    "gpt2 gpt_neo gpt_neox gptj gpt_bigcode opt bloom codegen ctrl llama mistral mixtral qwen2 qwen2_moe qwen3 qwen3_moe "
    "gemma gemma2 gemma3_text phi phi3 phimoe falcon mpt stablelm starcoder2 cohere cohere2 olmo olmo2 olmo3 olmoe "
    "granite granitemoe granitemoeshared nemotron persimmon xglm biogpt openai-gpt mamba mamba2 "
    "rwkv falcon_mamba glm glm4 glm4_moe gpt_oss ernie4_5 ernie4_5_moe "
    "exaone4 helium smollm3 seed_oss arcee bitnet diffllama doge "
    "lfm2 minimax jetmoe xlnet cpmant apertus vaultgemma flex_olmo nanochat"
).split()
_MASKED = (
    "bert roberta albert distilbert electra deberta deberta-v2 camembert xlm-roberta xlm-roberta-xl nystromformer "
    "convbert squeezebert mobilebert funnel fnet ibert layoutlm ernie megatron-bert rembert roformer data2vec-text "
    "flaubert xlm longformer big_bird reformer yoso mra modernbert eurobert roc_bert "
    "roberta-prelayernorm nomic_bert"
).split()
_SEQ2SEQ = (
    "t5 mt5 umt5 bart mbart pegasus pegasus_x blenderbot blenderbot-small marian m2m_100 led bigbird_pegasus plbart "
    "longt5 switch_transformers prophetnet nllb-moe fsmt mvp"
).split()
_VISION = (
    "vit beit swin swinv2 convnext convnextv2 mobilenet_v1 mobilenet_v2 "
    "resnet regnet segformer cvt dinov2 focalnet bit vit_msn "
    "data2vec-vision ijepa"
).split()
_SPECIFIC: dict[str, dict[str, Any]] = {
    "funnel": {"block_sizes": [1, 1], "num_decoder_layers": 1, "n_head": 4, "d_head": 8, "d_inner": 64},
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "squeezebert": {"q_groups": 2, "k_groups": 2, "v_groups": 2, "post_attention_groups": 1, "intermediate_groups": 2},
    "reformer": {"axial_pos_embds": False, "attn_layers": ["local", "local"], "local_attn_chunk_length": 8,
                 "is_decoder": False, "feed_forward_size": 64, "attention_head_size": 8},
    "big_bird": {"attention_type": "original_full"}, "bigbird_pegasus": {"attention_type": "original_full"},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2},
    "xlnet": {"n_layer": 2, "d_inner": 64}, "ctrl": {"dff": 64}, "bloom": {"n_head": 4}, "distilbert": {"dim": 32},
    "swin": {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16, "window_size": 4, "patch_size": 2},
    "swinv2": {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16, "window_size": 4, "patch_size": 2},
    "segformer": {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32], "num_attention_heads": [1, 2, 2, 4],
                  "decoder_hidden_size": 16},
    "mixtral": {"sliding_window": None}, "nemotron": {"num_key_value_heads": 4},
    "convbert": {"head_ratio": 2}, "deberta": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "deberta-v2": {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1}, "rembert": {"input_embedding_size": 32},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "regnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "groups_width": 8},
    "bit": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]},
    "convnext": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "convnextv2": {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2},
    "focalnet": {"hidden_sizes": [16, 32], "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3],
                 "embed_dim": 16, "patch_size": 4},
    "prophetnet": {"num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
                   "num_decoder_attention_heads": 4},
    "fsmt": {"langs": ["en", "de"], "src_vocab_size": 99, "tgt_vocab_size": 99},
    "switch_transformers": {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
    "marian": {"decoder_vocab_size": 99}, "mra": {"approx_mode": "full"},
}  # fmt: skip


def _shrink(config: Any, specific: dict[str, Any]) -> None:
    for name, value in {**_SMALL, **specific}.items():
        if hasattr(config, name) and (name in specific or getattr(config, name) is not None):
            now = getattr(config, name)
            if name in specific or isinstance(now, (int, float)) or isinstance(now, type(value)):
                # derived by some configurations, of another type in others
                with contextlib.suppress(AttributeError, TypeError, ValueError, NotImplementedError):
                    setattr(config, name, value)
    kinds = getattr(config, "layer_types", None)
    layers = getattr(config, "num_hidden_layers", None)
    if kinds and layers:
        with contextlib.suppress(AttributeError):
            config.layer_types = [*dict.fromkeys(kinds), kinds[-1]][:layers]


def _transformers(kind: str, auto: str) -> Model:
    import transformers
    from transformers import AutoConfig

    fresh = AutoConfig.for_model(kind)
    _shrink(fresh, _SPECIFIC.get(kind, {}))
    # once more by the constructor, which derives other numbers from these
    kept = {k: v for k, v in fresh.to_dict().items() if k in _SMALL or k in _SPECIFIC.get(kind, {})}
    try:
        config = type(fresh)(**kept)
        _shrink(config, _SPECIFIC.get(kind, {}))
    except Exception:
        config = fresh
    config._attn_implementation = "eager" if kind in ("doge",) else None
    module = getattr(transformers, auto).from_config(config)
    if auto == "AutoModelForImageClassification":
        size = config.image_size if isinstance(getattr(config, "image_size", None), int) else 32
        return Model(module, {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.tensor([0, 1])})
    ids = torch.randint(3, 90, (2, 16))
    inputs: Inputs = {"input_ids": ids, "labels": ids.clone()}
    if auto == "AutoModelForSeq2SeqLM":
        inputs["decoder_input_ids"] = torch.randint(3, 90, (2, 16))
        if module.generation_config.decoder_start_token_id is None:
            module.generation_config.decoder_start_token_id = 1
    elif kind not in ("mamba", "mamba2", "rwkv", "fnet", "falcon_mamba", "xlnet", "transfo-xl", "reformer"):
        inputs["attention_mask"] = torch.ones_like(ids)
    return Model(module, inputs, auto != "AutoModelForMaskedLM")


def _several(kind: str) -> Model:
    """Models of images or sounds with texts."""
    import transformers as t

    text = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
            "attention_probs_dropout_prob": 0.0}  # fmt: skip
    image = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "image_size": 32, "patch_size": 8}  # fmt: skip
    sound = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 32,
             "conv_dim": (16, 16), "conv_stride": (5, 4), "conv_kernel": (10, 5), "num_conv_pos_embeddings": 8,
             "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2, "mask_time_prob": 0.0,
             "attention_dropout": 0.0, "layerdrop": 0.0}  # fmt: skip
    ids, pixels = torch.randint(3, 90, (2, 12)), torch.randn(2, 3, 32, 32)
    both = {"input_ids": ids, "pixel_values": pixels, "return_loss": True}
    heard = {"input_values": torch.randn(2, 800), "labels": torch.randint(1, 30, (2, 5))}
    make: dict[str, Callable[[], Model]] = {
        "clip": lambda: Model(t.CLIPModel(t.CLIPConfig(text_config=text, vision_config=image, projection_dim=32)), both),
        "siglip": lambda: Model(t.SiglipModel(t.SiglipConfig(text_config=text, vision_config=image)), both),
        "chinese_clip": lambda: Model(
            t.ChineseCLIPModel(t.ChineseCLIPConfig(text_config=text, vision_config=image, projection_dim=32)), both),
        "vilt": lambda: Model(t.ViltModel(t.ViltConfig(**{**text, **image})), {"input_ids": ids, "pixel_values": pixels}),
        "wav2vec2": lambda: Model(t.Wav2Vec2ForCTC(t.Wav2Vec2Config(**sound)), heard),
        "hubert": lambda: Model(t.HubertForCTC(t.HubertConfig(**sound)), heard),
        "whisper": lambda: Model(
            t.WhisperForConditionalGeneration(t.WhisperConfig(
                vocab_size=99, num_mel_bins=8, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, d_model=32, max_source_positions=20,
                max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)),
            {"input_features": torch.randn(2, 8, 40), "labels": ids}),
    }  # fmt: skip
    return make[kind]()


_SEVERAL = "clip siglip chinese_clip vilt wav2vec2 hubert whisper".split()


# --- timm

_TIMM = (
    "resnet18 resnet50 resnext50_32x4d seresnet50 mobilenetv2_050 mobilenetv3_small_050 efficientnet_b0 "
    "efficientnet_lite0 regnetx_002 regnety_002 densenet121 vgg11_bn convnext_atto convnextv2_atto vit_tiny_patch16_224 "
    "deit_tiny_patch16_224 swin_s3_tiny_224 mixer_s32_224 resmlp_12_224 ghostnet_050 mnasnet_050 hardcorenas_a "
    "repvgg_a0 edgenext_xx_small poolformer_s12 xcit_nano_12_p16_224 levit_128s mobilevit_xxs coat_lite_tiny "
    "pvt_v2_b0 tinynet_e cspresnet50 dpn48b inception_v3 nfnet_l0 semnasnet_075 fastvit_t8 maxvit_rmlp_pico_rw_256 "
    "eva02_tiny_patch14_224 hrnet_w18_small"
).split()


def _timm(name: str) -> Model:
    import timm

    module = timm.create_model(name, pretrained=False, num_classes=10)
    size = module.default_cfg["input_size"][-1] if getattr(module, "patch_embed", None) is not None else 96
    if name in (
        "levit_128s",
        "coat_lite_tiny",
        "maxvit_rmlp_pico_rw_256",
        "mixer_s32_224",
        "resmlp_12_224",
        "inception_v3",
    ):
        size = module.default_cfg["input_size"][-1]
    return Model(module, {"x": torch.randn(2, 3, size, size)})


# --- diffusers


def _diffusers(name: str) -> Model:
    import diffusers

    image, time = torch.randn(2, 4, 16, 16), torch.tensor([3, 7])
    text = torch.randn(2, 5, 32)
    blocks = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    make: dict[str, Callable[[], Model]] = {
        "UNet2DModel": lambda: Model(
            diffusers.UNet2DModel(
                sample_size=16, in_channels=4, out_channels=4, down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D"), **blocks),
            {"sample": image, "timestep": time}),
        "UNet2DConditionModel": lambda: Model(
            diffusers.UNet2DConditionModel(
                sample_size=16, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
                up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32, attention_head_dim=8, **blocks),
            {"sample": image, "timestep": time, "encoder_hidden_states": text}),
        "AutoencoderKL": lambda: Model(
            diffusers.AutoencoderKL(
                down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                latent_channels=4, **blocks),
            {"sample": torch.randn(2, 3, 32, 32)}),
        "VQModel": lambda: Model(
            diffusers.VQModel(
                down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
                num_vq_embeddings=16, **blocks),
            {"sample": torch.randn(2, 3, 32, 32)}),
        "AutoencoderTiny": lambda: Model(
            diffusers.AutoencoderTiny(encoder_block_out_channels=(16, 16), decoder_block_out_channels=(16, 16),
                                      num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
            {"sample": torch.randn(2, 3, 32, 32)}),
        "DiTTransformer2DModel": lambda: Model(
            diffusers.DiTTransformer2DModel(
                num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=4, num_layers=2, sample_size=16),
            {"hidden_states": image, "timestep": time, "class_labels": torch.tensor([1, 2])}),
        "SD3Transformer2DModel": lambda: Model(
            diffusers.SD3Transformer2DModel(
                sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=8, num_attention_heads=4,
                joint_attention_dim=32, caption_projection_dim=32, pooled_projection_dim=16, out_channels=4,
                pos_embed_max_size=16),
            {"hidden_states": image, "timestep": time, "encoder_hidden_states": text,
             "pooled_projections": torch.randn(2, 16)}),
        "PixArtTransformer2DModel": lambda: Model(
            diffusers.PixArtTransformer2DModel(
                num_attention_heads=4, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=16,
                cross_attention_dim=32, caption_channels=32, use_additional_conditions=False),
            {"hidden_states": image, "timestep": time, "encoder_hidden_states": text,
             "added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}),
        "FluxTransformer2DModel": lambda: Model(
            diffusers.FluxTransformer2DModel(
                patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
                num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=16, axes_dims_rope=(4, 4, 8)),
            {"hidden_states": torch.randn(2, 9, 4), "timestep": torch.rand(2), "encoder_hidden_states": text,
             "pooled_projections": torch.randn(2, 16), "img_ids": torch.zeros(9, 3), "txt_ids": torch.zeros(5, 3)}),
    }  # fmt: skip
    return make[name]()


_DIFFUSERS = (
    "UNet2DModel UNet2DConditionModel AutoencoderKL VQModel AutoencoderTiny DiTTransformer2DModel "
    "SD3Transformer2DModel PixArtTransformer2DModel FluxTransformer2DModel"
).split()


# --- torch_geometric

_GRAPHS = "GCN GraphSAGE GAT GIN EdgeCNN PNA TAG Transformer GatedGraph SGConv ChebConv ARMA".split()


class _Graph(torch.nn.Module):
    """Two convolutions over a graph."""

    def __init__(self, name: str):
        super().__init__()
        from torch_geometric import nn

        sizes = (8, 16, 2, 4)
        degrees = torch.tensor([0, 3, 5, 2])
        single = {
            "TAG": lambda i, o: nn.TAGConv(i, o), "Transformer": lambda i, o: nn.TransformerConv(i, o),
            "GatedGraph": lambda i, o: nn.GatedGraphConv(o, 2), "SGConv": lambda i, o: nn.SGConv(i, o),
            "ChebConv": lambda i, o: nn.ChebConv(i, o, 2), "ARMA": lambda i, o: nn.ARMAConv(i, o),
        }  # fmt: skip
        if name in single:
            self.layers = torch.nn.ModuleList([single[name](8, 16), single[name](16, 16)])
            self.whole = None
        else:
            more = (
                {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "amplification"], "deg": degrees}
                if name == "PNA" else {}
            )  # fmt: skip
            self.whole = getattr(nn, name)(*sizes, **more)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        if self.whole is not None:
            return self.whole(x, edge_index)
        for layer in self.layers:
            x = layer(x, edge_index).relu()
        return x


def _geometric(name: str) -> Model:
    return Model(_Graph(name), {"x": torch.randn(12, 8), "edge_index": torch.randint(0, 12, (2, 40))})


_MAKERS: dict[str, tuple[Callable[[str], Model], list[str]]] = {
    "transformers, causal": (lambda name: _transformers(name, "AutoModelForCausalLM"), _CAUSAL),
    "transformers, masked": (lambda name: _transformers(name, "AutoModelForMaskedLM"), _MASKED),
    "transformers, seq2seq": (lambda name: _transformers(name, "AutoModelForSeq2SeqLM"), _SEQ2SEQ),
    "transformers, vision": (lambda name: _transformers(name, "AutoModelForImageClassification"), _VISION),
    "transformers, text with images or sound": (_several, _SEVERAL),
    "timm": (_timm, _TIMM),
    "diffusers": (_diffusers, _DIFFUSERS),
    "torch_geometric": (_geometric, _GRAPHS),
}


def names() -> Iterator[tuple[str, str]]:
    """(group, name) of every model."""
    for group, (_, models) in _MAKERS.items():
        for model in models:
            yield group, model


def make(group: str, name: str) -> Model:
    """The model with seed 0. Raises what its package raises where this version has none of the name."""
    torch.manual_seed(0)
    return _MAKERS[group][0](name)
